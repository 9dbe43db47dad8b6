import type { Client } from "../client.ts";
import { ResponseError, UnreachableError } from "../errors.ts";
import { RETRY_MS, UNREACHABLE_MS_MAX } from "../operation-events.ts";
import { isGone } from "../operations.ts";
import { pause } from "../pause.ts";
import type { ProcessName } from "../processes.ts";
import { type AttachedOutput, type AttachedStreams, Attachment, type AttachOptions } from "./attachment.ts";

/** A connection that lasts this long, in `milliseconds`, counts as established, even without messages. */
const STEADY_MS = 10_000;

type Sizes = Record<AttachedOutput["stream"], number>;

export interface SteadyAttachOptions extends Pick<AttachOptions, "lossless" | "onDropped" | "onGap"> {
  /** called when the connection is lost, before another one is made */
  readonly onLost?: () => void;
}

/**
 * An attachment that survives its connection: another one continues at the position of the lost one, without gaps or
 * duplicates. Input that is typed meanwhile is lost.
 */
export class SteadyAttachment implements AttachedStreams {
  readonly #client: Client;
  readonly #process: ProcessName;
  readonly #options: SteadyAttachOptions;
  readonly #left = new AbortController();
  #attachment: Attachment | null = null;
  #size: Parameters<Attachment["resize"]>[0] | null = null;
  /** the last event whose output was returned completely, and the bytes of each stream up to it */
  #position = -1;
  #atPosition: Sizes = { stdout: 0, stderr: 0 };
  /** bytes of each stream that this connection has returned, and all connections together */
  #at: Sizes = { stdout: 0, stderr: 0 };
  readonly #given: Sizes = { stdout: 0, stderr: 0 };
  #hasNews = false;

  private constructor(client: Client, process: ProcessName, options: SteadyAttachOptions) {
    this.#client = client;
    this.#process = process;
    this.#options = options;
  }

  /** @throws ResponseError, UnreachableError */
  static async open(client: Client, process: ProcessName, options: SteadyAttachOptions): Promise<SteadyAttachment> {
    const steady = new SteadyAttachment(client, process, options);
    await steady.#connect();
    return steady;
  }

  get exitCode(): number | null {
    return this.#attachment?.exitCode ?? null;
  }

  /** @throws UnreachableError when reconnecting fails for too long; ResponseError when the appliance refuses it */
  async *output(): AsyncGenerator<AttachedOutput, void, undefined> {
    // No connection was established since then.
    let lostAt: number | null = null;
    for (;;) {
      let openAt = performance.now();
      try {
        if (this.#attachment === null) {
          openAt = Number.POSITIVE_INFINITY;
          await this.#connect();
          openAt = performance.now();
        }
        yield* this.#fresh(this.#attachment as Attachment);
        return;
      } catch (error) {
        if (this.#left.signal.aborted) throw new UnreachableError("it was left", { cause: error });
        if (this.#hasNews || performance.now() - openAt > STEADY_MS) lostAt = null;
        if (lostAt !== null && performance.now() - lostAt > UNREACHABLE_MS_MAX) {
          throw new UnreachableError((error as Error).message, { cause: error });
        }
        if (!(await this.#isTemporary(error, lostAt === null))) throw error;
      }
      this.#attachment = null;
      this.#hasNews = false;
      if (lostAt === null) this.#options.onLost?.();
      lostAt ??= performance.now();
      await pause(RETRY_MS);
    }
  }

  type(bytes: Uint8Array): void {
    this.#attachment?.type(bytes);
  }

  resize(size: Parameters<Attachment["resize"]>[0]): void {
    this.#size = size;
    this.#attachment?.resize(size);
  }

  [Symbol.dispose](): void {
    this.#left.abort();
    this.#attachment?.[Symbol.dispose]();
  }

  async #connect(): Promise<void> {
    const { lossless = false } = this.#options;
    const isBack = this.#attachment === null && this.#size !== null;
    this.#at = { ...this.#atPosition };
    const attachment = await Attachment.open(this.#client, this.#process, {
      lossless,
      signal: this.#left.signal,
      ...(this.#position < 0 ? {} : { since: this.#position }),
      onDropped: (stream, bytes) => this.#drop(stream, bytes),
      onGap: (events) => this.#skip(events),
      ...(lossless ? {} : { onPosition: (id: number) => this.#reach(id) }),
    });
    this.#attachment = attachment;
    if (isBack && this.#size !== null) attachment.resize(this.#size);
  }

  /** The bytes that no earlier connection has returned. */
  async *#fresh(attachment: Attachment): AsyncGenerator<AttachedOutput, void, undefined> {
    for await (const { stream, bytes } of attachment.output()) {
      this.#notice();
      const from = this.#at[stream];
      this.#at[stream] += bytes.byteLength;
      const fresh = bytes.subarray(Math.max(0, this.#given[stream] - from));
      this.#given[stream] = Math.max(this.#given[stream], this.#at[stream]);
      if (fresh.byteLength > 0) yield { stream, bytes: fresh };
    }
  }

  #reach(id: number): void {
    this.#notice();
    this.#position = id;
    this.#atPosition = { ...this.#at };
  }

  #drop(stream: AttachedOutput["stream"], bytes: number): void {
    this.#notice();
    this.#at[stream] += bytes;
    const missing = this.#at[stream] - this.#given[stream];
    if (missing <= 0) return;
    this.#given[stream] = this.#at[stream];
    this.#options.onDropped?.(stream, Math.min(missing, bytes));
  }

  /** After a gap of unknown size, all output is new. */
  #skip(events: number): void {
    this.#notice();
    Object.assign(this.#given, this.#at);
    this.#options.onGap?.(events);
  }

  #notice(): void {
    this.#hasNews = true;
  }

  /** True when another attempt to connect makes sense. @param isFirst the connection was established until now */
  async #isTemporary(error: unknown, isFirst: boolean): Promise<boolean> {
    // The appliance may not have noticed the loss of the previous connection yet.
    if (error instanceof ResponseError) return error.status === 429 || error.status === 503;
    if (!(error instanceof UnreachableError) || this.#attachment?.isBroken === false) return false;
    // The first connection after the end of an instance returns the remaining output; one to a sandbox would resume it.
    const isChecked = !isFirst || this.#process.sandbox !== undefined;
    return !isChecked || !(await isGone(this.#client, this.#process));
  }
}
