#!/bin/bash
# Builds the root file system of the guest in which the ring `network` runs programs, as a tar archive compressed with zstd:
# the release that this machine runs, from the mirrors that its own apt uses. Needs root, debootstrap, npm, a network, and
# two minutes.
# Usage: guest-root.sh KERNEL_PACKAGE ARCHIVE
set -eu
kernel=$(realpath "$1")
archive=$(realpath "$2")
here=$(mktemp -d "$archive.root-XXXXXX")
trap 'umount "$here/root/proc" 2>/dev/null || true; rm -rf --one-file-system "$here"' EXIT
. /etc/os-release
# The release line that works with this Debian's Node.js; the Debian package has ten times as many files.
npm=npm@10.9.4

# shellcheck disable=SC2016 # apt expands these
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' "Codename: $VERSION_CODENAME" | head -n 1)
[ -n "$mirror" ] || { echo "apt has no lists of Debian $VERSION_CODENAME: apt-get update" >&2; exit 1; }

root=$here/root
# hey is an HTTP client in Go, with Go's own resolver.
debootstrap --variant=minbase --include=python3,python3-pip,nodejs,git,curl,wget,ca-certificates,openssl,iproute2,busybox-static,hey \
	"$VERSION_CODENAME" "$root" "$mirror"
(cd "$here" && npm pack --silent "$npm")
mkdir -p "$root/usr/local/lib/node_modules"
tar -x -C "$root/usr/local/lib/node_modules" --no-same-owner -f "$here"/npm-*.tgz
mv "$root/usr/local/lib/node_modules/package" "$root/usr/local/lib/node_modules/npm"
ln -s ../lib/node_modules/npm/bin/npm-cli.js "$root/usr/local/bin/npm"

# For a nested network namespace, for which the guest's kernel has a module.
veth=$(dpkg-deb --fsys-tarfile "$kernel" | tar -t | grep -E '/veth\.ko(\.xz|\.zst)?$')
dpkg-deb --fsys-tarfile "$kernel" | tar -x -C "$here" "$veth"
case "$veth" in *.xz) xz -d "$here/$veth" ;; *.zst) zstd -q -d --rm "$here/$veth" ;; esac
install -m 644 "$here/${veth%.ko*}.ko" "$root/usr/local/lib/veth.ko"

# The tests provide their own sources and resolv.conf.
: >"$root/etc/apt/sources.list"
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* \
	"$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/i18n/* "$root"/usr/share/info/* "$root"/etc/resolv.conf \
	"$root"/dev/* "$root"/usr/local/lib/node_modules/npm/docs "$root"/usr/local/lib/node_modules/npm/man "$root"/var/log/*.log
tar -c --numeric-owner --xattrs -C "$root" . | zstd -q -3 -o "$archive.new"
mv "$archive.new" "$archive"
