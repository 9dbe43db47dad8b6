import { createHash, type Hash, randomBytes } from "node:crypto";
import { GUEST_NAME_BYTES_MAX } from "../../domain/tree/guest-path.ts";
import { INDEX_DEPTH_COUNT_MAX, type IndexLimits } from "../limits.ts";
import { BLOCK_BYTES, BlockMap } from "./block-map.ts";
import { Column } from "./columns.ts";
import { EXTENT_BYTES, LayerIndexError, readSafeU64 } from "./layer-index-format.ts";
import { RecordType, refuse, type StreamRecord } from "./layer-index-stream.ts";
import { LinkedFiles } from "./linked-files.ts";
import { NameTable } from "./name-table.ts";

const SLASH = 0x2f;
const DOT = 0x2e;
const FINGERPRINT_KEY_BYTES = 32;

/** A file whose extents are still arriving. */
interface OpenFile {
  readonly path: Buffer;
  readonly inode: number;
  readonly size: number;
  /** lowest file offset at which the next extent may begin */
  logicalEnd: number;
  /** hash of size and extents, for a file with several names */
  readonly fingerprint: Hash | null;
  /** true when an earlier name of the inode has claimed the blocks */
  readonly isKnown: boolean;
}

interface KnownDirectory {
  readonly entry: number;
  /** end of its name in the path */
  readonly end: number;
}

/**
 * Checks that need several records: the paths form a tree without duplicates, extents are sorted and within the file and
 * the disk, and no two files share a block.
 */
export class LayerValidator {
  readonly names = new NameTable();
  readonly #diskBytes: number;
  readonly #limits: IndexLimits;
  readonly #blocks = new BlockMap();
  /** The fingerprints are keyed, so that a guest cannot construct two equal ones. */
  readonly #linkedFiles = new LinkedFiles();
  readonly #fingerprintKey = randomBytes(FINGERPRINT_KEY_BYTES);
  readonly #directories = new Column(Uint8Array);
  #hasRoot = false;
  #last = 0;
  #openFile: OpenFile | null = null;
  #lastDirectory: Buffer = Buffer.alloc(0);
  /** the directories of the path `#lastDirectory`, outermost first */
  readonly #lastDirectories: KnownDirectory[] = [];
  #extentsCount = 0;
  #contentBytes = 0;

  constructor(diskBytes: number, limits: IndexLimits) {
    this.#diskBytes = diskBytes;
    this.#limits = limits;
  }

  isDirectory(entry: number): boolean {
    return this.#directories.get(entry) === 1;
  }

  /** memory use, in `bytes` */
  get heldBytes(): number {
    const parts = [this.names, this.#blocks, this.#linkedFiles, this.#directories];
    return parts.reduce((bytes, { heldBytes }) => bytes + heldBytes, 0);
  }

  /**
   * Returns the entry that the record describes or continues.
   * @throws LayerIndexError
   */
  accept(record: StreamRecord): number {
    if (record.type === RecordType.moreExtents) {
      if (this.#openFile === null) throw new LayerIndexError("more extents without a file");
    } else {
      this.#closeFile();
      this.#last = this.#hasRoot ? this.#addEntry(record) : this.#addRoot(record);
      if (record.type === RecordType.file) this.#openFile = this.#openedFile(record);
    }
    return this.#last;
  }

  /**
   * Checks extents of the last record. A record's extents may be passed in any number of calls, in order.
   * @throws LayerIndexError
   */
  acceptExtents(extents: Buffer): void {
    if (this.#openFile !== null) this.#acceptExtents(this.#openFile, extents);
  }

  /**
   * Returns the disk space of all files, in `bytes`.
   * @throws LayerIndexError
   */
  finish(): number {
    this.#closeFile();
    if (!this.#hasRoot) throw new LayerIndexError("index stream has no root");
    return this.#contentBytes;
  }

  #addRoot(record: StreamRecord): number {
    if (record.path.length > 0 || record.type !== RecordType.directory) {
      throw new LayerIndexError("the first record is not the root directory");
    }
    this.#hasRoot = true;
    this.#directories.set(0, 1);
    return 0;
  }

  #addEntry(record: StreamRecord): number {
    const { path } = record;
    const { entriesCountMax, namesBytesMax } = this.#limits;
    if (this.names.count >= entriesCountMax) throw new LayerIndexError(`more than ${entriesCountMax} entries`);
    const nameStart = path.lastIndexOf(SLASH) + 1;
    const parent = this.#parentOf(path, Math.max(0, nameStart - 1), nameStart > 0);
    checkName(path, nameStart);
    const entry = this.names.add(parent, path, nameStart, path.length);
    if (entry === null) refuse(path, "path occurs twice");
    if (this.names.depthOf(entry) > INDEX_DEPTH_COUNT_MAX) refuse(path, "too deep");
    if (this.names.namesBytes > namesBytesMax) throw new LayerIndexError("names are too long altogether");
    if (record.type === RecordType.directory) this.#directories.set(entry, 1);
    return entry;
  }

  /** The directory `path[0, end)`. Most paths share directories with the previous path, so those are remembered. */
  #parentOf(path: Buffer, end: number, hasParent: boolean): number {
    if (!hasParent) return 0;
    if (end === 0) refuse(path, "path is not relative");
    const directory = path.subarray(0, end);
    const sharedCount = this.#sharedDirectories(directory);
    this.#lastDirectories.length = sharedCount;
    let { entry: parent, end: start } = this.#lastDirectories[sharedCount - 1] ?? { entry: 0, end: -1 };
    while (start < end) {
      const slash = path.indexOf(SLASH, start + 1);
      const child = this.names.find(parent, path, start + 1, slash);
      if (child === null || !this.isDirectory(child)) refuse(path, "parent is not a directory of this index");
      parent = child;
      start = slash;
      this.#lastDirectories.push({ entry: parent, end: start });
    }
    if (this.#lastDirectory.length !== end || !this.#lastDirectory.equals(directory)) {
      this.#lastDirectory = Buffer.from(directory);
    }
    return parent;
  }

  /** Number of the last path's directories that are this directory or above it. */
  #sharedDirectories(directory: Buffer): number {
    let low = 0;
    let high = this.#lastDirectories.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      const { end } = this.#lastDirectories[middle - 1] as KnownDirectory;
      const isBelow = end === directory.length || directory[end] === SLASH;
      if (isBelow && end <= directory.length && directory.compare(this.#lastDirectory, 0, end, 0, end) === 0)
        low = middle;
      else high = middle - 1;
    }
    return low;
  }

  #openedFile(record: StreamRecord): OpenFile {
    const { path, inode, size } = record;
    const fingerprint = record.nlink > 1 ? createHash("sha256").update(this.#fingerprintKey) : null;
    fingerprint?.update(String(size));
    const isKnown = fingerprint !== null && this.#linkedFiles.find(inode) !== null;
    return { path: Buffer.from(path), inode, size, logicalEnd: 0, fingerprint, isKnown };
  }

  #acceptExtents(file: OpenFile, extents: Buffer): void {
    this.#extentsCount += extents.length / EXTENT_BYTES;
    const { extentsCountMax } = this.#limits;
    if (this.#extentsCount > extentsCountMax) throw new LayerIndexError(`more than ${extentsCountMax} extents`);
    file.fingerprint?.update(extents);
    for (let offset = 0; offset < extents.length; offset += EXTENT_BYTES) this.#acceptExtent(file, extents, offset);
  }

  #acceptExtent(file: OpenFile, extents: Buffer, offset: number): void {
    const logical = readSafeU64(extents, offset);
    const physical = readSafeU64(extents, offset + 8);
    const length = readSafeU64(extents, offset + 16);
    if (logical === null || physical === null || length === null) refuse(file.path, "extent is over 2^53-1");
    if (length === 0) refuse(file.path, "extent is empty");
    if (logical < file.logicalEnd) refuse(file.path, "extents overlap or are not sorted");
    // Subtracted, because a sum of two such numbers may be inexact.
    if (logical > file.size || length > file.size - logical) refuse(file.path, "extent is past the end of the file");
    if (physical > this.#diskBytes || length > this.#diskBytes - physical) {
      refuse(file.path, "extent is past the end of the disk");
    }
    if (physical % BLOCK_BYTES !== 0) refuse(file.path, "extent is not aligned to a block");
    file.logicalEnd = logical + length;
    if (file.isKnown) return;
    if (!this.#blocks.claim(physical, physical + length)) refuse(file.path, "shares a block with another file");
    this.#contentBytes += length;
  }

  /** Checks that a file with several names is the same under each of them. */
  #closeFile(): void {
    const file = this.#openFile;
    this.#openFile = null;
    if (file === null || file.fingerprint === null) return;
    const fingerprint = file.fingerprint.digest().readUIntLE(0, 6);
    const previous = this.#linkedFiles.find(file.inode);
    if (previous === null) this.#linkedFiles.add(file.inode, fingerprint);
    else if (previous !== fingerprint) refuse(file.path, `differs from another link of inode ${file.inode}`);
  }
}

/** @throws LayerIndexError unless `path` from `start` on is a valid file name */
function checkName(path: Buffer, start: number): void {
  const length = path.length - start;
  if (length === 0) refuse(path, "empty name");
  if (length > GUEST_NAME_BYTES_MAX) refuse(path, `name of ${length} bytes`);
  if (path.indexOf(0, start) !== -1) refuse(path, "name has NUL");
  const isDots = path[start] === DOT && (length === 1 || (length === 2 && path[start + 1] === DOT));
  if (isDots) refuse(path, 'name is "." or ".."');
}
