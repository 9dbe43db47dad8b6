#!/bin/bash
# Builds the root file system of the template `base` of the ring `e2b`, as a tar archive compressed with zstd: the Debian release
# that this machine runs, from the mirrors that its own apt uses, with the programs that the clients' users expect.
# Needs root, debootstrap, a network, and two minutes.
# Usage: guest-root.sh ARCHIVE
set -eu
archive=$(realpath "$1")
here=$(mktemp -d "$archive.root-XXXXXX")
trap 'umount "$here/root/proc" 2>/dev/null || true; rm -rf --one-file-system "$here"' EXIT
. /etc/os-release

# shellcheck disable=SC2016 # apt expands these
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' "Codename: $VERSION_CODENAME" | head -n 1)
[ -n "$mirror" ] || { echo "apt has no lists of Debian $VERSION_CODENAME: apt-get update" >&2; exit 1; }

root=$here/root
debootstrap --variant=minbase --include=bash,sudo,python3-minimal,libpython3-stdlib,python-is-python3,git,curl,ca-certificates,procps \
	"$VERSION_CODENAME" "$root" "$mirror"
: >"$root/etc/apt/sources.list"
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* \
	"$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/i18n/* "$root"/usr/share/info/* "$root"/etc/resolv.conf \
	"$root"/dev/* "$root"/var/log/*.log
tar -c --numeric-owner --xattrs -C "$root" . | zstd -q -3 -o "$archive.new"
mv "$archive.new" "$archive"
