#!/bin/bash
# Runs commands inside a test machine that arrive through a port, each by itself. An input line is `ID COMMAND`, an output
# line `ID EXIT_CODE STDOUT STDERR`, with commands and texts in base64. The first output line is `up BOOT_ID`.
# Usage: debian-control.sh PORT
set -u
port=$1
spool=$(mktemp -d)
exec 3<>"$port"

answer() {
	flock "$spool" printf '%s\n' "$*" >&3
}

perform() {
	local id=$1 code
	base64 -d <<<"$2" >"$spool/$id.sh"
	(cd /root && exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C \
		sh "$spool/$id.sh" </dev/null >"$spool/$id.out" 2>"$spool/$id.err" 3>&-)
	code=$?
	answer "$id" "$code" "=$(base64 -w 0 "$spool/$id.out")" "=$(base64 -w 0 "$spool/$id.err")"
	rm -f "$spool/$id".*
}

answer up "$(cat /proc/sys/kernel/random/boot_id)"
while read -r id command <&3; do
	perform "$id" "$command" &
done
