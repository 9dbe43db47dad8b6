/** Exit code of the wrapper when the program was not even started. */
export const CONFINEMENT_FAILED_EXIT = 125;

/** unshare cannot pass SIGKILL on, and says this of itself instead. */
const KILLED_WORDS = /unshare: sigprocmask unblock failed: Invalid argument$/;

/** Whether a confined program seems to have been ended by SIGKILL, which the kernel also does for want of memory. */
export function wasKilledInside(confinement: Confinement | undefined, stderr: string): boolean {
  return confinement !== undefined && KILLED_WORDS.test(stderr);
}

/** What a program can see and reach of the host beside its own files. */
export interface Confinement {
  /** absolute paths of directories that it may change */
  readonly writable: readonly string[];
  /** absolute paths of directories that it may read */
  readonly readable: readonly string[];
  /** file of the network namespace that it runs in; null for one without any interface but a loopback that is down */
  readonly network: string | null;
  /** what it keeps of root's powers; default none */
  readonly capabilities?: readonly Capability[];
}

/** A power of root, as setpriv spells it. */
export type Capability = "chown" | "dac_override" | "fowner" | "fsetid" | "mknod" | "setfcap" | "sys_admin";

/**
 * Makes a root file system in new namespaces of mounts and processes, and starts the program in it: the host's
 * programs and libraries, read-only; of /etc what finds libraries, hosts and, for a network, authorities; three devices;
 * the given directories, in which no device can be opened. Nothing else of the host has a name there, so whatever the
 * program can be talked into by what it reads, it finds neither keys nor database.
 */
const SCRIPT = `
set -eu
trap 'exit ${CONFINEMENT_FAILED_EXIT}' EXIT
here=$PWD
mount -t tmpfs -o mode=755,size=4m,nosuid,nodev tmpfs /mnt
cd /mnt
for each in /usr /bin /sbin /lib /lib32 /lib64 /libx32; do
	if [ -L "$each" ]; then
		links="\${links-} $each"
	elif [ -d "$each" ]; then
		mkdir ".$each"
		mount -o bind,ro,nosuid,nodev "$each" ".$each"
	fi
done
cp -P \${links-} .
mkdir -p old proc dev tmp run etc
files=
for each in host.conf hosts ld.so.cache localtime mke2fs.conf nsswitch.conf services; do
	if [ -e "/etc/$each" ] || [ -L "/etc/$each" ]; then files="$files /etc/$each"; fi
done
cp -P $files etc
if [ "$1" = network ]; then
	for each in /etc/ca-certificates /etc/pki/ca-trust/extracted /etc/pki/tls/certs /etc/ssl/certs; do
		[ -d "$each" ] || continue
		mkdir -p ".$each"
		mount -o bind,ro,nosuid,nodev,noexec "$each" ".$each"
	done
fi
mount -t proc -o ro,nosuid,nodev,noexec proc proc
for each in null zero urandom; do
	: >"dev/$each"
	mount --bind "/dev/$each" "dev/$each"
done
capabilities=$2
shift 2
options=bind,nosuid,nodev,noexec
while [ "$1" != command ]; do
	case $1 in
	readable) options=bind,ro,nosuid,nodev,noexec ;;
	*)
		mkdir -p ".$1"
		mount -o "$options" "$1" ".$1"
		;;
	esac
	shift
done
shift
mount -o remount,ro,mode=755 /mnt
pivot_root . old
umount -l /old
cd "$here" 2>/dev/null || cd /
trap - EXIT
exec /usr/bin/setpriv --no-new-privs --inh-caps=-all --bounding-set="$capabilities" -- "$@"
`;

/** In /proc of another one's, a link leads to each process's root file system. */
const PROCESSES = ["--pid", "--fork", "--kill-child=KILL"] as const;

/** Command line that runs a program confined; empty for none. */
export function confinementWrapper(confinement: Confinement | undefined): string[] {
  if (confinement === undefined) return [];
  const { writable, readable, network, capabilities = [] } = confinement;
  const enter = network === null ? [] : ["/usr/bin/nsenter", `--net=${network}`, "--"];
  const namespaces = [...PROCESSES, "--mount", "--propagation", "private", ...(network === null ? ["--net"] : [])];
  const kept = ["-all", ...capabilities.map((name) => `+${name}`)].join(",");
  const arguments_ = [network === null ? "alone" : "network", kept, ...writable, "readable", ...readable, "command"];
  return [...enter, "/usr/bin/unshare", ...namespaces, "--", "/bin/sh", "-c", SCRIPT, "sh", ...arguments_];
}
