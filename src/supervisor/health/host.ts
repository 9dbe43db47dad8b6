import { accessSync, constants, existsSync, readFileSync, statfsSync } from "node:fs";
import { dirname } from "node:path";
import { shownSize } from "../../domain/text/shown.ts";
import type { Finding } from "./finding.ts";

/** Free space below this is a note, in `bytes`. */
const FREE_BYTES_LOW = 5 * 1024 ** 3;

export function processorFinding(cpuinfo: string, architecture: string): Finding {
  const base = { name: "processor", meaning: "the executable needs x86_64 with AVX2", fix: null };
  if (architecture !== "x64") return { ...base, state: "problem", summary: `architecture ${architecture}` };
  const flags = /^flags\s*:(.*)$/m.exec(cpuinfo)?.[1]?.split(/\s+/) ?? [];
  const avx2 = flags.includes("avx2");
  return { ...base, state: avx2 ? "ok" : "problem", summary: avx2 ? "x86_64 with AVX2" : "x86_64 without AVX2" };
}

export function rootFinding(uid: number): Finding {
  return {
    name: "root",
    state: uid === 0 ? "ok" : "problem",
    summary: uid === 0 ? "running as root" : `running as uid ${uid}`,
    meaning: "jailing a VM takes namespaces and a change of user id; the VMs themselves run without any privilege",
    fix: uid === 0 ? null : "sudo coppice doctor",
  };
}

export function cgroupFinding(mountinfo: string): Finding {
  const types = [...mountinfo.matchAll(/ - (cgroup2?) \S+ (\S+)$/gm)];
  const v1 = types.filter(([, type]) => type === "cgroup").map(([, , options]) => options ?? "");
  const base = { name: "cgroups", fix: null };
  if (v1.some((options) => options.split(",").includes("memory"))) {
    const meaning = "memory limits, figures and ending of each VM work; further limits need version 2";
    return { ...base, state: "note", summary: "version 1, or both", meaning };
  }
  if (types.some(([, type]) => type === "cgroup2")) {
    return { ...base, state: "ok", summary: "version 2", meaning: "limits and figures per VM" };
  }
  return { ...base, state: "problem", summary: "not mounted", meaning: "a VM cannot be limited, measured or ended" };
}

export function dataFinding(dataDirectory: string): Finding {
  const base = { name: "data directory", meaning: "layers, files and the database live there", fix: null };
  let existing = dataDirectory;
  while (!existsSync(existing)) existing = dirname(existing);
  try {
    accessSync(existing, constants.W_OK);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const fix = process.getuid?.() === 0 ? null : "sudo coppice doctor";
    return { ...base, state: "problem", summary: `${dataDirectory} is not writable: ${code}`, fix };
  }
  if (mountOptions(readText("/proc/self/mountinfo") ?? "", existing).includes("noexec")) {
    const meaning = "the launcher of VMs is started from there";
    return { ...base, state: "problem", summary: `${dataDirectory} is mounted noexec`, meaning };
  }
  const { bavail, bsize } = statfsSync(existing);
  const free = bavail * bsize;
  const state = free < FREE_BYTES_LOW ? "note" : "ok";
  return { ...base, state, summary: `${dataDirectory}, ${shownSize(free)} free` };
}

/** Options of the mount that holds `path`. */
export function mountOptions(mountinfo: string, path: string): string[] {
  let best = { point: "", options: "" };
  for (const line of mountinfo.split("\n")) {
    const [, , , , point = "", options = ""] = line.split(" ");
    const holds = point !== "" && (path === point || path.startsWith(point === "/" ? "/" : `${point}/`));
    // A later line with the same point lies on top.
    if (holds && point.length >= best.point.length) best = { point, options };
  }
  return best.options.split(",");
}

/** The text of a file; null when there is none. */
export function readText(path: string): string | null {
  return existsSync(path) ? readFileSync(path, "utf8") : null;
}
