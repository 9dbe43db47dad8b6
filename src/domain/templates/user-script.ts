/** True for a name that tools for users accept: it is safe in a path and in a line of passwd. */
export function isUserName(name: string): boolean {
  return /^[a-z_][a-z0-9_-]{0,31}$/.test(name);
}

/**
 * Shell text that adds a user to a guest, unless one of that name exists: a home, a shell, and sudo without a password where
 * the guest has sudo. Its only argument is the name. The user's id is 1000, or the next free one. Only the shell and mkdir,
 * chown and chmod are needed, so that images without tools for users work.
 */
export const USER_SCRIPT = `set -eu
name=$1
named() { while IFS=: read -r entry _; do [ "$entry" != "$2" ] || return 0; done <"$1"; return 1; }
numbered() { while IFS=: read -r _ _ entry _; do [ "$entry" != "$2" ] || return 0; done <"$1"; return 1; }
append() { printf '%s\\n' "$2" >>"$1"; }
whole() {
  last=
  while IFS= read -r last; do last=; done <"$1"
  [ -z "$last" ] || append "$1" ""
}
mkdir -p /etc
for file in /etc/passwd /etc/group; do [ -e "$file" ] || : >"$file"; done
for file in /etc/passwd /etc/group /etc/shadow /etc/sudoers; do [ ! -e "$file" ] || whole "$file"; done
if ! named /etc/passwd "$name"; then
  id=1000
  while numbered /etc/passwd "$id" || numbered /etc/group "$id"; do id=$((id + 1)); done
  gid=$id
  if named /etc/group "$name"; then
    while IFS=: read -r entry _ number _; do [ "$entry" != "$name" ] || gid=$number; done </etc/group
  else
    append /etc/group "$name:x:$gid:"
  fi
  shell=/bin/sh
  [ ! -x /bin/bash ] || shell=/bin/bash
  append /etc/passwd "$name:x:$id:$gid::/home/$name:$shell"
  [ ! -e /etc/shadow ] || append /etc/shadow "$name:*:::::::"
  mkdir -p "/home/$name"
  [ ! -d /etc/skel ] || cp -R /etc/skel/. "/home/$name/"
  chown -R "$id:$gid" "/home/$name"
  chmod 755 "/home/$name"
  rule="$name ALL=(ALL:ALL) NOPASSWD: ALL"
  if [ -d /etc/sudoers.d ]; then
    printf '%s\\n' "$rule" >"/etc/sudoers.d/$name"
    chmod 440 "/etc/sudoers.d/$name"
  elif [ -e /etc/sudoers ]; then
    append /etc/sudoers "$rule"
  fi
fi
`;
