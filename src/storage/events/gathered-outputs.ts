import { ByteBlocks } from "../../domain/bytes/byte-blocks.ts";
import type { OutputEventType } from "../../domain/log-event.ts";

/** A stream of a process. */
export interface OutputSource {
  readonly spid: number;
  readonly stream: OutputEventType;
  /** true for the command, whose output has room of its own */
  readonly isReserved: boolean;
}

/** Output that becomes records later. The output of each stream is joined, even if other streams wrote in between. */
export class GatheredOutputs {
  /** by process and stream, in the order of their first bytes */
  readonly #pending = new Map<string, { readonly source: OutputSource; readonly blocks: ByteBlocks }>();
  #bytes = 0;

  /** Size of all of it. */
  get byteLength(): number {
    return this.#bytes;
  }

  /** Adds a copy of `bytes`. */
  push(source: OutputSource, bytes: Uint8Array): void {
    const key = `${source.spid} ${source.stream}`;
    const { blocks } = this.#pending.get(key) ?? { blocks: new ByteBlocks() };
    if (blocks.byteLength === 0) this.#pending.set(key, { source, blocks });
    blocks.push(bytes);
    this.#bytes += bytes.byteLength;
  }

  /** Removes all of it, and calls `put` with its parts. */
  drain(put: (source: OutputSource, bytes: Uint8Array) => void): void {
    for (const { source, blocks } of this.#pending.values()) {
      for (let block = blocks.take(); block !== null; block = blocks.take()) put(source, block);
    }
    this.#pending.clear();
    this.#bytes = 0;
  }
}
