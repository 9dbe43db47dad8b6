import { closeSync, openSync, read, readFileSync, statSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { type OperationId, parseUuid } from "../domain/ids.ts";
import { type LogEvent, Spid } from "../domain/log-event.ts";
import type { StoredOutput } from "../domain/operation.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../domain/output.ts";
import { isTemporaryName } from "../system/scratch.ts";
import { EventFile, eventLogPath } from "./events/event-file.ts";
import { type EventPosition, EventReader, FIRST_POSITION } from "./events/reader.ts";
import { type DataLayout, nameBatches } from "./layout.ts";

/** Path of the captured bytes of a stream that is not in an event log; an empty output has no file. */
export function outputPath(layout: DataLayout, id: OperationId, stream: OutputStream): string {
  return join(layout.outputs, `${id}.${stream}`);
}

/** Reading a file up to this size takes microseconds; a thread would take ten times as long. */
const DIRECT_BYTES_MAX = 65_536;

/** An event log up to this size is read at once. */
const DIRECT_LOG_BYTES_MAX = 2 * DIRECT_BYTES_MAX;

/** Bytes that are read at a time: a multiple of three, which gives whole groups of base64. */
const PIECE_BYTES = 49_152;
const readAt = promisify(read);

/** Whether an output of this size is read at once. */
export function isShortOutput(bytes: number | undefined): boolean {
  return bytes !== undefined && bytes <= DIRECT_BYTES_MAX;
}

/**
 * Reads the captured bytes of a stream of the command: all of them when they are few. An output whose row has `bytes` is
 * in the event log, any other in a file of its own.
 */
export async function openOutput(
  layout: DataLayout,
  id: OperationId,
  stream: OutputStream,
  { bytes, empty }: StoredOutput,
): Promise<Uint8Array | LongOutput> {
  if (bytes === 0 || empty === true) return new Uint8Array();
  return bytes === undefined
    ? openFileOutput(outputPath(layout, id, stream))
    : await openProcessOutput(layout, id, { spid: Spid.command, stream, bytes });
}

/** An output of a process in the event log of its operation. */
export interface LoggedOutput {
  readonly spid: number;
  readonly stream: OutputStream;
  /** how much of it the log has */
  readonly bytes: number;
  /** of an event before its first byte; the beginning of the log when absent */
  readonly from?: EventPosition;
}

/** The same for whichever process. */
export async function openProcessOutput(
  layout: DataLayout,
  id: OperationId,
  output: LoggedOutput,
): Promise<Uint8Array | LongOutput> {
  return output.bytes === 0 ? new Uint8Array() : await openLogged(eventLogPath(layout, id), output);
}

function openFileOutput(path: string): Uint8Array | LongOutput {
  const found = statSync(path, { throwIfNoEntry: false });
  if (found === undefined) return new Uint8Array();
  if (found.size <= DIRECT_BYTES_MAX) return readFileSync(path);
  const fd = openSync(path, "r");
  return new LongOutput(() => filePieces(fd), { [Symbol.dispose]: () => closeSync(fd) });
}

async function openLogged(path: string, output: LoggedOutput): Promise<Uint8Array | LongOutput> {
  using held = new DisposableStack();
  const file = EventFile.open(path);
  if (file === null) return new Uint8Array();
  held.use(file);
  const { sizeBytes } = file;
  if (sizeBytes <= DIRECT_LOG_BYTES_MAX) {
    const reader = new EventReader(file, output.from);
    const parts: Uint8Array[] = [];
    for (let events = reader.nextNow(sizeBytes); events.length > 0; events = reader.nextNow(sizeBytes)) {
      parts.push(...payloads(events, output));
    }
    return Buffer.concat(parts);
  }
  if (output.bytes > DIRECT_BYTES_MAX) return new LongOutput(() => loggedPieces(file, output), held.move());
  const parts: Buffer[] = [];
  for await (const piece of loggedPieces(file, output)) parts.push(Buffer.from(piece));
  return Buffer.concat(parts);
}

/** A captured output that is too long for memory. Its file is open until disposal. */
export class LongOutput implements Disposable {
  readonly #pieces: () => AsyncGenerator<Buffer, void, undefined>;
  readonly #held: Disposable;
  #isOpen = true;

  /** @param pieces in order, all but the last of a multiple of three bytes; each valid until the next one is requested */
  constructor(pieces: () => AsyncGenerator<Buffer, void, undefined>, held: Disposable) {
    this.#pieces = pieces;
    this.#held = held;
  }

  /** Idempotent. No read may be under way. */
  [Symbol.dispose](): void {
    if (this.#isOpen) this.#held[Symbol.dispose]();
    this.#isOpen = false;
  }

  /** The output from its beginning: all pieces but the last of a multiple of three bytes, each valid until the next one. */
  pieces(): AsyncGenerator<Buffer, void, undefined> {
    return this.#pieces();
  }
}

async function* filePieces(fd: number): AsyncGenerator<Buffer, void, undefined> {
  const buffer = Buffer.allocUnsafeSlow(PIECE_BYTES);
  for (let position = 0; ; ) {
    let filled = 0;
    while (filled < PIECE_BYTES) {
      const { bytesRead } = await readAt(fd, buffer, filled, PIECE_BYTES - filled, position);
      if (bytesRead === 0) break;
      filled += bytesRead;
      position += bytesRead;
    }
    if (filled > 0) yield buffer.subarray(0, filled);
    if (filled < PIECE_BYTES) return;
  }
}

/** Pieces of an output in an event log. */
async function* loggedPieces(file: EventFile, output: LoggedOutput): AsyncGenerator<Buffer, void, undefined> {
  const buffer = Buffer.allocUnsafeSlow(PIECE_BYTES);
  const reader = new EventReader(file, output.from ?? FIRST_POSITION, true);
  const { sizeBytes } = file;
  let filled = 0;
  for (let left = output.bytes; left > 0; ) {
    const events = await reader.next(sizeBytes);
    if (events.length === 0) break;
    for (const payload of payloads(events, output)) {
      left -= payload.byteLength;
      for (let rest: Uint8Array = payload; rest.byteLength > 0; ) {
        const part = rest.subarray(0, PIECE_BYTES - filled);
        buffer.set(part, filled);
        filled += part.byteLength;
        rest = rest.subarray(part.byteLength);
        if (filled < PIECE_BYTES) continue;
        yield buffer;
        filled = 0;
      }
    }
  }
  if (filled > 0) yield buffer.subarray(0, filled);
}

function payloads(events: readonly LogEvent[], { spid, stream }: LoggedOutput): Uint8Array[] {
  return events.flatMap((event) => (event.spid === spid && event.type === stream ? [event.payload] : []));
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
