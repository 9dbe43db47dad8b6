import { closeSync, fstatSync, openSync, statSync } from "node:fs";
import type { EventPosition } from "./position.ts";

/** One file of an event log. Its descriptor is open while it is used. */
export class Segment {
  readonly path: string;
  /** of its first event */
  readonly start: EventPosition;
  /** offset of the file's first byte in the log, in `bytes` */
  readonly base: number;
  #fd: number | null;
  #usersCount: number;

  /** @param fd a descriptor in use, which `close` ends; null: the file is not open */
  constructor(path: string, start: EventPosition, base: number, fd: number | null = null) {
    this.path = path;
    this.start = start;
    this.base = base;
    this.#fd = fd;
    this.#usersCount = fd === null ? 0 : 1;
  }

  /** Size of the file, in `bytes`; 0 when it is gone. */
  get sizeBytes(): number {
    return this.#fd === null ? (statSync(this.path, { throwIfNoEntry: false })?.size ?? 0) : fstatSync(this.#fd).size;
  }

  /** Opens the file until the result is disposed of; null when it is gone. */
  open(): (Disposable & { readonly fd: number }) | null {
    try {
      this.#fd ??= openSync(this.path, "r");
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
      throw error;
    }
    this.#usersCount += 1;
    return { fd: this.#fd, [Symbol.dispose]: () => this.close() };
  }

  /** Ends one use, such as that of the constructor's descriptor. */
  close(): void {
    this.#usersCount -= 1;
    if (this.#usersCount > 0 || this.#fd === null) return;
    closeSync(this.#fd);
    this.#fd = null;
  }
}
