import type { LogEventData } from "../../domain/log-event.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";

interface ProcessOutputsOptions {
  /** limit of each stream, in `bytes` */
  readonly limitBytes: number;
  /** sizes of the output that is already logged */
  readonly from?: OutputSizes | undefined;
  readonly append: (type: "truncated", data: LogEventData["truncated"]) => void;
  /** Appends a prefix of the bytes; returns its length. */
  readonly write: (stream: OutputStream, bytes: Uint8Array) => number;
  /** resolves when everything appended so far is written, or writing has failed; undefined when it is */
  readonly written: () => Promise<void> | undefined;
}

/** Sizes of the logged and of the dropped output of a stream, in `bytes`. */
export interface StreamBytes {
  readonly kept: number;
  readonly dropped: number;
}

export type OutputSizes = Readonly<Record<OutputStream, StreamBytes>>;

/** Logs and counts the output of a process. Made by `EventWriter.outputs`. */
export class ProcessOutputs {
  readonly #options: ProcessOutputsOptions;
  readonly #bytes: Readonly<Record<OutputStream, { kept: number; dropped: number }>>;

  constructor(options: ProcessOutputsOptions) {
    this.#options = options;
    const { from } = options;
    this.#bytes = {
      stdout: { kept: 0, dropped: 0, ...from?.stdout },
      stderr: { kept: 0, dropped: 0, ...from?.stderr },
    };
  }

  bytes(stream: OutputStream): StreamBytes {
    return { ...this.#bytes[stream] };
  }

  /**
   * Logs a copy of the chunk, up to the limit of the stream.
   * @returns a promise that resolves when it is written, or writing has failed; chunks that are written together have the same
   *   one. Undefined when nothing of it is to be written
   */
  write(stream: OutputStream, chunk: Uint8Array): Promise<void> | undefined {
    const { limitBytes, write, written } = this.#options;
    const count = this.#bytes[stream];
    // The logged output is a prefix of the stream: nothing is logged after a gap.
    const roomBytes = count.dropped > 0 ? 0 : limitBytes - count.kept;
    const kept = roomBytes > 0 ? write(stream, chunk.subarray(0, roomBytes)) : 0;
    count.kept += kept;
    count.dropped += chunk.byteLength - kept;
    return kept > 0 ? written() : undefined;
  }

  /** Logs how much was dropped. To be called once, when the process has ended. */
  end(): void {
    for (const stream of OUTPUT_STREAMS) {
      const { kept, dropped } = this.#bytes[stream];
      if (dropped > 0) this.#options.append("truncated", { stream, bytes_emitted: kept, bytes_dropped: dropped });
    }
  }
}
