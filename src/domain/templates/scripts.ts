/** Exit code of a script of the root that has written the reason in its last line. */
export const EXPLAINED = 101;

/** Runs `$1` in a login shell: the best that the image has. */
export const SHELL_SCRIPT = `if [ -x /bin/bash ]; then exec /bin/bash -l -c "$1"; fi
exec /bin/sh -l -c "$1"
`;

/** The command of a template in a sandbox: shell text, run as the steps of builds are. */
export function loginCommand(text: string) {
  return { command: SHELL_SCRIPT, args: [text], shell: true, inherit: true, lingers: true } as const;
}

/** Makes the directory $1 and those above it, which belong to $2 then. */
export const DIRECTORY_SCRIPT = `set -eu
[ ! -d "$1" ] || exit 0
first=
above=$1
while [ ! -d "$above" ]; do
  first=$above
  above=\${above%/*}
  [ -n "$above" ] || above=/
done
mkdir -p "$1"
chown -R "$2" "$first"
`;

/** Directory of the guest that holds the archive of a copy, and is removed after it. */
export const COPY_DIRECTORY = "/.template-build";
export const COPY_ARCHIVE = `${COPY_DIRECTORY}/archive`;

/**
 * Unpacks the archive, with the further option $1 of tar, and copies $2 of it to $3 for the owner $4 with the mode $5. A
 * relative $3 is below $6 or, if that is empty, the home of the user $7. $8 is not empty when $2 is what is before a
 * pattern, so a directory whose content is copied. Directories are merged; links stay links.
 */
export const COPY_SCRIPT = `set -eu
option=$1 source=$2 target=$3 owner=$4 mode=$5 directory=$6 user=$7 pattern=$8
refuse() { echo "$1" >&2; exit ${EXPLAINED}; }
command -v tar >/dev/null 2>&1 || refuse "the image has no tar, which COPY needs"
unpacked=${COPY_DIRECTORY}/files
mkdir -p "$unpacked"
tar -x$option -f ${COPY_ARCHIVE} -C "$unpacked"
if [ -z "$directory" ]; then
  directory=/
  while IFS=: read -r name _ _ _ _ home _; do [ "$name" != "$user" ] || directory=$home; done </etc/passwd
fi
case $target in /*) ;; *) target=\${directory%/}/$target ;; esac
entry=$unpacked\${source:+/$source}
if [ ! -e "$entry" ] && [ ! -L "$entry" ]; then refuse "the archive has no $source"; fi
chown -hR "$owner" "$entry"
if [ -d "$entry" ] && [ ! -L "$entry" ]; then
  [ -z "$mode" ] || chmod -R "$mode" "$entry"
  [ -d "$target" ] || { mkdir -p "$target"; chown "$owner" "$target"; }
  # To move a whole directory takes no time.
  for each in "$entry"/* "$entry"/.[!.]*; do
    [ ! -d "$each" ] || [ -L "$each" ] || [ -e "$target/\${each##*/}" ] || [ -L "$target/\${each##*/}" ] ||
      mv "$each" "$target/"
  done
  sparse= merge=
  case $(tar --help 2>&1) in
    *keep-directory-symlink*) sparse=--sparse merge="--keep-directory-symlink --no-overwrite-dir" ;;
  esac
  (cd "$entry" && tar -cf - $sparse .) | tar -xf - -C "$target" $merge
else
  [ -z "$mode" ] || [ -L "$entry" ] || chmod "$mode" "$entry"
  case $target in */ | */. | */..) mkdir -p "$target" ;; *) [ -n "$pattern" ] || mkdir -p "\${target%/*}/" ;; esac
  mv -f "$entry" "$target"
fi
rm -rf ${COPY_DIRECTORY}
`;

/**
 * Runs the command $1, and then $2 again and again until it succeeds. Ends with EXPLAINED as soon as $1 has failed.
 * Processes of $1 end with the machine.
 */
export const READY_SCRIPT = `shell() { if [ -x /bin/bash ]; then /bin/bash -l -c "$1"; else /bin/sh -l -c "$1"; fi; }
main=$$
trap 'exit ${EXPLAINED}' USR1
if [ -n "$1" ]; then
  (shell "$1" || { echo "start command failed: exit status $?" >&2; kill -s USR1 "$main"; }) &
fi
until shell "$2"; do sleep 1; done
`;
