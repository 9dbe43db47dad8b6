import { constants } from "node:os";
import type { CgroupStats } from "../../cgroup/stats.ts";
import { ApiError } from "../../domain/errors.ts";
import { Spid } from "../../domain/log-event.ts";
import type { Isolation } from "../../domain/operation.ts";
import type { StreamBytes } from "../../storage/events/process-outputs.ts";
import { untilAborted, withinTime } from "../../system/waiting.ts";
import {
  type Agent,
  type AgentConnection,
  AgentError,
  type AgentExecSpec,
  type AgentExit,
  AgentRefusedError,
  type ExecHandle,
} from "../../vm/agent/agent.ts";
import type { OutputSink, OutputStream, StartListener } from "../../vm/agent/process.ts";
import { Refusal } from "../../vm/agent/protocol.ts";
import type { Machine, MachineShape } from "../../vm/vmm.ts";
import { rethrowPathError } from "../machines/guest-errors.ts";
import { explain } from "../machines/machine-errors.ts";
import type { MachineSource, ReadyMachine } from "../machines/machine-source.ts";
import { attachDisks, type Guest, type GuestDisks } from "../machines/steps.ts";
import { ProcessInput } from "./process-input.ts";
import { ProcessTaps } from "./process-taps.ts";
import { copyScratch, type ScratchCopy, type ScratchCopyOptions } from "./scratch-copy.ts";

/** Largest number of a process: an instance cannot start more processes than this over its whole life. */
const SPID_MAX = 65_536;

/** Errors of a start in namespaces whose first process is dying; the last one can have other reasons. */
const ENDING_ERRNOS: ReadonlySet<number> = new Set([
  constants.errno.ESRCH,
  constants.errno.ECHILD,
  constants.errno.ENOMEM,
]);
/** The end of the command is reported within this time after such an error. */
const ENDING_MS_MAX = 2000;

/**
 * A process of an instance. Its promises reject with an ApiError that says what failed in the guest; they need not be
 * awaited.
 */
export interface InstanceProcess extends Pick<ExecHandle, "signal" | "resize" | "limit"> {
  /** number of the process within its instance, in the order of the starts; that of a refused start is given again */
  readonly spid: number;
  readonly hasTerminal: boolean;
  readonly input: ProcessInput;
  readonly taps: ProcessTaps;
  /** Rejects with `invalid_path` when the working directory cannot be entered. */
  readonly started: Promise<void>;
  readonly exit: Promise<AgentExit>;
}

/** Receives the start and the output of a process, and its end before it is announced. */
export interface ProcessSink {
  readonly started: StartListener;
  readonly output: OutputSink;
  /** called with the number of bytes after each write to standard input */
  readonly given: (bytes: number) => void;
  /** returns the sizes of the logged and of the dropped output of a stream so far */
  readonly bytes: (stream: OutputStream) => StreamBytes;
  readonly exited?: (exit: AgentExit) => void;
}

/** A process whose start was requested. */
interface StartedProcess {
  readonly handle: ExecHandle;
  readonly spec: AgentExecSpec;
  readonly sink: ProcessSink;
  readonly taps: ProcessTaps;
  /** called when the process has no end */
  readonly onFailed?: () => void;
}

function tapped({ output }: ProcessSink, taps: ProcessTaps): OutputSink {
  return (stream, chunk) => taps.push(stream, chunk, output(stream, chunk));
}

/**
 * An instance from the moment it has a machine until that is gone: the machine, its agent, the attached disks and the
 * running processes. Disposal kills the machine.
 */
export class RunningInstance implements Guest, AsyncDisposable {
  readonly #ready: ReadyMachine;
  readonly #processes = new Map<number, InstanceProcess>();
  #command: ExecHandle | null = null;
  #disks: GuestDisks | null = null;
  #begun = false;
  #spidLast: number = Spid.command;
  /** numbers below `#spidLast` whose processes were refused, for further starts */
  readonly #refused = new Set<number>();
  #onProcess: (process: InstanceProcess) => void = () => undefined;
  /** the copy of the scratch that is being made */
  #copy: { readonly over: AbortController; readonly settled: Promise<unknown> } | null = null;

  private constructor(ready: ReadyMachine) {
    this.#ready = ready;
  }

  /** @throws as `MachineSource.take` does */
  static async take(machines: MachineSource, shape: MachineShape, signal: AbortSignal): Promise<RunningInstance> {
    return new RunningInstance(await machines.take(shape, signal));
  }

  get machine(): Machine {
    return this.#ready.machine;
  }

  get agent(): Agent {
    return this.#ready.agent;
  }

  get isolation(): Isolation {
    return this.#ready.isolation;
  }

  /** The attached disks; null before `attach`. */
  get disks(): GuestDisks | null {
    return this.#disks;
  }

  /** True once the command has started, even if it has ended: from then on the machine must not be replaced. */
  get hasBegun(): boolean {
    return this.#begun;
  }

  /** True when the command has started and has ended. */
  get hasEnded(): boolean {
    return this.#begun && !this.#processes.has(Spid.command);
  }

  /** True from the start of the command to its end. */
  get isRunning(): boolean {
    return this.#begun && this.#processes.has(Spid.command);
  }

  /** Processes that run or are being started, in the order of their numbers. */
  get processes(): readonly InstanceProcess[] {
    return [...this.#processes.values()];
  }

  /** The running process with that number; null when there is none. */
  process(spid: number): InstanceProcess | null {
    return this.#processes.get(spid) ?? null;
  }

  /** The resources that the machine has used until now. @throws CgroupGoneError when the machine is gone */
  stats(): Promise<CgroupStats> {
    return this.machine.cgroup.stats();
  }

  /** Attaches disks as `attachDisks` does. */
  attach(disks: GuestDisks): ReturnType<typeof attachDisks> {
    this.#disks = disks;
    return attachDisks(this, disks);
  }

  /** Starts the command of the instance after the agent's earlier requests. @throws Error when it was called before */
  start(spec: AgentExecSpec, sink: ProcessSink): InstanceProcess {
    if (this.#command !== null) throw new Error("an instance has one command");
    const taps = new ProcessTaps(sink.bytes);
    const handle = this.agent.exec(spec, tapped(sink, taps), { onStart: sink.started });
    this.#command = handle;
    const command = this.#add(Spid.command, { handle, spec, sink, taps });
    const begin = () => {
      this.#begun = true;
    };
    handle.started.then(begin, () => undefined);
    return command;
  }

  /**
   * Starts a process beside the command, in the command's namespaces. Its promises reject with `too_many_requests` when
   * too many processes run or wait for the guest.
   * @param signal gives the start up while it waits for the guest to take it
   * @throws ApiError `conflict` when the command is not running, or the instance has already started `SPID_MAX` processes
   */
  exec(
    make: (spid: number) => { readonly spec: AgentExecSpec; readonly sink: ProcessSink },
    signal: AbortSignal,
  ): InstanceProcess {
    const beside = this.#running();
    const spid = this.#takeSpid();
    const { spec, sink } = make(spid);
    const taps = new ProcessTaps(sink.bytes);
    let hasStarted = false;
    const onStart = (pid: number): void => {
      hasStarted = true;
      sink.started(pid);
    };
    const run = this.agent.exec(spec, tapped(sink, taps), { beside, onStart, signal });
    const refused = async (error: unknown): Promise<never> => {
      if (await isEnding(beside, error)) throw notRunning();
      throw tooManyOf("processes", error);
    };
    const handle = { ...run, started: run.started.catch(refused), exit: run.exit.catch(refused) };
    const onFailed = () => void (hasStarted || this.#refused.add(spid));
    return this.#add(spid, { handle, spec, sink, taps, onFailed });
  }

  /** Sets the listener that is called with each process when its start is requested, before its first event. */
  listen(listener: (process: InstanceProcess) => void): void {
    this.#onProcess = listener;
  }

  /** True when a process with that number was started, even if it has ended. */
  hasHad(spid: number): boolean {
    const isTaken = spid >= Spid.command && spid <= this.#spidLast && !this.#refused.has(spid);
    return isTaken && this.#command !== null;
  }

  /** Lets all processes end that wait for slow readers of their output. */
  letReadersGo(): void {
    for (const { taps } of this.processes) taps.letGo();
  }

  /** Waits for the ends of all processes beside the command, which die with it. */
  async settled(): Promise<void> {
    const beside = this.processes.filter(({ spid }) => spid !== Spid.command);
    await Promise.allSettled(beside.map(({ exit }) => exit));
  }

  /**
   * Connects to 127.0.0.1:`port` in the guest.
   * @throws ApiError `conflict` when nothing listens on the port, or the command is not running; `too_many_requests` when
   *   there are too many connections; other codes when the guest fails
   */
  async dial(port: number): Promise<AgentConnection> {
    const command = this.#running();
    const dialled = this.agent.dial(port).catch(async (error: unknown) => {
      if (await isEnding(command, error)) throw notRunning();
      throw error instanceof AgentRefusedError ? refusalOf(port, error) : tooManyOf("connections", error);
    });
    return await this.#explained(dialled);
  }

  /**
   * Copies the scratch while the command goes on, one copy at a time. When `signal` fires, it rejects at once and lets
   * the writes go on.
   * @throws ApiError `conflict` when the command is not running, or the copy would take too long; other codes when the
   *   machine or its agent fails; the reason of `signal`
   */
  async copyScratch(options: ScratchCopyOptions): Promise<ScratchCopy> {
    // An abandoned copy may still be about to let the writes go on.
    while (this.#copy !== null) await untilAborted(this.#copy.settled, options.signal);
    this.#running();
    const over = new AbortController();
    const work = copyScratch(this, { ...options, signal: AbortSignal.any([options.signal, over.signal]) });
    const settled = work
      .catch(() => undefined)
      .then(() => {
        this.#copy = null;
      });
    this.#copy = { over, settled };
    return await this.#explained(untilAborted(work, options.signal));
  }

  /** Aborts the copy of the scratch, if one is being made. Resolves when its last request to the agent is done. */
  async endCopy(): Promise<void> {
    this.#copy?.over.abort(new ApiError("conflict", "the instance ended before its files were copied"));
    await this.#copy?.settled;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#ready[Symbol.asyncDispose]();
  }

  /** @throws ApiError `conflict` when none is left */
  #takeSpid(): number {
    const [refused] = this.#refused;
    if (refused !== undefined) {
      this.#refused.delete(refused);
      return refused;
    }
    if (this.#spidLast >= SPID_MAX) {
      throw new ApiError("conflict", `the instance has started ${SPID_MAX} processes, which is the limit`);
    }
    this.#spidLast += 1;
    return this.#spidLast;
  }

  #running(): ExecHandle {
    if (this.#command === null || !this.isRunning) {
      throw notRunning();
    }
    return this.#command;
  }

  #add(spid: number, { handle, spec, sink, taps, onFailed }: StartedProcess): InstanceProcess {
    const { cwd } = spec;
    const entered = handle.started.catch((error: unknown) => rethrowPathError(error, cwd, "entering"));
    const isOpen = spec.stdin === "open" || (spec.stdin !== undefined && "first" in spec.stdin);
    const exit = handle.exit.then((ended) => {
      sink.exited?.(ended);
      return ended;
    });
    const input = new ProcessInput({ handle, isOpen, onGiven: sink.given });
    const added: InstanceProcess = {
      ...handle,
      spid,
      hasTerminal: spec.terminal !== undefined,
      input,
      taps,
      started: this.#explained(entered),
      exit: this.#explained(exit),
    };
    this.#processes.set(spid, added);
    this.#onProcess(added);
    const remove = () => {
      this.#processes.delete(spid);
      taps.end();
      input.end();
    };
    exit.then(remove, () => {
      remove();
      onFailed?.();
    });
    // Both reject when the agent is lost, whether or not they are awaited.
    added.started.catch(() => undefined);
    added.exit.catch(() => undefined);
    return added;
  }

  async #explained<T>(work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      throw await explain(error, this.machine);
    }
  }
}

export function notRunning(): ApiError {
  return new ApiError("conflict", "the command of the instance is not running");
}

/** Waits until it is known whether a start failed with `error` because the command it was to run beside was ending. */
async function isEnding(command: ExecHandle, error: unknown): Promise<boolean> {
  if (!(error instanceof AgentError) || !ENDING_ERRNOS.has(error.errno)) return false;
  const ended = command.exit.then(() => true);
  return await withinTime(ended, ENDING_MS_MAX, () => false);
}

/** The caller's error for a port that did not accept a connection. */
function refusalOf(port: number, { reason }: AgentRefusedError): ApiError {
  const name = REFUSALS[reason] ?? "unreachable";
  return new ApiError("conflict", `port ${port} of the instance took no connection: ${name}`, { port, reason: name });
}

const REFUSALS: Readonly<Record<number, string>> = { [Refusal.refused]: "refused", [Refusal.timedOut]: "timed_out" };

/** The caller's error when the guest has no room for another process or connection; any other error as it is. */
function tooManyOf(kind: "processes" | "connections", error: unknown): unknown {
  if (!(error instanceof AgentError) || error.errno !== constants.errno.EAGAIN) return error;
  const message = `the instance has the largest number of ${kind} that it can have`;
  return new ApiError("too_many_requests", message, { retry_after_seconds: 1 }, { cause: error });
}
