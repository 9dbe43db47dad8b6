import type { LogEventData } from "../../domain/log-event.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";

interface ProcessOutputsOptions {
  /** of each stream, in `bytes` */
  readonly limitBytes: number;
  readonly append: (type: "truncated", data: LogEventData["truncated"]) => void;
  /** Keeps a beginning of the bytes; gives its length. */
  readonly write: (stream: OutputStream, bytes: Uint8Array) => number;
  /** resolves when the log can take more; undefined: it can */
  readonly drained: () => Promise<void> | undefined;
}

/** How much a stream wrote, in `bytes`. */
export interface StreamBytes {
  readonly kept: number;
  readonly dropped: number;
}

/** What a process writes, as far as the log keeps it. Made by `EventWriter.outputs`. */
export class ProcessOutputs {
  readonly #options: ProcessOutputsOptions;
  readonly #bytes = { stdout: { kept: 0, dropped: 0 }, stderr: { kept: 0, dropped: 0 } };

  constructor(options: ProcessOutputsOptions) {
    this.#options = options;
  }

  bytes(stream: OutputStream): StreamBytes {
    return { ...this.#bytes[stream] };
  }

  /**
   * Takes what the process wrote, which is copied. Keeps no more than the limit of the stream.
   * @returns when the process may write more; undefined: at once
   */
  write(stream: OutputStream, chunk: Uint8Array): Promise<void> | undefined {
    const { limitBytes, write, drained } = this.#options;
    const count = this.#bytes[stream];
    // What comes behind a gap would not be what the process wrote there.
    const roomBytes = count.dropped > 0 ? 0 : limitBytes - count.kept;
    const kept = roomBytes > 0 ? write(stream, chunk.subarray(0, roomBytes)) : 0;
    count.kept += kept;
    count.dropped += chunk.byteLength - kept;
    return kept > 0 ? drained() : undefined;
  }

  /** Tells what was not kept; once, when the process has ended. */
  end(): void {
    for (const stream of OUTPUT_STREAMS) {
      const { kept, dropped } = this.#bytes[stream];
      if (dropped > 0) this.#options.append("truncated", { stream, bytes_emitted: kept, bytes_dropped: dropped });
    }
  }
}
