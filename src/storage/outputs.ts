import { ApiError } from "../domain/errors.ts";
import type { LogId } from "../domain/ids.ts";
import type { LogEvent } from "../domain/log-event.ts";
import type { OutputStream } from "../domain/output.ts";
import { EventFile, eventLogPath } from "./events/event-file.ts";
import type { EventPosition } from "./events/position.ts";
import { EventReader } from "./events/reader.ts";
import type { DataLayout } from "./layout.ts";

/** Reading up to this size takes microseconds; a thread would take ten times as long. */
const DIRECT_BYTES_MAX = 65_536;

/** An event log up to this size is read at once. */
const DIRECT_LOG_BYTES_MAX = 2 * DIRECT_BYTES_MAX;

/** Bytes that are read at a time: a multiple of three, which gives whole groups of base64. */
const PIECE_BYTES = 49_152;

/** Whether an output of this size is read at once. */
export function isShortOutput(bytes: number): boolean {
  return bytes <= DIRECT_BYTES_MAX;
}

/** An output of a process in the event log of its operation. */
export interface LoggedOutput {
  readonly spid: number;
  readonly stream: OutputStream;
  /** size of its logged part */
  readonly bytes: number;
  /** position of an event before its first byte; the beginning of the log when absent */
  readonly from?: EventPosition | undefined;
}

/**
 * Reads the captured bytes of a stream of a process: all of them when they are few.
 * @throws ApiError `unavailable`, here or between pieces, when a ring drops them meanwhile
 */
export async function openProcessOutput(
  layout: DataLayout,
  id: LogId,
  output: LoggedOutput,
): Promise<Uint8Array | LongOutput> {
  return output.bytes === 0 ? new Uint8Array() : await openLogged(eventLogPath(layout, id), output);
}

async function openLogged(path: string, output: LoggedOutput): Promise<Uint8Array | LongOutput> {
  using held = new DisposableStack();
  const file = EventFile.open(path);
  if (file === null) return new Uint8Array();
  held.use(file);
  const { sizeBytes, first } = file;
  if (sizeBytes - first.offset <= DIRECT_LOG_BYTES_MAX) {
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

/** Pieces of an output in an event log. */
async function* loggedPieces(file: EventFile, output: LoggedOutput): AsyncGenerator<Buffer, void, undefined> {
  const buffer = Buffer.allocUnsafeSlow(PIECE_BYTES);
  const reader = new EventReader(file, output.from, true);
  const { sizeBytes } = file;
  let filled = 0;
  for (let left = output.bytes; left > 0; ) {
    const events = await reader.next(sizeBytes);
    if (events.length === 0) {
      // A ring drops its first events also while a client reads them.
      if (file.after(reader.position) !== null) {
        throw new ApiError("unavailable", "the log dropped the beginning of the output while it was read");
      }
      break;
    }
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
