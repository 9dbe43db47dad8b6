#!/bin/bash
# Builds the disk of a Debian machine: the release that this machine runs, from the mirrors that its own apt uses, with
# systemd and the packages that an operator installs for the service. Needs root, debootstrap, a network, and two minutes.
# Usage: debian-root.sh KERNEL_PACKAGE CONTROL_SCRIPT DISK
set -eu
kernel=$(realpath "$1")
control=$(realpath "$2")
disk=$(realpath "$3")
here=$(mktemp -d "$disk.root-XXXXXX")
trap 'umount "$here/proc" 2>/dev/null || true; rm -rf --one-file-system "$here"' EXIT
. /etc/os-release

# shellcheck disable=SC2016 # apt expands these
sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' | sort -u)
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' "Codename: $VERSION_CODENAME" | head -n 1)
[ -n "$mirror" ] || { echo "apt has no lists of Debian $VERSION_CODENAME: apt-get update" >&2; exit 1; }

root=$here/root
debootstrap --variant=minbase "$VERSION_CODENAME" "$root" "$mirror"
echo "$sources" >"$root/etc/apt/sources.list"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# Apt reaches its mirrors in there as it does here.
apt-config dump | grep -E '^Acquire::(http|https|Check)' >"$root/etc/apt/apt.conf.d/90host" || true
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
chroot "$root" apt-get -q update
DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get -q -y --no-install-recommends install \
	systemd systemd-sysv dbus udev kmod procps curl ca-certificates \
	qemu-system-x86 skopeo umoci erofs-utils e2fsprogs iproute2 util-linux
rm -rf "$root"/usr/sbin/policy-rc.d "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* \
	"$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/etc/apt/apt.conf.d/90host

# The kernel that boots it is outside, its modules are here.
dpkg-deb --fsys-tarfile "$kernel" | tar -x -C "$root" --keep-directory-symlink ./lib/modules
chroot "$root" depmod "$(ls "$root/lib/modules")"

install -m 755 "$control" "$root/usr/local/sbin/test-control"
cat >"$root/etc/systemd/system/test-control.service" <<'UNIT'
[Unit]
Description=Does what the test outside asks for
BindsTo=dev-virtio\x2dports-control.device
After=dev-virtio\x2dports-control.device
[Service]
ExecStart=/usr/local/sbin/test-control /dev/virtio-ports/control
# Its own programs are the only ones that it starts.
KillMode=process
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants" "$root/media/payload"
ln -s ../test-control.service "$root/etc/systemd/system/default.target.wants/"
# Nothing that a server would not have, and nothing that delays the boot.
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
	getty@tty1.service serial-getty@ttyS0.service; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done
printf '/dev/nvme0n1 / ext4 defaults 0 0\n/dev/nvme0n2 /media/payload ext4 ro,nofail 0 0\n' >"$root/etc/fstab"
echo debian >"$root/etc/hostname"
: >"$root/etc/machine-id"
: >"$root/etc/resolv.conf"

truncate -s 8G "$disk.new"
mke2fs -q -F -t ext4 -E lazy_itable_init=1,nodiscard,root_owner=0:0 -d "$root" "$disk.new"
mv "$disk.new" "$disk"
