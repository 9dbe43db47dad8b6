#!/bin/sh
# Downloads and unpacks Debian's cloud kernel, without installing it, and writes
#   $2/vmlinux    the uncompressed ELF kernel: it saves decompression, a third of a cold boot
#   $2/KERNEL     name and version of the binary and source packages, for the third-party notices
#   $1/modules/   the loadable modules without debug sections
# usage: fetch.sh WORK_DIRECTORY ASSETS_DIRECTORY
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
work=$1
assets=$2
meta=linux-image-cloud-amd64

resolve() {
	apt-cache depends --important "$meta" 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }'
}

mkdir -p "$work" "$assets"
work=$(CDPATH='' cd -- "$work" && pwd)
assets=$(CDPATH='' cd -- "$assets" && pwd)

package=$(resolve)
if [ -z "$package" ]; then
	apt-get update -q
	package=$(resolve)
fi
[ -n "$package" ] || { echo "fetch.sh: apt knows no package $meta" >&2; exit 1; }

# A downloaded package is used again. apt verifies the hash of each download.
deb=$(find "$work" -maxdepth 1 -name "${package}_*.deb" | sort | tail -n 1)
if [ -z "$deb" ]; then
	# apt's sandbox user cannot write to a private build directory.
	(cd "$work" && { apt-get -q -o APT::Sandbox::User=root download "$package" ||
		{ apt-get update -q && apt-get -q -o APT::Sandbox::User=root download "$package"; }; })
	deb=$(find "$work" -maxdepth 1 -name "${package}_*.deb" | sort | tail -n 1)
fi

rm -rf "$work/unpacked" "$work/modules"
dpkg -x "$deb" "$work/unpacked"
bun "$here/extract-vmlinux.ts" "$(find "$work/unpacked/boot" -name 'vmlinuz-*')" "$work/vmlinux.new"

mkdir "$work/modules"
while read -r name _; do
	case $name in '' | '#'*) continue ;; esac
	module=$(find "$work/unpacked/lib/modules" "$work/unpacked/usr/lib/modules" -name "$name.ko*" 2>/dev/null | head -n 1)
	case $module in
		*.ko) cp "$module" "$work/modules/$name.ko" ;;
		*.ko.xz) xz -dc "$module" >"$work/modules/$name.ko" ;;
		*.ko.zst) zstd -qdc "$module" >"$work/modules/$name.ko" ;;
		*) continue ;; # built in or missing; the agent reports a module that it needs
	esac
	# Stripping also removes the signature, which taints the kernel ("E"); Debian does not require signatures.
	objcopy --strip-debug -R .BTF -R .comment -R .note.gnu.property "$work/modules/$name.ko"
done <"$here/../initramfs/modules"

{
	printf 'binary-package: %s\n' "$package"
	printf 'binary-version: %s\n' "$(dpkg-deb -f "$deb" Version)"
	printf 'source-package: %s\n' "$(dpkg-deb -f "$deb" Source)"
	printf 'built-using: %s\n' "$(dpkg-deb -f "$deb" Built-Using)"
} >"$assets/KERNEL"
rm -rf "$work/unpacked"
mv "$work/vmlinux.new" "$assets/vmlinux"
