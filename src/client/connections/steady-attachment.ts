import { answerOf, type Client } from "../client.ts";
import { ResponseError, UnreachableError } from "../errors.ts";
import { RETRY_MS, UNREACHABLE_MS_MAX } from "../operation-events.ts";
import { hasEnded } from "../operations.ts";
import { pause } from "../pause.ts";
import type { ProcessName } from "../processes.ts";
import { type AttachedOutput, type AttachedStreams, Attachment, type AttachOptions } from "./attachment.ts";

/** A connection that lasts this long, in `milliseconds`, is a good one, also when nothing comes. */
const STEADY_MS = 10_000;

type Sizes = Record<AttachedOutput["stream"], number>;

export interface SteadyAttachOptions extends Pick<AttachOptions, "lossless" | "onDropped"> {
  /** told that the connection is lost, and is made anew */
  readonly onLost?: () => void;
}

/**
 * An attachment that outlasts its connection: another one goes on where the lost one was, without a gap or a double. What
 * is typed meanwhile is lost.
 */
export class SteadyAttachment implements AttachedStreams {
  readonly #client: Client;
  readonly #process: ProcessName;
  readonly #options: SteadyAttachOptions;
  readonly #left = new AbortController();
  #attachment: Attachment | null = null;
  #size: Parameters<Attachment["resize"]>[0] | null = null;
  /** the last event whose output was all given, and the bytes of each stream up to it */
  #position = -1;
  #atPosition: Sizes = { stdout: 0, stderr: 0 };
  /** bytes of each stream up to which this connection has come, and all connections */
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

  /** @throws UnreachableError when no connection is to be had any more; ResponseError when the appliance refuses it */
  async *output(): AsyncGenerator<AttachedOutput, void, undefined> {
    // Since then no connection was a good one.
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
      ...(lossless ? {} : { onPosition: (id: number) => this.#reach(id) }),
    });
    this.#attachment = attachment;
    if (isBack && this.#size !== null) attachment.resize(this.#size);
  }

  /** What no connection before has given. */
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

  #notice(): void {
    this.#hasNews = true;
  }

  /** True when another connection may be had. @param isFirst the connection was a good one until now */
  async #isTemporary(error: unknown, isFirst: boolean): Promise<boolean> {
    // The appliance may not have noticed yet that the connection before is gone.
    if (error instanceof ResponseError) return error.status === 429 || error.status === 503;
    if (!(error instanceof UnreachableError) || this.#attachment?.isBroken === false) return false;
    return isFirst || !(await this.#hasEnded());
  }

  /** The first connection after the end of the instance gives what is left; further ones do not. */
  async #hasEnded(): Promise<boolean> {
    const id = encodeURIComponent(this.#process.instance);
    const operation = await answerOf(this.#client.v1.operations({ id }).get()).catch(() => null);
    return operation !== null && hasEnded(operation);
  }
}
