import { closeSync, fstatSync, ftruncate, open, openSync, read, readSync, writev, writevSync } from "node:fs";
import { rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { type LogId, parseUuid } from "../../domain/ids.ts";
import { syncPath } from "../../system/scratch.ts";
import { type DataLayout, nameBatches } from "../layout.ts";

const openFile = promisify(open);
const readAt = promisify(read);
const truncateTo = promisify(ftruncate);
const writeAll = promisify(writev);

/** Path of an event log; a log without events has no file. */
export function eventLogPath(layout: DataLayout, id: LogId): string {
  return join(layout.events, id);
}

/** The open file of an event log, for its writer and for any number of readers. */
export class EventFile implements Disposable {
  readonly #path: string;
  readonly #fd: number;
  #isOpen = true;

  private constructor(path: string, fd: number) {
    this.#path = path;
    this.#fd = fd;
  }

  /** Creates the file. An existing one is emptied: it belongs to a start of the operation that a power failure undid. */
  static async create(path: string): Promise<EventFile> {
    return new EventFile(path, await openFile(path, "w+", 0o600));
  }

  /** Opens the file; null when there is none. */
  static open(path: string): EventFile | null {
    try {
      return new EventFile(path, openSync(path, "r"));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
      throw error;
    }
  }

  get sizeBytes(): number {
    return fstatSync(this.#fd).size;
  }

  /** Fills `buffer` from `position`, up to the end of the file; returns the number of bytes. */
  async read(buffer: Buffer, position: number): Promise<number> {
    for (let filled = 0; ; ) {
      const { bytesRead } = await readAt(this.#fd, buffer, filled, buffer.byteLength - filled, position + filled);
      filled += bytesRead;
      if (bytesRead === 0 || filled === buffer.byteLength) return filled;
    }
  }

  /** The same synchronously, for data in the page cache: a thread would take ten times as long. */
  readNow(buffer: Buffer, position: number): number {
    for (let filled = 0; ; ) {
      const bytesRead = readSync(this.#fd, buffer, filled, buffer.byteLength - filled, position + filled);
      filled += bytesRead;
      if (bytesRead === 0 || filled === buffer.byteLength) return filled;
    }
  }

  /** Writes all pieces, one after another. */
  async write(pieces: readonly Uint8Array[], position: number): Promise<void> {
    let rest = pieces;
    for (let at = position; rest.length > 0; ) {
      const { bytesWritten } = await writeAll(this.#fd, rest as Uint8Array[], at);
      at += bytesWritten;
      rest = behind(rest, bytesWritten);
    }
  }

  /** The same synchronously: a small write to the page cache takes less time than a thread takes to begin. */
  writeNow(pieces: readonly Uint8Array[], position: number): void {
    let rest = pieces;
    for (let at = position; rest.length > 0; ) {
      const bytesWritten = writevSync(this.#fd, rest as Uint8Array[], at);
      at += bytesWritten;
      rest = behind(rest, bytesWritten);
    }
  }

  async truncate(sizeBytes: number): Promise<void> {
    await truncateTo(this.#fd, sizeBytes);
  }

  /** Flushes the file and its directory entry to the disk. */
  async sync(): Promise<void> {
    await syncPath(this.#path);
    await syncPath(dirname(this.#path));
  }

  /** Idempotent. No read or write may be under way. */
  [Symbol.dispose](): void {
    if (this.#isOpen) closeSync(this.#fd);
    this.#isOpen = false;
  }
}

/** The pieces without their first `bytes`. */
function behind(pieces: readonly Uint8Array[], bytes: number): Uint8Array[] {
  let skipped = bytes;
  return pieces.flatMap((piece) => {
    const rest = piece.subarray(Math.min(skipped, piece.byteLength));
    skipped -= piece.byteLength - rest.byteLength;
    return rest.byteLength > 0 ? [rest] : [];
  });
}

export async function removeEventLog(layout: DataLayout, id: LogId): Promise<void> {
  await rm(eventLogPath(layout, id), { force: true });
}

/**
 * Removes the logs whose owners have no row. No operation may run meanwhile.
 * @param existing returns the subset of the ids that have a row
 * @throws the reason of `signal`
 */
export async function sweepEventLogs(
  layout: DataLayout,
  existing: (ids: readonly LogId[]) => ReadonlySet<string>,
  signal: AbortSignal,
): Promise<void> {
  for await (const names of nameBatches(layout.events)) {
    signal.throwIfAborted();
    const ids = names.map((name) => parseUuid<LogId>(name)).filter((id) => id !== null);
    const rows = existing(ids);
    for (const id of ids) if (!rows.has(id)) await removeEventLog(layout, id);
  }
}
