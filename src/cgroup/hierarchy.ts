/** A mounted cgroup hierarchy, with one controller or several. */
export interface Hierarchy {
  readonly version: "v1" | "v2";
  /** controllers of a v1 hierarchy; empty for v2, where each cgroup lists its controllers in a file */
  readonly controllers: readonly string[];
  /** absolute path of the mount */
  readonly mount: string;
  /** absolute path of this process's own cgroup in the hierarchy */
  readonly own: string;
}

/** Controllers that the cgroups of VMs use. */
export const CONTROLLERS = ["memory", "cpu", "cpuacct", "pids"] as const;

interface Mount {
  readonly root: string;
  readonly point: string;
  readonly type: string;
  readonly options: readonly string[];
}

/** The kernel writes blanks in these tables as octal escapes. */
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

/** Paths of this process's cgroups: by controller for v1, under "" for v2. */
function parseOwn(selfCgroup: string): Map<string, string> {
  const own = new Map<string, string>();
  for (const line of selfCgroup.split("\n")) {
    const match = /^\d+:([^:]*):(\/.*)$/.exec(line);
    if (match === null) continue;
    for (const controller of (match[1] ?? "").split(",")) own.set(controller, match[2] ?? "/");
  }
  return own;
}

/** In a container, the mount shows only the part of the hierarchy below `root`, but `path` is absolute. */
function ownDirectory(mount: Mount, path: string): string {
  const inside = path === mount.root ? "" : path.startsWith(`${mount.root}/`) ? path.slice(mount.root.length) : path;
  return `${mount.point}${inside === "/" ? "" : inside}`;
}

/**
 * The hierarchies that are used: every v1 hierarchy with one of `CONTROLLERS`, and the v2 hierarchy if there is one.
 * @param mountinfo text of /proc/self/mountinfo
 * @param selfCgroup text of /proc/self/cgroup
 */
export function findHierarchies(mountinfo: string, selfCgroup: string): Hierarchy[] {
  const own = parseOwn(selfCgroup);
  const hierarchies: Hierarchy[] = [];
  for (const mount of parseMounts(mountinfo)) {
    if (hierarchies.some((hierarchy) => hierarchy.mount === mount.point)) continue;
    if (mount.type === "cgroup2") {
      const path = own.get("");
      if (path === undefined) continue;
      hierarchies.push({ version: "v2", controllers: [], mount: mount.point, own: ownDirectory(mount, path) });
    }
    if (mount.type === "cgroup") {
      const controllers = CONTROLLERS.filter((controller) => mount.options.includes(controller));
      const path = own.get(controllers[0] ?? "none");
      if (path === undefined) continue;
      hierarchies.push({ version: "v1", controllers, mount: mount.point, own: ownDirectory(mount, path) });
    }
  }
  return hierarchies;
}
