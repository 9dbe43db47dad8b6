import { Spid } from "../../domain/log-event.ts";
import type { InstanceProcess } from "../../supervisor/instance/instance-process.ts";
import type { StartedProcess } from "../../supervisor/instance/running-instances.ts";
import { type Changed, unchanged } from "../change.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { type Attached, fromTap, type TappedProcess } from "./attach.ts";
import { liveTarget, type ProcessName, requireProcess, type StoredTarget, type Target } from "./running.ts";

/** A process of a machine that runs now. */
export interface RunningProcess {
  readonly spid: number;
  /** in the guest */
  readonly pid: number;
  readonly hasTerminal: boolean;
  readonly command: string;
  readonly args: readonly string[];
  readonly cwd: string;
  /** the same object as long as the process runs, for facts that its user keeps */
  readonly identity: object;
}

/** The output of a process for one client, which must dispose of it. */
export interface FollowedProcess extends RunningProcess, Disposable {
  /** Items until the end of the process, for one reader, who has read an item when it requests the next. */
  items(): AsyncGenerator<Attached, unknown, undefined>;
}

/** Opens a tap before the first output of the process that `start` starts. @throws as `start` does */
export async function runFollowed(
  start: (onProcess: (process: InstanceProcess) => void) => Promise<StartedProcess>,
): Promise<Changed<FollowedProcess>> {
  using stack = new DisposableStack();
  const opened: TappedProcess[] = [];
  await start((process) => opened.push({ process, tap: stack.use(process.taps.open()) }));
  const [tapped] = opened;
  if (tapped === undefined) throw new Error("a start without a process");
  const held = stack.move();
  return unchanged(followed(tapped, held));
}

/** The use case `follow`. @throws ApiError `too_many_requests` when too many clients follow the process */
export async function follow(parts: ServiceParts, principal: Principal, name: ProcessName): Promise<FollowedProcess> {
  using stack = new DisposableStack();
  const { signal } = new AbortController();
  const live = stack.use(await liveTarget(parts, principal, name.id, { signal, resumes: false }));
  const process = requireProcess(live, name);
  const tapped = { process, tap: stack.use(process.taps.open()) };
  return followed(tapped, stack.move());
}

/** A process that runs now, and its start in the log. */
export interface StartedNow {
  readonly process: InstanceProcess;
  readonly started: NonNullable<ReturnType<InstanceProcess["logged"]>["started"]>;
}

/** The processes of a target that run now, in the order of their starts. */
export function startedProcesses(
  { instances }: Pick<ServiceParts, "instances">,
  { log: { instance } }: StoredTarget,
  id: Target,
): StartedNow[] {
  const processes = instance === null ? [] : (instances.find(instance)?.processes ?? []);
  // The command of a sandbox's machine is not one of its processes: it only keeps the machine.
  const first = typeof id === "string" ? Spid.command : Spid.command + 1;
  return processes
    .flatMap((process) => {
      const started = process.spid < first ? null : process.logged().started;
      return started === null ? [] : [{ process, started }];
    })
    .sort((one, other) => one.started.event - other.started.event);
}

/** The use case `running`. */
export function runningProcesses(
  parts: Pick<ServiceParts, "instances">,
  stored: StoredTarget,
  id: Target,
): readonly RunningProcess[] {
  return startedProcesses(parts, stored, id).map(({ process }) => described(process));
}

function described(process: InstanceProcess): RunningProcess {
  const { pid, start } = process.logged();
  const { command, args, cwd } = start;
  return { spid: process.spid, pid, hasTerminal: process.hasTerminal, command, args, cwd, identity: process };
}

function followed(tapped: TappedProcess, held: DisposableStack): FollowedProcess {
  return { ...described(tapped.process), items: () => fromTap(tapped), [Symbol.dispose]: () => held.dispose() };
}
