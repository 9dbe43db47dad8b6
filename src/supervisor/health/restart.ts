import { instancesIn, type RunningWork } from "../../domain/operator/restart.ts";
import type { Finding } from "./finding.ts";

const NAME = "restart";

/** Effect of a restart on the instances of an appliance that runs. */
export function restartFinding(work: Pick<RunningWork, "leavesInstances" | "operations">): Finding {
  const running = ran(instancesIn(work).length);
  const base = { name: NAME, fix: null };
  if (work.leavesInstances) {
    const meaning = "they run without the daemon, and the next one takes them over";
    return { ...base, state: "ok", summary: `${running}; a restart leaves them`, meaning };
  }
  const meaning = "the service with the unit of the machines leaves them, and so does serve --leave-instances";
  return { ...base, state: "note", summary: `${running}; a stop or restart ends them`, meaning };
}

/** The instances that an appliance has left, which does not run now. */
export function leftFinding(count: number): Finding {
  const base = { name: NAME, fix: null };
  if (count === 0) return { ...base, state: "ok", summary: "no instance runs", meaning: "a start ends nothing" };
  const summary = `${ran(count)} without an appliance`;
  return { ...base, state: "note", summary, meaning: "the next start takes them over; coppice stop --all ends them" };
}

function ran(count: number): string {
  return count === 1 ? "1 instance runs" : `${count === 0 ? "no" : count} instances run`;
}
