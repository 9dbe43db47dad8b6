import { isAscii } from "node:buffer";
import { closeSync, openSync, read, readFileSync, statSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { type OperationId, parseUuid } from "../domain/ids.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../domain/output.ts";
import { isTemporaryName, writeFileAtomic } from "../system/scratch.ts";
import { type DataLayout, nameBatches } from "./layout.ts";

/** Where the captured bytes of a stream are; an empty one has no file. */
export function outputPath(layout: DataLayout, id: OperationId, stream: OutputStream): string {
  return join(layout.outputs, `${id}.${stream}`);
}

/** Keeps what was captured of an instance's streams, each in blocks. */
export async function writeOutputs(
  layout: DataLayout,
  id: OperationId,
  outputs: Readonly<Record<OutputStream, readonly Uint8Array[]>>,
): Promise<void> {
  const written = OUTPUT_STREAMS.filter((stream) => outputs[stream].some(({ byteLength }) => byteLength > 0));
  await Promise.all(written.map((stream) => writeFileAtomic(outputPath(layout, id, stream), outputs[stream], 0o600)));
}

/** A file of this size is read within microseconds, when the way to a thread and back would take ten times that. */
const DIRECT_BYTES_MAX = 65_536;

/** What was captured of a stream. */
export async function readOutput(layout: DataLayout, id: OperationId, stream: OutputStream): Promise<Uint8Array> {
  const path = outputPath(layout, id, stream);
  const found = statSync(path, { throwIfNoEntry: false });
  if (found === undefined) return new Uint8Array();
  return found.size <= DIRECT_BYTES_MAX ? readFileSync(path) : await Bun.file(path).bytes();
}

/** Read at a time, in `bytes`: whole groups of base64. */
const PIECE_BYTES = 49_152;
const readAt = promisify(read);

/** What was captured of a stream, too much to be held in one piece; open until disposal. */
export class LongOutput implements Disposable {
  readonly #fd: number;
  #isOpen = true;

  private constructor(fd: number) {
    this.#fd = fd;
  }

  /** Null when the output is short, and better read by `readOutput`. */
  static open(layout: DataLayout, id: OperationId, stream: OutputStream): LongOutput | null {
    const path = outputPath(layout, id, stream);
    const found = statSync(path, { throwIfNoEntry: false });
    return found === undefined || found.size <= DIRECT_BYTES_MAX ? null : new LongOutput(openSync(path, "r"));
  }

  /** Idempotent; no reader may be under way. */
  [Symbol.dispose](): void {
    if (this.#isOpen) closeSync(this.#fd);
    this.#isOpen = false;
  }

  /** Whether every byte is below 0x80. */
  async isAscii(): Promise<boolean> {
    for await (const piece of this.#pieces()) if (!isAscii(piece)) return false;
    return true;
  }

  /** The text in the encoding of the interface. */
  async *text(encoding: "ascii" | "base64"): AsyncGenerator<string, void, undefined> {
    for await (const piece of this.#pieces()) yield piece.toString(encoding === "ascii" ? "latin1" : "base64");
  }

  /** In order; each is good until the next one is asked for. */
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
 * Removes outputs of operations that do not `have` any, and what a crash left half-written. No operation may run meanwhile.
 * @throws the reason of `signal`
 */
export async function sweepOutputs(
  layout: DataLayout,
  have: (ids: readonly OperationId[]) => ReadonlySet<OperationId>,
  signal: AbortSignal,
): Promise<void> {
  for await (const names of nameBatches(layout.outputs)) {
    signal.throwIfAborted();
    for (const name of names.filter(isTemporaryName)) await rm(join(layout.outputs, name), { force: true });
    const ids = names.map((name) => parseUuid<OperationId>(name.replace(/\.(stdout|stderr)$/, "")));
    const found = new Set(ids.filter((id) => id !== null));
    const kept = have([...found]);
    for (const id of found) if (!kept.has(id)) await removeOutputs(layout, id);
  }
}
