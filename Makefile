# `make` lists the targets. Each target installs its missing prerequisites.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

BUN_VERSION := 1.4.4
TOOLS := $(CURDIR)/.tools
# The PATH of some users lacks the directories of system administration tools (mkfs, debootstrap).
export PATH := $(TOOLS)/node_modules/.bin:$(CURDIR)/node_modules/.bin:$(PATH):/usr/local/sbin:/usr/sbin:/sbin

REVISION = $(shell git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
SOURCES = $(shell find src systemd -type f) package.json bun.lock
ASSETS := build/assets/vmlinux build/assets/initramfs.cpio build/assets/launch build/assets/memory.so build/assets/copy-memory

# A command or file, and the Debian package that contains it: what building, running and testing need.
NEEDS_OF_BUILD := node:nodejs npm:npm git:git gcc:gcc musl-gcc:musl-tools objcopy:binutils xz:xz-utils zstd:zstd dpkg-deb:dpkg \
	/usr/include/stdint.h:libc6-dev /usr/include/linux/fs.h:linux-libc-dev /etc/ssl/certs/ca-certificates.crt:ca-certificates
NEEDS_OF_RUN := qemu-system-x86_64:qemu-system-x86 skopeo:skopeo umoci:umoci mkfs.erofs:erofs-utils mke2fs:e2fsprogs \
	setpriv:util-linux ip:iproute2
NEEDS_OF_DEMO := docker-registry:docker-registry /usr/share/doc/busybox-static:busybox-static
NEEDS_OF_TESTS := $(NEEDS_OF_DEMO) mkfs.xfs:xfsprogs fallocate:util-linux losetup:mount unshare:util-linux \
	curl:curl openssl:openssl rclone:rclone getfattr:attr setfacl:acl debugfs:e2fsprogs strace:strace jq:jq systemd-analyze:systemd pgrep:procps \
	debootstrap:debootstrap /usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1:libfaketime chromium:chromium zsh:zsh fish:fish

BUN := $(TOOLS)/bun-$(BUN_VERSION)
MODULES := node_modules/.coppice

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: deps
deps: needs-build $(MODULES) ## install what building needs: Debian packages, bun, modules

.PHONY: test-deps
test-deps: needs-build needs-run needs-tests $(MODULES) ## install what the tests need, too: QEMU, a registry, a browser, shells

.PHONY: needs-build needs-run needs-demo needs-tests needs-bench
needs-build: NEEDS = $(NEEDS_OF_BUILD)
needs-run: NEEDS = $(NEEDS_OF_RUN)
needs-demo: NEEDS = $(NEEDS_OF_DEMO)
needs-tests: NEEDS = $(NEEDS_OF_TESTS)
needs-bench: NEEDS = perf:linux-perf
needs-build needs-run needs-demo needs-tests needs-bench:
	@missing=""; \
	for need in $(NEEDS); do \
		what="$${need%%:*}"; \
		case "$$what" in /*) [ -e "$$what" ] && continue ;; *) command -v "$$what" >/dev/null && continue ;; esac; \
		missing="$$missing $${need##*:}"; \
	done; \
	[ -z "$$missing" ] && exit 0; \
	echo "==> installing Debian packages:$$missing"; \
	if [ "$$(id -u)" != 0 ]; then echo "run this as root: apt-get install --no-install-recommends$$missing" >&2; exit 1; fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	install() { apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 $$missing >"$$log" 2>&1; }; \
	log=$$(mktemp); \
	install || { echo "==> updating the package lists first"; apt-get update -qq && install; } || { cat "$$log" >&2; exit 1; }; \
	rm -f "$$log"

# npm 11 may skip bun's install script, which puts the program in place; in that case it is run here.
$(BUN): | needs-build
	@echo "==> installing bun $(BUN_VERSION) into .tools"
	@mkdir -p $(TOOLS)
	@cd $(TOOLS) && npm install --prefix $(TOOLS) --ignore-scripts=false --no-save --no-package-lock --no-audit --no-fund \
		--no-update-notifier --loglevel=error bun@$(BUN_VERSION) >/dev/null
	@own=$(TOOLS)/node_modules/.bin/bun; \
		[ "$$($$own --version 2>/dev/null)" = $(BUN_VERSION) ] || (cd $(TOOLS)/node_modules/bun && node install.js); \
		[ "$$($$own --version)" = $(BUN_VERSION) ]
	@touch $@

$(MODULES): $(BUN) package.json bun.lock
	@echo "==> installing the modules of bun.lock"
	@bun install --frozen-lockfile --silent
	@touch $@

.PHONY: assets
assets: deps ## build the guest's kernel and initramfs with the agent, the launcher, and the memory library of VMMs
	@$(MAKE) -s -C vm-assets

.PHONY: build
build: assets ## build dist/coppice
	@$(MAKE) -s dist/coppice

dist/coppice: $(SOURCES) $(ASSETS)
	@echo "==> building the executable"
	@bun src/tools/build.ts --revision "$(REVISION)"

.PHONY: client
client: deps ## build dist/coppice-client, the typed client as a package for Node, Bun and browsers
	@bun src/tools/client-package.ts

.PHONY: install
install: build ## install the executable as a service; DESTDIR=DIR for a package
	@dist/coppice install $(if $(DESTDIR),--root $(DESTDIR),)

.PHONY: uninstall
uninstall: build ## remove the service and the installed files; data stays
	@dist/coppice uninstall $(if $(DESTDIR),--root $(DESTDIR),)

.PHONY: release
release: build ## make dist/release: an archive with the executable, notices, checksums and the list of packages
	@bun src/tools/release.ts --timestamp "$$(git log -1 --format=%ct)"

.PHONY: dev
dev: assets needs-run ## run the appliance from source, with data in build/dev and emulation allowed
	@bun src/tools/web.ts
	@trap 'kill $$!' EXIT; bun src/tools/web.ts --watch & bun --watch src/main.ts serve --data-dir build/dev --vm-emulation allow

.PHONY: demo
demo: build needs-run needs-demo ## demonstrate import, run, branch, rollback and a sandbox on a temporary data directory
	@COPPICE_TEST_EXECUTABLE=dist/coppice bun tests/demo/demo.ts

.PHONY: check
check: test-deps ## check types, style and the rules of the source
	@bun tests/support/rings/run-rings.ts check

.PHONY: format
format: deps ## format the source
	@biome check --write .

.PHONY: test
test: build test-deps ## run every ring of tests
	@bun tests/support/rings/run-rings.ts

.PHONY: test-unit
test-unit: test-deps ## test the logic of the parts, without programs, sockets and VMs
	@bun tests/support/rings/run-rings.ts unit

.PHONY: test-parts
test-parts: test-deps ## test the parts that start programs or use sockets, with real ones
	@bun tests/support/rings/run-rings.ts parts

.PHONY: test-table
test-table: test-deps ## write build/specification.md, which tests cover which row, and the source tree of docs/architecture.md
	@bun tests/support/source/specification-table.ts
	@bun tests/support/source/source-tree.ts

.PHONY: test-agent
test-agent: test-deps ## test the guest agent under sanitizers
	@bun tests/support/rings/run-rings.ts agent

.PHONY: test-api
test-api: test-deps ## test the HTTP contract of the source
	@bun tests/support/rings/run-rings.ts api

.PHONY: test-dist
test-dist: build test-deps ## test the HTTP contract and the command line of the executable
	@bun tests/support/rings/run-rings.ts dist

.PHONY: test-system
test-system: build test-deps ## test with real registries, tools, VMs and crashes
	@bun tests/support/rings/run-rings.ts system

.PHONY: test-machines
test-machines: build test-deps ## test the virtual machine monitors, their jails, and what ends them
	@bun tests/support/rings/run-rings.ts machines

.PHONY: test-running
test-running: build test-deps ## test what runs in real VMs: commands, files and sandboxes
	@bun tests/support/rings/run-rings.ts running

.PHONY: test-contree
test-contree: build test-deps ## test the interface for the public ConTree clients, row by row, with real images
	@bun tests/support/rings/run-rings.ts contree

.PHONY: test-e2b
test-e2b: build test-deps ## test the interface for the published clients of E2B with the clients themselves, on real machines
	@bun tests/support/rings/run-rings.ts e2b

.PHONY: test-network
test-network: build test-deps ## test the network of guests with real programs in a Debian guest, and attacks on its rules
	@bun tests/support/rings/run-rings.ts network

.PHONY: test-page
test-page: build test-deps ## test the page in a real browser; what it showed is in build/screenshots
	@bun tests/support/rings/run-rings.ts page

.PHONY: test-faults
test-faults: build test-deps ## test a minute of kills, full disks, lying registries and clock jumps under load
	@bun tests/support/rings/run-rings.ts faults

.PHONY: test-install
test-install: build test-deps ## test the installed service in a system with its own systemd
	@bun tests/support/rings/run-rings.ts install

.PHONY: test-debian
test-debian: build test-deps ## test install, upgrade and reboot on Debian in an emulated machine; takes long
	@bun tests/support/rings/run-rings.ts debian

.PHONY: bench
bench: build test-deps ## measure the build and check it against its bars; BENCH="--quick", "--only spawn,rates", "--record NAME"
# perf is optional: without it, one row says that it is missing.
	@$(MAKE) -s needs-bench || true
	@COPPICE_TEST_EXECUTABLE=dist/coppice bun tests/bench/bench.ts $(BENCH)

.PHONY: soak-spawns
soak-spawns: build test-deps ## check that memory, descriptors, disk and latency do not grow in COPPICE_SOAK_COUNT (1000) spawns
	@COPPICE_TEST_EXECUTABLE=dist/coppice bun tests/bench/soak.ts

.PHONY: soak
soak: soak-spawns ## soak-spawns, an hour of faults, an hour of kills around sandboxes, random captures, 1,000 runs in a chain, 10,000 processes in one; takes hours
	@bun tests/support/rings/run-rings.ts soak-faults soak
	@COPPICE_TEST_EXECUTABLE=dist/coppice bun tests/soak/chain.ts
	@COPPICE_TEST_EXECUTABLE=dist/coppice bun tests/soak/processes.ts

.PHONY: clean
clean: ## remove build results
	rm -rf build dist
