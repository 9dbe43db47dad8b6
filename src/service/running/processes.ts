import { imageDefaults } from "../../db/images/images.ts";
import { NO_DEFAULTS, onImage } from "../../domain/image-defaults.ts";
import { type LogEvent, type LogEventData, nsOf } from "../../domain/log-event.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";
import { type CommandInput, checkProcess, checkTimeout, type TerminalSize } from "../../domain/spawn.ts";
import type { ScanRequest } from "../../storage/events/event-logs.ts";
import type { EventPosition } from "../../storage/events/position.ts";
import type { OutputVisitor, ScannedEvent } from "../../storage/events/scan.ts";
import { openProcessOutput } from "../../storage/outputs.ts";
import type { InstanceProcess } from "../../supervisor/instance/instance-process.ts";
import type { StartedProcess } from "../../supervisor/instance/running-instances.ts";
import { type CHANGES, type Changed, change } from "../change.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { type Attachment, type AttachRequest, attach } from "./attach.ts";
import {
  type FollowedProcess,
  follow,
  type RunningProcess,
  runFollowed,
  runningProcesses,
  type StartedNow,
  startedProcesses,
} from "./followed.ts";
import { type OutputSource, type Outputs, openOutputs } from "./outputs.ts";
import {
  dataOf,
  endsProcesses,
  idOf,
  liveTarget,
  noSuchProcess,
  onMachine,
  type ProcessName,
  requireProcess,
  resizeTerminal,
  type StoredTarget,
  storedTarget,
  type Target,
} from "./running.ts";

/** A process of an instance, according to the event log. Times are in ns since the epoch. */
export interface Process {
  readonly spid: number;
  /** "lost": the machine or the host failed before the end of the process was known */
  readonly state: "running" | "ended" | "lost";
  readonly startedNs: bigint;
  readonly endedNs: bigint | null;
  readonly spawn: LogEventData["spawn"];
  /** null until it has ended */
  readonly exit: LogEventData["exit"] | null;
}

/** A process with the state of its outputs. */
export interface ProcessDetails extends Process {
  readonly outputs: Readonly<Record<OutputStream, { readonly bytes: number; readonly truncated: boolean }>>;
  /** of the first event that the log has of it; undefined when it has none */
  readonly from: EventPosition | undefined;
}

export interface ProcessPage {
  readonly id: Target;
  readonly limit: number;
  readonly offset: number;
  readonly signal: AbortSignal;
}

/** Bytes for the standard input of a process. */
export interface InputRequest extends ProcessName {
  readonly content: AsyncIterable<Uint8Array> | Iterable<Uint8Array>;
  /** true: close the input after the bytes */
  readonly close: boolean;
  readonly signal: AbortSignal;
}

/**
 * The processes of a target. All functions throw ApiError `not_found` when the target or the process does not exist; those
 * that change something throw `conflict` when the target is not running, or the process has ended.
 */
export interface ProcessUseCases {
  /**
   * Starts an additional process in a running target, and returns its numbers.
   * A paused sandbox that allows it is resumed first.
   * @param signal abandons the start while it waits for a machine, or for the guest to accept it
   * @throws ApiError `validation_error`, `invalid_path`; `too_many_requests` when too many processes run, or too many starts
   *   of the account wait for their guests; the reason of `signal`
   */
  start(principal: Principal, id: Target, request: CommandInput, signal: AbortSignal): Promise<Changed<StartedProcess>>;
  /** A page of the running and ended processes, in the order of their starts. */
  list(principal: Principal, page: ProcessPage): Promise<readonly Process[]>;
  get(principal: Principal, name: ProcessName, signal: AbortSignal): Promise<ProcessDetails>;
  /**
   * Opens the outputs of a process so far. `process` must come from `get`.
   * @throws ApiError as `Accounts.wait` does
   */
  outputs(principal: Principal, id: Target, process: ProcessDetails, signal: AbortSignal): Promise<Outputs>;
  /**
   * Writes to the standard input of a process, as fast as it reads. Resolves when the guest has received all bytes, so that they
   * are not lost with this process of the service.
   * @throws ApiError `conflict` when the input is closed; `too_many_requests` when too many requests write to it
   */
  write(principal: Principal, request: InputRequest): Promise<Changed<void>>;
  /** Sends a signal to the process group of a process. @throws ApiError `too_many_requests` when too many of them wait */
  signal(principal: Principal, name: ProcessName, signal: number): Promise<Changed<void>>;
  /** Attaches a client to a process, as `attach` does. */
  attach(principal: Principal, request: AttachRequest): Promise<Changed<Attachment>>;
  /**
   * Starts a process as `start` does, and follows its output from the first byte, without the log. The process waits for the
   * reader; disposal lets it continue, and its output is only logged then.
   * @param timeoutMs time limit in `milliseconds`, in place of that of the request; null: none
   */
  run(
    principal: Principal,
    id: Target,
    request: Omit<CommandInput, "timeoutSeconds"> & { readonly timeoutMs: number | null },
    signal: AbortSignal,
  ): Promise<Changed<FollowedProcess>>;
  /** Follows the output of a running process from now on, without the log, as `run` does. */
  follow(principal: Principal, name: ProcessName): Promise<Changed<FollowedProcess>>;
  /** The processes that run now, in the order of their starts; none when the target has no machine. */
  running(principal: Principal, id: Target): readonly RunningProcess[];
  /** Sets the size of the terminal of a process. @throws ApiError `conflict` when it has none */
  resize(principal: Principal, name: ProcessName, size: TerminalSize): Promise<Changed<void>>;
}

export function processUseCases(parts: ServiceParts): ProcessUseCases {
  const { instances, layout, accounts, eventLogs } = parts;
  return {
    start: (principal, id, request, signal) => start(parts, principal, { id, request, signal }),
    list: (principal, page) => list(parts, principal, page),
    async get(principal, { id, spid }, signal) {
      const stored = storedTarget(parts, principal, id);
      using _search = await accounts.wait(principal.accountId, "logSearches", { signal });
      const running = startedProcesses(parts, stored, id).find(({ process }) => process.spid === spid);
      const processes = new Map(running === undefined ? [] : [[spid, withoutLog(running)]]);
      const logged = running?.process.logged();
      // Readers of the log can read so much then.
      await eventLogs.written(stored.log.id);
      const outputs = { stdout: { bytes: 0, truncated: false }, stderr: { bytes: 0, truncated: false } };
      let from: EventPosition | undefined;
      const onOutput: OutputVisitor = (ofSpid, stream, bytes, eventId, offset) => {
        if (ofSpid !== spid) return;
        from ??= { id: eventId, offset };
        outputs[stream].bytes += bytes;
      };
      const { instance } = stored.log;
      const first = instance === null ? 0 : instances.firstEventOf(instance, spid);
      for await (const event of scanned(parts, stored, { first, onOutput, signal })) {
        if (endsProcesses(event)) lose(processes);
        if (event.spid !== spid) continue;
        if (from === undefined || event.id < from.id) from = { id: event.id, offset: event.offset };
        update(processes, event);
        if (event.type === "truncated") outputs[dataOf<"truncated">(event).stream].truncated = true;
        if (event.type === "exit") break;
      }
      const process = processes.get(spid);
      if (process === undefined) throw noSuchProcess(spid);
      for (const stream of OUTPUT_STREAMS) {
        outputs[stream].truncated ||= outputs[stream].bytes < (logged?.[stream].kept ?? 0);
      }
      return { ...settled(process, stored), outputs, from };
    },
    async outputs(principal, id, { spid, outputs, from }, signal) {
      const { log } = storedTarget(parts, principal, id);
      const source: OutputSource = {
        bytes: { stdout: outputs.stdout.bytes, stderr: outputs.stderr.bytes },
        open: (stream) => openProcessOutput(layout, log.id, { spid, stream, bytes: outputs[stream].bytes, from }),
      };
      return await openOutputs(parts, principal, source, signal);
    },
    async write(principal, { content, close, signal, ...name }) {
      return await change(parts, principal, processChange("write", name), () =>
        withProcess(parts, principal, name, async (process) => {
          await process.input.writeAll(content, signal);
          if (close) await process.input.close(signal);
          await process.receipt(signal);
        }),
      );
    },
    signal: (principal, name, signal) =>
      change(parts, principal, processChange("signal", name), () =>
        withProcess(parts, principal, name, (process) => process.signal(signal, { group: true })),
      ),
    attach: (principal, request) =>
      change(parts, principal, processChange("attach", request), () => attach(parts, principal, request)),
    ...followedUseCases(parts),
    resize: (principal, name, size) =>
      change(parts, principal, processChange("resize", name), () =>
        withProcess(parts, principal, name, (process) => resizeTerminal(process, size)),
      ),
  };
}

/** The use cases of clients that follow processes without the log. */
function followedUseCases(parts: ServiceParts): Pick<ProcessUseCases, "run" | "follow" | "running"> {
  return {
    run: (principal, id, { timeoutMs, ...request }, signal) =>
      runFollowed((onProcess) => start(parts, principal, { id, request, signal, timeoutMs, onProcess })),
    follow: (principal, name) =>
      change(parts, principal, processChange("attach", name), () => follow(parts, principal, name)),
    running: (principal, id) => runningProcesses(parts, storedTarget(parts, principal, id), id),
  };
}

/** The use case `list`. */
async function list(
  parts: ServiceParts,
  principal: Principal,
  { id, limit, offset, signal }: ProcessPage,
): Promise<readonly Process[]> {
  const stored = storedTarget(parts, principal, id);
  using _search = await parts.accounts.wait(principal.accountId, "logSearches", { signal });
  const page = new Map<number, Process>();
  let [count, runningCount] = [0, 0];
  const add = (process: Process): void => {
    count += 1;
    if (count <= offset || count > offset + limit) return;
    page.set(process.spid, process);
    runningCount += 1;
  };
  // Those whose starts the search has not come to.
  const unseen = startedProcesses(parts, stored, id);
  for await (const event of scanned(parts, stored, { first: 0, onOutput: () => undefined, signal })) {
    for (let [next] = unseen; next !== undefined && next.started.event < event.id; [next] = unseen) {
      add(withoutLog(next));
      unseen.shift();
    }
    if (endsProcesses(event)) {
      lose(page);
      runningCount = 0;
    }
    const { type, spid } = event;
    if (type === "spawn" && spid !== null) {
      if (unseen[0]?.started.event === event.id) unseen.shift();
      add(spawned(spid, event));
    } else if (type === "exit" && page.has(spid ?? 0)) {
      update(page, event);
      runningCount -= 1;
    }
    if (page.size === limit && runningCount === 0) break;
  }
  for (const started of unseen) add(withoutLog(started));
  return [...page.values()].map((process) => settled(process, stored));
}

/** A request with fields of its target where it has none of its own. */
export function withDefaults(request: CommandInput, { env, cwd, user }: StoredTarget["defaults"]): CommandInput {
  const hasUser = request.user !== undefined || request.uid !== undefined || request.gid !== undefined;
  return {
    ...request,
    env: { ...env, ...request.env },
    cwd: request.cwd ?? cwd,
    user: hasUser ? request.user : user,
  };
}

interface Start {
  readonly id: Target;
  readonly request: CommandInput;
  readonly signal: AbortSignal;
  /** in place of the time limit of the request, in `milliseconds`; null: none */
  readonly timeoutMs?: number | null;
  readonly onProcess?: (process: InstanceProcess) => void;
}

/** The use case `start`. */
async function start(
  parts: ServiceParts,
  principal: Principal,
  { id, request, signal, onProcess, ...limit }: Start,
): Promise<Changed<StartedProcess>> {
  const { imageId, defaults: own, outputBytes, timeoutSecondsMax, refusal } = storedTarget(parts, principal, id);
  const checked = checkProcess(withDefaults(request, own), outputBytes);
  // An instance that is not running may have lost its image.
  const defaults = checked.inherit && imageId !== null ? imageDefaults(parts.db, imageId) : NO_DEFAULTS;
  const command = onImage(checked, defaults);
  const { timeoutSeconds } = request;
  const requestedMs = timeoutSeconds === undefined ? null : checkTimeout(timeoutSeconds, timeoutSecondsMax) * 1000;
  const timeoutMs = limit.timeoutMs === undefined ? requestedMs : limit.timeoutMs;
  using _start = parts.accounts.take(principal.accountId, "processStarts");
  const what = { noun: "process", verb: "start", id: ({ spid }: StartedProcess) => `${idOf(id)}/${spid}` } as const;
  return await change(parts, principal, what, async () => {
    using live = await liveTarget(parts, principal, id, { signal, resumes: true });
    const work = () => parts.instances.exec(live.id, command, { timeoutMs, defaults, signal, onProcess });
    const process = await onMachine(parts, id, live, work);
    if (process === null) throw refusal();
    return process;
  });
}

function processChange<Verb extends (typeof CHANGES)["process"][number]>(verb: Verb, { id, spid }: ProcessName) {
  return { noun: "process", verb, id: `${idOf(id)}/${spid}` } as const;
}

/** Does `work` with a running process. @throws ApiError `not_found`, `conflict`; as `work` does */
async function withProcess(
  parts: ServiceParts,
  principal: Principal,
  name: ProcessName,
  work: (process: InstanceProcess) => void | Promise<void>,
): Promise<void> {
  // A process of an earlier machine is gone: another machine would not bring it back.
  const { signal } = new AbortController();
  using live = await liveTarget(parts, principal, name.id, { signal, resumes: false });
  await work(requireProcess(live, name));
}

interface Search extends Pick<ScanRequest, "first" | "onOutput"> {
  readonly signal: AbortSignal;
}

/** The events of a target until now, without outputs. @throws the reason of `signal` */
async function* scanned(
  { eventLogs }: ServiceParts,
  { log }: StoredTarget,
  { first, onOutput, signal }: Search,
): AsyncGenerator<ScannedEvent, void, undefined> {
  for await (const events of eventLogs.scan(log.id, { first, hasEnded: log.hasEnded, onOutput })) {
    signal.throwIfAborted();
    yield* events;
  }
}

/** A process that runs now, without the log: that, a ring, may have dropped its start, or drop it during a search. */
function withoutLog({ process, started }: StartedNow): Process {
  const { spid, pid, start } = process.logged();
  return { spid, state: "running", startedNs: nsOf(started.ms), endedNs: null, spawn: { pid, ...start }, exit: null };
}

/** Marks all running processes as lost. */
function lose(processes: Map<number, Process>): void {
  for (const process of processes.values()) {
    if (process.state === "running") processes.set(process.spid, { ...process, state: "lost" });
  }
}

/** The process of an event about a start. */
function spawned(spid: number, event: LogEvent): Process {
  const { timeNs } = event;
  return { spid, state: "running", startedNs: timeNs, endedNs: null, spawn: dataOf<"spawn">(event), exit: null };
}

/** Updates `processes` by an event about a start or an end. */
function update(processes: Map<number, Process>, event: LogEvent): void {
  const { spid, type, timeNs } = event;
  if (spid === null) return;
  if (type === "spawn") processes.set(spid, spawned(spid, event));
  const process = processes.get(spid);
  if (type !== "exit" || process === undefined) return;
  processes.set(spid, { ...process, state: "ended", endedNs: timeNs, exit: dataOf<"exit">(event) });
}

/** Marks a process as lost when its target has ended, but the log does not have the end of the process. */
function settled(process: Process, { log }: StoredTarget): Process {
  return process.state === "running" && log.hasEnded ? { ...process, state: "lost" } : process;
}
