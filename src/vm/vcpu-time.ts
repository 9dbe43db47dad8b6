import { readdir, readFile } from "node:fs/promises";

/** Processor time of the virtual processors of a machine. */
export interface VcpuTime {
  /** spent in the guest, in `milliseconds` */
  readonly guestMs: number;
  /** spent in the host's kernel for the guest, in `milliseconds` */
  readonly kernelMs: number;
}

/** USER_HZ, the unit of times in /proc, is 100 on every x86_64 kernel. */
const MS_PER_TICK = 10;
/** Indexes into the fields after the name (proc(5)). The name may contain spaces; it ends at the last parenthesis. */
const SYSTEM_TIME_FIELD = 12;
const GUEST_TIME_FIELD = 40;

/** Parses `/proc/<pid>/task/<tid>/stat`. */
export function parseVcpuTime(stat: string): VcpuTime {
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const ms = (field: number): number => Number(fields[field] ?? 0) * MS_PER_TICK;
  return { guestMs: ms(GUEST_TIME_FIELD), kernelMs: ms(SYSTEM_TIME_FIELD) };
}

/** Sums up the threads of process `pid` whose names are vcpu0, vcpu1 and so on. */
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
