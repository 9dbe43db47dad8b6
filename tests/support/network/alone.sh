#!/bin/sh
# Runs a program in a network namespace of its own, where every address is this machine's: the tests serve what they want at
# any address, they see each connection that is tried, and nothing leaves. Usage: alone.sh PROGRAM [ARGUMENT...]
set -eu
if [ "${COPPICE_TEST_ALONE:-}" != 1 ]; then
	export COPPICE_TEST_ALONE=1
	exec unshare --net -- "$0" "$@"
fi
ip link set lo up
# An address that looks public, and is one of this machine's own.
ip addr add 20.0.1.1/32 dev lo
ip route add local default dev lo
ip -6 route add local default dev lo
# What IPv4 takes from the route alone.
echo 1 >/proc/sys/net/ipv6/ip_nonlocal_bind
# Here is nobody who could answer: the other end of the cable takes no packet that is not for it.
ip link add cable type veth peer name end
ip link set cable arp off up
ip link set end arp off up
ip route add 20.0.8.0/24 dev cable
ip route add unreachable 20.0.9.0/24
exec "$@"
