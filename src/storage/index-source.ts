import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { LayerIndexError } from "./layer-index-format.ts";

/** Where the bytes of a stored index come from. */
export interface IndexSource {
  readonly sizeBytes: number;
  /** true when reads cost no more than memory does */
  readonly isInMemory: boolean;
  /**
   * The bytes from `position` on, as many as `buffer` has: in it, or in memory that is not to be written to.
   * @throws LayerIndexError when there are not as many, or it is closed
   */
  read(buffer: Buffer, position: number): Buffer;
  /** idempotent */
  close(): void;
}

/** An index that is read where it is needed, and stays open. */
export function openIndexFile(path: string): IndexSource {
  const fd = openSync(path, "r");
  let isOpen = true;
  return {
    sizeBytes: fstatSync(fd).size,
    isInMemory: false,
    read: (buffer, position) => {
      if (!isOpen) throw new LayerIndexError("layer index is closed");
      const got = readSync(fd, buffer, 0, buffer.length, position);
      if (got !== buffer.length) throw new LayerIndexError("layer index is cut short");
      return buffer;
    },
    close: () => {
      if (isOpen) closeSync(fd);
      isOpen = false;
    },
  };
}

/** An index that is read as a whole, and needs no descriptor; null when it is larger than `bytesMax`. */
export function loadIndexFile(path: string, bytesMax: number): IndexSource | null {
  const file = openIndexFile(path);
  using _file = { [Symbol.dispose]: () => file.close() };
  return file.sizeBytes > bytesMax ? null : indexInMemory(file.read(Buffer.alloc(file.sizeBytes), 0));
}

function indexInMemory(bytes: Buffer): IndexSource {
  return {
    sizeBytes: bytes.length,
    isInMemory: true,
    read: ({ length }, position) => {
      if (position + length > bytes.length) throw new LayerIndexError("layer index is cut short");
      return bytes.subarray(position, position + length);
    },
    close: () => undefined,
  };
}
