import { isAscii } from "node:buffer";
import { closeSync, openSync, read, readFileSync, statSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { type OperationId, parseUuid } from "../domain/ids.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../domain/output.ts";
import { isTemporaryName, writeFileAtomic } from "../system/scratch.ts";
import { type DataLayout, nameBatches } from "./layout.ts";

/** Path of the captured bytes of a stream; an empty output has no file. */
export function outputPath(layout: DataLayout, id: OperationId, stream: OutputStream): string {
  return join(layout.outputs, `${id}.${stream}`);
}

/** Stores the captured bytes of an instance's streams, each given in blocks. */
export async function writeOutputs(
  layout: DataLayout,
  id: OperationId,
  outputs: Readonly<Record<OutputStream, readonly Uint8Array[]>>,
): Promise<void> {
  const written = OUTPUT_STREAMS.filter((stream) => outputs[stream].some(({ byteLength }) => byteLength > 0));
  await Promise.all(written.map((stream) => writeFileAtomic(outputPath(layout, id, stream), outputs[stream], 0o600)));
}

/** Reading a file up to this size takes microseconds; a thread would take ten times as long. */
const DIRECT_BYTES_MAX = 65_536;

/** The captured bytes of a stream. */
export async function readOutput(layout: DataLayout, id: OperationId, stream: OutputStream): Promise<Uint8Array> {
  const path = outputPath(layout, id, stream);
  const found = statSync(path, { throwIfNoEntry: false });
  if (found === undefined) return new Uint8Array();
  return found.size <= DIRECT_BYTES_MAX ? readFileSync(path) : await Bun.file(path).bytes();
}

/** Bytes that are read at a time: a multiple of three, which gives whole groups of base64. */
const PIECE_BYTES = 49_152;
const readAt = promisify(read);

/** A captured output that is too long for memory. The file is open until disposal. */
export class LongOutput implements Disposable {
  readonly #fd: number;
  #isOpen = true;

  private constructor(fd: number) {
    this.#fd = fd;
  }

  /** Opens an output; null when it is short enough for `readOutput`. */
  static open(layout: DataLayout, id: OperationId, stream: OutputStream): LongOutput | null {
    const path = outputPath(layout, id, stream);
    const found = statSync(path, { throwIfNoEntry: false });
    return found === undefined || found.size <= DIRECT_BYTES_MAX ? null : new LongOutput(openSync(path, "r"));
  }

  /** Idempotent. No read may be under way. */
  [Symbol.dispose](): void {
    if (this.#isOpen) closeSync(this.#fd);
    this.#isOpen = false;
  }

  /** Whether every byte is below 0x80. */
  async isAscii(): Promise<boolean> {
    for await (const piece of this.#pieces()) if (!isAscii(piece)) return false;
    return true;
  }

  /** The output as text in the given encoding. */
  async *text(encoding: "ascii" | "base64"): AsyncGenerator<string, void, undefined> {
    for await (const piece of this.#pieces()) yield piece.toString(encoding === "ascii" ? "latin1" : "base64");
  }

  /** Pieces in order, each valid until the next one is requested. */
  async *#pieces(): AsyncGenerator<Buffer, void, undefined> {
    const buffer = Buffer.allocUnsafeSlow(PIECE_BYTES);
    for (let position = 0; ; ) {
      let filled = 0;
      while (filled < PIECE_BYTES) {
        const { bytesRead } = await readAt(this.#fd, buffer, filled, PIECE_BYTES - filled, position);
        if (bytesRead === 0) break;
        filled += bytesRead;
        position += bytesRead;
      }
      if (filled > 0) yield buffer.subarray(0, filled);
      if (filled < PIECE_BYTES) return;
    }
  }
}

export async function removeOutputs(layout: DataLayout, id: OperationId): Promise<void> {
  for (const stream of OUTPUT_STREAMS) await rm(outputPath(layout, id, stream), { force: true });
}

/**
 * Removes the outputs of operations that `withOutputs` does not return, and temporary files that a crash left. No
 * operation may run meanwhile.
 * @throws the reason of `signal`
 */
export async function sweepOutputs(
  layout: DataLayout,
  withOutputs: (ids: readonly OperationId[]) => ReadonlySet<OperationId>,
  signal: AbortSignal,
): Promise<void> {
  for await (const names of nameBatches(layout.outputs)) {
    signal.throwIfAborted();
    for (const name of names.filter(isTemporaryName)) await rm(join(layout.outputs, name), { force: true });
    const ids = names.map((name) => parseUuid<OperationId>(name.replace(/\.(stdout|stderr)$/, "")));
    const found = new Set(ids.filter((id) => id !== null));
    const existing = withOutputs([...found]);
    for (const id of found) if (!existing.has(id)) await removeOutputs(layout, id);
  }
}
