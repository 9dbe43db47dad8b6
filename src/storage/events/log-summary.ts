import { type LogEvent, type LogEventData, msOf, Spid } from "../../domain/log-event.ts";
import type { OutputStream } from "../../domain/output.ts";

/** A process that a log has as running: without its end. */
export interface RunningInLog {
  /** its start as logged, with the time of that in `milliseconds` since the epoch and the id of the event; null: not logged */
  readonly start: { readonly data: LogEventData["spawn"]; readonly ms: number; readonly event: number } | null;
  /** sizes of its logged output, in `bytes` */
  readonly keptBytes: Readonly<Record<OutputStream, number>>;
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
  #commandExit: LogEventData["exit"] | null = null;
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
  get commandExit(): LogEventData["exit"] | null {
    return this.#commandExit;
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
    if (spid !== null) this.#spidLast = Math.max(this.#spidLast, spid);
    if (type === "state") {
      const { to } = dataOf<"state">(payload);
      // Another machine begins: the processes of the one before are gone, whether or not their ends are logged.
      if (to === "starting" || to === "resuming") this.#running.clear();
    }
    if (spid === null) return;
    if (type === "spawn") this.#use(spid).start = { data: dataOf<"spawn">(payload), ms: msOf(timeNs), event: id };
    if (type !== "exit") return;
    this.#running.delete(spid);
    if (spid === Spid.command) this.#commandExit = dataOf<"exit">(payload);
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
