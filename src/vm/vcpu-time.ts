import { readdir, readFile } from "node:fs/promises";

/** Processor time of a VMM's processors. */
export interface VcpuTime {
  /** in the guest, in `milliseconds` */
  readonly guestMs: number;
  /** in the host's kernel on the guest's behalf, in `milliseconds` */
  readonly kernelMs: number;
}

/** USER_HZ, the unit of /proc, is the same on every x86_64 kernel. */
const MS_PER_TICK = 10;
/** proc(5): the fields after the name, which may hold spaces and ends with the last parenthesis. */
const SYSTEM_TIME_FIELD = 12;
const GUEST_TIME_FIELD = 40;

/** Reads `/proc/<pid>/task/<tid>/stat`. */
export function parseVcpuTime(stat: string): VcpuTime {
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const ms = (field: number): number => Number(fields[field] ?? 0) * MS_PER_TICK;
  return { guestMs: ms(GUEST_TIME_FIELD), kernelMs: ms(SYSTEM_TIME_FIELD) };
}

/** Sums the threads of `pid` that are named vcpu0, vcpu1 and so on. */
export async function vcpuTime(pid: number): Promise<VcpuTime> {
  const sum = { guestMs: 0, kernelMs: 0 };
  for (const thread of await readdir(`/proc/${pid}/task`)) {
    const directory = `/proc/${pid}/task/${thread}`;
    if (!/^vcpu\d+\n$/.test(await readFile(`${directory}/comm`, "utf8"))) continue;
    const { guestMs, kernelMs } = parseVcpuTime(await readFile(`${directory}/stat`, "utf8"));
    sum.guestMs += guestMs;
    sum.kernelMs += kernelMs;
  }
  return sum;
}
