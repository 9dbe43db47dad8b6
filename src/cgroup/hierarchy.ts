/** A mounted tree of control groups, as one controller or several see the processes. */
export interface Hierarchy {
  readonly version: "v1" | "v2";
  /** v1 controllers of the tree; empty for v2, whose groups name theirs in a file */
  readonly controllers: readonly string[];
  /** absolute path of the mount */
  readonly mount: string;
  /** absolute path of this process's own group in the tree */
  readonly own: string;
}

/** Controllers that a VM's group uses; other v1 trees are left alone. */
export const CONTROLLERS = ["memory", "cpu", "cpuacct", "pids"] as const;

interface Mount {
  readonly root: string;
  readonly point: string;
  readonly type: string;
  readonly options: readonly string[];
}

/** Octal escapes stand for blanks in the kernel's tables. */
function decodeField(field: string): string {
  return field.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
}

function parseMounts(mountinfo: string): Mount[] {
  return mountinfo.split("\n").flatMap((line) => {
    const [left, right] = line.split(" - ");
    if (left === undefined || right === undefined) return [];
    const [, , , root, point] = left.split(" ");
    const [type, , options] = right.split(" ");
    if (root === undefined || point === undefined || type === undefined || options === undefined) return [];
    return [{ root: decodeField(root), point: decodeField(point), type, options: options.split(",") }];
  });
}

/** Own group of each tree: "" for v2, otherwise by controller. */
function parseOwn(selfCgroup: string): Map<string, string> {
  const own = new Map<string, string>();
  for (const line of selfCgroup.split("\n")) {
    const match = /^\d+:([^:]*):(\/.*)$/.exec(line);
    if (match === null) continue;
    for (const controller of (match[1] ?? "").split(",")) own.set(controller, match[2] ?? "/");
  }
  return own;
}

/** A container sees a part of a tree: its mount begins at `root`, and `path` is told from the whole tree. */
function ownDirectory(mount: Mount, path: string): string {
  const inside = path === mount.root ? "" : path.startsWith(`${mount.root}/`) ? path.slice(mount.root.length) : path;
  return `${mount.point}${inside === "/" ? "" : inside}`;
}

/**
 * The trees that matter here: every v1 tree with one of `CONTROLLERS`, and the v2 tree when there is one.
 * @param mountinfo text of /proc/self/mountinfo
 * @param selfCgroup text of /proc/self/cgroup
 */
export function findHierarchies(mountinfo: string, selfCgroup: string): Hierarchy[] {
  const own = parseOwn(selfCgroup);
  const found: Hierarchy[] = [];
  for (const mount of parseMounts(mountinfo)) {
    if (found.some((hierarchy) => hierarchy.mount === mount.point)) continue;
    if (mount.type === "cgroup2") {
      const path = own.get("");
      if (path === undefined) continue;
      found.push({ version: "v2", controllers: [], mount: mount.point, own: ownDirectory(mount, path) });
    }
    if (mount.type === "cgroup") {
      const controllers = CONTROLLERS.filter((controller) => mount.options.includes(controller));
      const path = own.get(controllers[0] ?? "none");
      if (path === undefined) continue;
      found.push({ version: "v1", controllers, mount: mount.point, own: ownDirectory(mount, path) });
    }
  }
  return found;
}
