import type { CgroupStats } from "../../cgroup/stats.ts";
import { ApiError } from "../../domain/errors.ts";
import { Spid } from "../../domain/log-event.ts";
import type { Isolation } from "../../domain/operation.ts";
import { SIGKILL_SIGNAL } from "../../domain/signals.ts";
import { untilAborted } from "../../system/waiting.ts";
import {
  type Agent,
  type AgentConnection,
  type AgentExecSpec,
  AgentRefusedError,
  type ExecHandle,
} from "../../vm/agent/agent.ts";
import type { Machine, MachineShape } from "../../vm/vmm.ts";
import { rethrowPathError } from "../machines/guest-errors.ts";
import { explain } from "../machines/machine-errors.ts";
import type { MachineSource, ReadyMachine } from "../machines/machine-source.ts";
import { attachDisks, type Guest, type GuestDisks } from "../machines/steps.ts";
import { InstanceFiles } from "./instance-files.ts";
import {
  type InstanceProcess,
  type InstanceRecord,
  type NumbersOptions,
  ProcessNumbers,
  type ProcessSink,
  type StartedProcess,
  startedFrom,
  tapped,
} from "./instance-process.ts";
import { ProcessInput } from "./process-input.ts";
import { ProcessTaps } from "./process-taps.ts";
import { isEnding, notRunning, refusalOf, tooManyOf } from "./refusals.ts";
import { copyScratch, type ScratchCopy, type ScratchCopyOptions } from "./scratch-copy.ts";

/** A process that another object has started. */
export interface ContinuedProcess extends StartedProcess {
  readonly spid: number;
  readonly hasStarted: boolean;
  /** true: its first input is not complete, and the rest is lost */
  readonly isCut: boolean;
}

export interface ContinuedInstance {
  readonly disks: GuestDisks | null;
  readonly numbers: ProcessNumbers;
  /** the command first */
  readonly processes: readonly ContinuedProcess[];
  /** see `RunningInstance.isFrozen` */
  readonly isFrozen?: boolean;
}

/**
 * An instance from the moment it has a machine until that is gone: the machine, its agent, the attached disks and the
 * running processes. Disposal kills the machine.
 */
export class RunningInstance implements Guest, AsyncDisposable {
  /** to be aborted with the reason, an ApiError, when the instance cannot continue although its machine runs */
  readonly failure = new AbortController();
  readonly #ready: ReadyMachine;
  readonly #processes = new Map<number, InstanceProcess>();
  #command: ExecHandle | null = null;
  #first: InstanceProcess | null = null;
  #disks: GuestDisks | null = null;
  #begun = false;
  #isFrozen = false;
  readonly #numbers: ProcessNumbers;
  #onProcess: (process: InstanceProcess) => void = () => undefined;
  /** the copy of the scratch that is being made */
  #copy: { readonly over: AbortController; readonly settled: Promise<unknown> } | null = null;

  private constructor(ready: ReadyMachine, numbers: ProcessNumbers) {
    this.#ready = ready;
    this.#numbers = numbers;
  }

  /** @throws as `MachineSource.take` does */
  static async take(
    machines: MachineSource,
    shape: MachineShape,
    signal: AbortSignal,
    numbers?: NumbersOptions,
  ): Promise<RunningInstance> {
    return new RunningInstance(await machines.take(shape, signal), new ProcessNumbers(numbers));
  }

  /**
   * Continues in a machine whose processes another object has started. An additional process that is cut off from the rest of
   * its first input is killed.
   */
  static continue(
    ready: ReadyMachine,
    { disks, numbers, processes, isFrozen = false }: ContinuedInstance,
  ): RunningInstance {
    const instance = new RunningInstance(ready, numbers);
    instance.#disks = disks;
    instance.#isFrozen = isFrozen;
    for (const process of processes) instance.#continue(process);
    return instance;
  }

  /**
   * Stops the stream to the guest, as `Agent.hold` does, when no copy of the scratch is being made. Until the next
   * `Agent.sync`, `record` can be called.
   * @param signal as in `Agent.hold`
   */
  async hold(signal?: AbortSignal): Promise<void> {
    while (this.#copy !== null) await this.#copy.settled;
    await this.agent.hold(signal);
  }

  /**
   * To be called during a hold. A process whose request waits for the end of the hold counts as refused.
   * @throws Error without a hold; ApiError `conflict` when the command is not running
   */
  record(): InstanceRecord {
    this.#running();
    const agent = this.agent.record();
    const sessions = new Set(agent.processes.map(({ session }) => session));
    const processes = this.processes.map((process) => process.record());
    return {
      agent,
      disks: this.#disks,
      spidLast: this.#numbers.last,
      refused: [...this.#numbers.refused, ...processes.flatMap(({ spid, session }) => (session === 0 ? [spid] : []))],
      processes: processes.filter(({ session }) => sessions.has(session)),
    };
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

  /** True when an earlier object has frozen the scratch, after the end of the command. */
  get isFrozen(): boolean {
    return this.#isFrozen;
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

  /** The command, even if it has ended. @throws Error when it was not requested */
  get command(): InstanceProcess {
    if (this.#first === null) throw new Error("the instance has no command yet");
    return this.#first;
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
    const { onOutput, ...ends } = tapped(sink, taps);
    const handle = this.agent.exec(spec, onOutput, { ...ends, spid: Spid.command });
    this.#command = handle;
    const command = this.#add(Spid.command, { ...startedFrom(spec), handle, sink, taps });
    this.#awaitStart(handle);
    return command;
  }

  /**
   * Starts an additional process in the command's namespaces. Its promises reject with `too_many_requests` when
   * too many processes run or wait for the guest.
   * @param signal abandons the start while it waits for the guest to accept it
   * @throws ApiError `conflict` when the command is not running, or the instance has started too many processes
   */
  exec(
    make: (spid: number) => { readonly spec: AgentExecSpec; readonly sink: ProcessSink },
    signal: AbortSignal,
  ): InstanceProcess {
    const command = this.#running();
    const spid = this.#numbers.take();
    const { spec, sink } = make(spid);
    const taps = new ProcessTaps(sink.bytes);
    const { onOutput, ...ends } = tapped(sink, taps);
    const handle = this.agent.exec(spec, onOutput, { ...ends, target: command, spid, signal });
    return this.#add(spid, { ...startedFrom(spec), handle, sink, taps }, command);
  }

  /**
   * Sets the listener that is called with each process: at once with those that run, and when a start is requested, before
   * the first event.
   */
  listen(listener: (process: InstanceProcess) => void): void {
    this.#onProcess = listener;
    for (const process of this.processes) listener(process);
  }

  /** True when a process with that number was started, even if it has ended. */
  hasHad(spid: number): boolean {
    return this.#numbers.has(spid) && this.#command !== null;
  }

  /** Leaves the guest to another object: every request and every promise of a process fails with `reason`, an ApiError. */
  leave(reason: ApiError): void {
    this.agent.abandon(reason);
  }

  /** Lets the processes end that wait for slow readers of their output. */
  letReadersGo(): void {
    for (const { taps } of this.processes) taps.letGo();
  }

  /** Waits for the ends of all additional processes, which die with the command. */
  async settled(): Promise<void> {
    const additional = this.processes.filter(({ spid }) => spid !== Spid.command);
    await Promise.allSettled(additional.map(({ exit }) => exit));
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

  /** The files that the command has before it. @throws ApiError `conflict` when the command is not running */
  get files(): InstanceFiles {
    return new InstanceFiles(this.agent, this.#running(), this.machine);
  }

  /**
   * Copies the scratch while the command runs, one copy at a time. When `signal` fires, it rejects at once and allows the
   * writes again.
   * @throws ApiError `conflict` when the command is not running, or the copy would take too long; other codes when the
   *   machine or its agent fails; the reason of `signal`
   */
  async copyScratch(options: ScratchCopyOptions): Promise<ScratchCopy> {
    // An abandoned copy may not have allowed the writes yet.
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

  #running(): ExecHandle {
    if (this.#command === null || !this.isRunning) throw notRunning();
    return this.#command;
  }

  /** @param command the command, in whose namespaces the process starts; absent: the process is the command */
  #add(
    spid: number,
    { handle, cwd, keepsInput, sink, taps, ...from }: StartedProcess,
    command?: ExecHandle,
  ): InstanceProcess {
    const refused = async (error: unknown): Promise<never> => {
      if (command === undefined) throw error;
      if (await isEnding(command, error)) throw notRunning();
      throw tooManyOf("processes", error);
    };
    const started = handle.started.catch(refused);
    const entered = started.catch((error: unknown) => rethrowPathError(error, cwd, "entering"));
    const exit = handle.exit.catch(refused);
    const input = new ProcessInput({ handle, isOpen: from.isInputOpen, onWritten: sink.onInput });
    const added: InstanceProcess = {
      spid,
      hasTerminal: from.hasTerminal,
      input,
      taps,
      started: this.#explained(entered),
      exit: this.#explained(exit),
      signal: (number, options) => {
        try {
          handle.signal(number, options);
        } catch (error) {
          throw tooManyOf("waiting signals", error);
        }
      },
      resize: (size) => handle.resize(size),
      limit: (timeoutMs) => handle.limit(timeoutMs),
      receipt: async (signal) => {
        await this.#explained(untilAborted(Promise.race([this.agent.receipt(), exit]), signal));
      },
      logged: sink.record,
      record: () => ({ spid, session: handle.session, cwd, keepsInput, log: sink.record(), taps: taps.record() }),
    };
    this.#processes.set(spid, added);
    if (spid === Spid.command) this.#first = added;
    this.#onProcess(added);
    const remove = () => {
      this.#processes.delete(spid);
      taps.end();
      input.end();
    };
    exit.then(remove, () => {
      remove();
      if (command !== undefined) handle.started.catch(() => this.#numbers.refuse(spid));
    });
    // Both reject when the agent is lost, whether or not they are awaited.
    added.started.catch(() => undefined);
    added.exit.catch(() => undefined);
    return added;
  }

  #continue({ spid, hasStarted, isCut, ...process }: ContinuedProcess): void {
    const { handle } = process;
    if (spid === Spid.command) {
      this.#command = handle;
      this.#begun = hasStarted;
      this.#awaitStart(handle);
    } else if (isCut) handle.signal(SIGKILL_SIGNAL, { group: true });
    this.#add(spid, process, spid === Spid.command ? undefined : (this.#command ?? undefined));
  }

  #awaitStart(command: ExecHandle): void {
    const begin = () => {
      this.#begun = true;
    };
    command.started.then(begin, () => undefined);
  }

  async #explained<T>(work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      throw await explain(error, this.machine);
    }
  }
}
