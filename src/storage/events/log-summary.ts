import { type LogEvent, type LogEventData, msOf, Spid } from "../../domain/log-event.ts";
import type { OutputStream } from "../../domain/output.ts";
import type { OutputSizes } from "./process-outputs.ts";

/** A process that a log has as running: without its end. */
export interface RunningInLog {
  /** its start as logged, with the time of that in `milliseconds` since the epoch and the id of the event; null: not logged */
  readonly start: { readonly data: LogEventData["spawn"]; readonly ms: number; readonly event: number } | null;
  /** sizes of its logged output, in `bytes` */
  readonly keptBytes: Readonly<Record<OutputStream, number>>;
}

/** The end of a command, with its start and the sizes of its output. */
export interface CommandEnd extends Pick<RunningInLog, "start"> {
  readonly exit: LogEventData["exit"];
  readonly outputs: OutputSizes;
}

interface Running extends RunningInLog {
  start: RunningInLog["start"];
  readonly keptBytes: Record<OutputStream, number>;
}

/** A summary as plain data, without what only a plain log has. */
export type RunningRecord = readonly (readonly [spid: number, running: RunningInLog])[];

/** The state of the processes in a log, from its events. Processes that have ended take no memory. */
export class LogSummary {
  readonly #running: Map<number, Running>;
  #isCapped = false;
  #commandOutputsCount = 0;
  #commandEnd: CommandEnd | null = null;
  readonly #commandDropped: Record<OutputStream, number> = { stdout: 0, stderr: 0 };
  #lastMs: number | null = null;
  #spidLast: number = Spid.command;

  /** @param running processes that run before the first event */
  constructor(running: RunningRecord = []) {
    this.#running = new Map(
      running.map(([spid, { start, keptBytes }]) => [spid, { start, keptBytes: { ...keptBytes } }]),
    );
  }

  /** True when the log had no room for an output. */
  get isCapped(): boolean {
    return this.#isCapped;
  }

  /** Number of outputs of the command. */
  get commandOutputsCount(): number {
    return this.#commandOutputsCount;
  }

  /** The end of the command; null: it is not logged. */
  get commandEnd(): CommandEnd | null {
    return this.#commandEnd;
  }

  /** Time of the last event, in `milliseconds` since the epoch; null: there is none. */
  get lastMs(): number | null {
    return this.#lastMs;
  }

  /** Processes that have output or a start and no end, by their numbers. */
  get running(): ReadonlyMap<number, RunningInLog> {
    return this.#running;
  }

  /** The largest number of a process in the log. Of a ring, those that run. */
  get spidLast(): number {
    return this.#spidLast;
  }

  record(): RunningRecord {
    return [...this.#running];
  }

  /** Takes the next event of the log. Its payload is not used afterwards. */
  take({ id, timeNs, spid, type, payload }: LogEvent): void {
    if (type === "stdout" || type === "stderr") this.addOutput(spid ?? Spid.agent, type, payload.byteLength);
    if (spid === Spid.command && (type === "stdout" || type === "stderr")) this.#commandOutputsCount += 1;
    if (type === "size_cap") this.#isCapped = true;
    this.#lastMs = msOf(timeNs);
    if (spid !== null) this.#spidLast = Math.max(this.#spidLast, spid);
    if (type === "state") {
      const { to, memory } = dataOf<"state">(payload);
      // Another machine begins: the processes of the one before are gone, whether or not their ends are logged.
      if ((to === "starting" || to === "resuming") && memory !== true) this.#running.clear();
    }
    if (spid === null) return;
    if (type === "spawn") this.#use(spid).start = { data: dataOf<"spawn">(payload), ms: msOf(timeNs), event: id };
    if (spid === Spid.command && type === "truncated") {
      const { stream, bytes_dropped: dropped } = dataOf<"truncated">(payload);
      this.#commandDropped[stream] = dropped;
    }
    if (type !== "exit") return;
    if (spid === Spid.command) this.#commandEnd = this.#commandEndOf(dataOf<"exit">(payload));
    this.#running.delete(spid);
  }

  #commandEndOf(exit: LogEventData["exit"]): CommandEnd {
    const { start, keptBytes } = this.#use(Spid.command);
    const sizes = (stream: OutputStream) => ({ kept: keptBytes[stream], dropped: this.#commandDropped[stream] });
    return { start, exit, outputs: { stdout: sizes("stdout"), stderr: sizes("stderr") } };
  }

  /** Counts a part of an output. */
  addOutput(spid: number, stream: OutputStream, bytes: number): void {
    this.#use(spid).keptBytes[stream] += bytes;
  }

  #use(spid: number): Running {
    const existing = this.#running.get(spid);
    if (existing !== undefined) return existing;
    const running: Running = { start: null, keptBytes: { stdout: 0, stderr: 0 } };
    this.#running.set(spid, running);
    return running;
  }
}

function dataOf<Type extends keyof LogEventData>(payload: Uint8Array): LogEventData[Type] {
  return JSON.parse(Buffer.from(payload).toString("utf8")) as LogEventData[Type];
}
