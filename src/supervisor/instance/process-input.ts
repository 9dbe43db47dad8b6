import { ApiError } from "../../domain/errors.ts";
import { untilAborted } from "../../system/waiting.ts";
import type { ExecHandle } from "../../vm/agent/agent.ts";

/** Size of one write to the guest, in `bytes`. It bounds the memory of a write whose caller has left. */
const PIECE_BYTES = 65_536;
/** Largest number of callers that wait for their turn. */
const WAITING_COUNT_MAX = 16;

export interface ProcessInputOptions {
  readonly handle: Pick<ExecHandle, "write" | "end">;
  /** false: the process was started without an input that stays open */
  readonly isOpen: boolean;
  /** called with the number of bytes after each write */
  readonly onWritten: (bytes: number) => void;
}

/**
 * Standard input of a process. Any number of callers may write: their bytes are not mixed, and each writes as fast as the
 * process reads.
 */
export class ProcessInput {
  readonly #options: ProcessInputOptions;
  readonly #waiting: (() => void)[] = [];
  #isTaken = false;
  #isOpen: boolean;
  /** aborts when the process has ended or is lost */
  readonly #over = new AbortController();

  constructor(options: ProcessInputOptions) {
    this.#options = options;
    this.#isOpen = options.isOpen;
  }

  /** True until the input is closed. */
  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Number of callers that wait for their turn. */
  get waitingCount(): number {
    return this.#waiting.length;
  }

  /**
   * Resolves when the guest has accepted all bytes.
   * @throws ApiError `conflict` when the input is closed, or the process has ended; `too_many_requests` when too many
   *   callers write; the reason of `signal`, after which a part may have been written
   */
  async write(bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    this.#requireOpen();
    if (bytes.byteLength === 0) return;
    await this.#takeTurn(signal);
    let pending: Promise<unknown> = Promise.resolve();
    const release = () => this.#endTurn();
    // When a caller leaves, its turn lasts until the guest has accepted its piece: the next caller must not overtake it.
    using _turn = { [Symbol.dispose]: () => void pending.then(release, release) };
    for (let at = 0; at < bytes.byteLength; at += PIECE_BYTES) {
      this.#requireOpen();
      // A copy: the caller may leave, and reuse its buffer, before the process reads the piece. `slice` of a Buffer copies nothing.
      const piece = new Uint8Array(bytes.subarray(at, at + PIECE_BYTES));
      const write = this.#options.handle.write(piece);
      pending = write;
      if (!(await untilAborted(write, signal))) throw ended();
      this.#options.onWritten(piece.byteLength);
    }
  }

  /**
   * Writes all chunks, each as `write` does. When the process ends, it no longer waits for the next chunk.
   * @throws as `write` does
   */
  async writeAll(chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>, signal: AbortSignal): Promise<void> {
    const iterator = Symbol.asyncIterator in chunks ? chunks[Symbol.asyncIterator]() : chunks[Symbol.iterator]();
    // Not awaited: a source without a next chunk may never settle.
    using _left = { [Symbol.dispose]: () => void Promise.resolve(iterator.return?.()).catch(() => undefined) };
    for (;;) {
      const step = await untilAborted(Promise.resolve(iterator.next()), this.#over.signal);
      if (step.done === true) return;
      await this.write(step.value, signal);
    }
  }

  /** To be called when the process has ended or is lost. */
  end(): void {
    this.#over.abort(ended());
  }

  /**
   * Ends the input after all bytes written so far. A terminal gets its end-of-file character (^D) instead.
   * @throws ApiError `conflict` when the input is already closed; the reason of `signal`
   */
  async close(signal: AbortSignal): Promise<void> {
    this.#requireOpen();
    await this.#takeTurn(signal);
    using _turn = { [Symbol.dispose]: () => this.#endTurn() };
    this.#requireOpen();
    this.#isOpen = false;
    await this.#options.handle.end();
  }

  #requireOpen(): void {
    if (!this.#isOpen) throw new ApiError("conflict", "the standard input of the process is closed");
  }

  async #takeTurn(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (!this.#isTaken) {
      this.#isTaken = true;
      return;
    }
    if (this.#waiting.length >= WAITING_COUNT_MAX) {
      throw new ApiError("too_many_requests", "too many requests already write to the process");
    }
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiting.push(resolve);
    try {
      await untilAborted(promise, signal);
    } catch (error) {
      const index = this.#waiting.indexOf(resolve);
      if (index >= 0) this.#waiting.splice(index, 1);
      else this.#endTurn();
      throw error;
    }
  }

  #endTurn(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#isTaken = false;
    else next();
  }
}

function ended(): ApiError {
  return new ApiError("conflict", "the process has ended");
}
