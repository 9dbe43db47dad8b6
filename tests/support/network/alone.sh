#!/bin/sh
# Runs a program in its own network namespace, where every address belongs to this machine: the tests can serve any
# address, they see each attempted connection, and no packet leaves. Usage: alone.sh PROGRAM [ARGUMENT...]
set -eu
if [ "${COPPICE_TEST_ALONE:-}" != 1 ]; then
	export COPPICE_TEST_ALONE=1
	exec unshare --net -- "$0" "$@"
fi
ip link set lo up
# Addresses that look public and belong to this machine: those of an interface that is up, of a bridge without a carrier, of
# an interface that is down, and a range that a route makes local.
ip addr add 20.0.1.1/32 dev lo
ip link add bridge type bridge
ip link set bridge up
ip addr add 20.0.1.2/32 dev bridge
ip link add idle type bridge
ip addr add 20.0.1.3/32 dev idle
ip route add local 20.0.2.0/24 dev lo
# All others lead here, too. They do not count as this machine's addresses: their routes are in another table.
ip route add local default dev lo table main
ip -6 route add local default dev lo table main
echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind
echo 1 >/proc/sys/net/ipv6/ip_nonlocal_bind
# No host can answer here: the other end of the cable accepts only packets for itself.
ip link add cable type veth peer name end
ip link set cable arp off up
ip link set end arp off up
ip route add 20.0.8.0/24 dev cable
ip route add unreachable 20.0.9.0/24
exec "$@"
