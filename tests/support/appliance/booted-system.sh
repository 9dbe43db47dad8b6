#!/bin/bash
# Becomes systemd on a copy-on-write copy of this machine's file system, within new namespaces: mount, pid, ipc, uts,
# net and cgroup. Usage: booted-system.sh DIRECTORY   (an empty one, for its layers and for /var/lib/coppice)
set -eu
directory=$1
root=$directory/root
mount --make-rprivate /
mount -t tmpfs tmpfs "$root"
mkdir -p "$root/upper" "$root/work" "$root/merged"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/merged"
cd "$root/merged"
mount -t proc proc proc
mount -t sysfs sysfs sys
for path in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs "$path"; done
chmod 1777 tmp
mkdir -p run/lock dev/pts dev/shm
for node in null zero full random urandom tty; do
	touch "dev/$node"
	mount --bind "/dev/$node" "dev/$node"
done
mount -t devpts -o ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm

# The same kind of tree as outside, seen from this group.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
	mount -t cgroup2 cgroup2 sys/fs/cgroup
else
	mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
	for controller in memory cpu cpuacct pids; do
		mkdir "sys/fs/cgroup/$controller"
		mount -t cgroup -o "$controller" cgroup "sys/fs/cgroup/$controller"
	done
	mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
	mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
	mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
fi
mkdir -p var/lib/coppice old
mount --bind "$directory/data" var/lib/coppice
pivot_root . old
umount -l old
exec env -i container=other /lib/systemd/systemd --system --unit=multi-user.target
