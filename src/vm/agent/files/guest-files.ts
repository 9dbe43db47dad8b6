import { constants } from "node:os";
import { given } from "../../../domain/given.ts";
import type {
  GuestEntry,
  GuestFile,
  GuestFileEvent,
  GuestFileProperties,
  GuestUser,
} from "../../../domain/tree/guest-file.ts";
import {
  type ByteString,
  byteStringToBytes,
  type GuestPath,
  textToByteString,
} from "../../../domain/tree/guest-path.ts";
import { untilAborted } from "../../../system/waiting.ts";
import { AgentError, AgentProtocolError } from "../errors.ts";
import { packIntegers } from "../frames.ts";
import type { ExecHandle } from "../process.ts";
import { FILE_STRING_NONE, FileFlag, FileOp, FRAME_PAYLOAD_BYTES_MAX } from "../protocol.ts";
import { isProgress, parseEntry, parseFileEvent, parseUser, type RecordKind, RecordReader } from "./file-records.ts";
import { type FileLink, FileSession, WatchSyncs } from "./file-session.ts";

/** Length of a read to the end of the file. */
const TO_THE_END = 0xffff_ffff_ffff_ffffn;

/** Options of every request. */
export interface FileOptions {
  /** ends the request, and the work in the guest */
  readonly signal: AbortSignal;
}

export interface ReadOptions extends FileOptions {
  /** first byte */
  readonly offset?: number;
  /** number of `bytes`; absent: to the end */
  readonly length?: number | undefined;
}

export interface WriteOptions extends FileOptions, GuestFileProperties {
  /** true: missing directories are made */
  readonly parents?: boolean;
  /** true: the file appears under its name when it is complete, as a new file */
  readonly atomic?: boolean;
  /** true: the bytes are added at the end */
  readonly append?: boolean;
  /** true: the file must not exist */
  readonly exclusive?: boolean;
}

export interface ListOptions {
  readonly follow: boolean;
  readonly depth: number;
  readonly attributes?: boolean;
}

export interface MoveOptions extends Pick<GuestFileProperties, "owner"> {
  readonly to: GuestPath;
  /** true: an existing file is replaced */
  readonly replace: boolean;
  /** true: missing directories are made, and get the owner */
  readonly parents?: boolean | undefined;
}

export interface WatchOptions {
  readonly recursive: boolean;
  readonly syncs?: WatchSyncs;
}

/** A file that is being read. Disposal ends the request; it resolves when the guest has confirmed that. */
export interface ReadFile extends AsyncDisposable {
  readonly entry: GuestEntry;
  /** the bytes, for one reader */
  readonly chunks: AsyncGenerator<Uint8Array, void, undefined>;
}

/**
 * The files of a running instance, in the mount namespace of one of its processes, in the name of a user of the guest. Paths
 * lead where they lead for that user. Every function throws AgentError with the error number of the guest: ETIMEDOUT when
 * the guest makes no progress, EAGAIN when it has too many requests, ESRCH when the process has ended; and the reason of
 * `signal`.
 */
export class GuestFiles {
  readonly #link: FileLink;
  readonly #target: Pick<ExecHandle, "session" | "started">;

  constructor(link: FileLink, target: Pick<ExecHandle, "session" | "started">) {
    this.#link = link;
    this.#target = target;
  }

  /** @param options.follow whether a final symlink is followed */
  async stat(file: GuestFile, { follow, signal }: FileOptions & { readonly follow: boolean }): Promise<GuestEntry> {
    return (await this.#entry({ ...file, op: FileOp.stat, flags: follow ? FileFlag.follow : 0, signal })).entry;
  }

  /**
   * The entries of a directory down to a depth, each before those in it, in no other order; depth 0 is the path alone. The
   * path itself is always followed. A caller that leaves early ends the request.
   * @param options.follow whether symlinks in the listing are followed
   * @param options.attributes whether the entries have their attributes
   */
  async *list(
    file: GuestFile,
    { follow, depth, attributes = false, signal }: FileOptions & ListOptions,
  ): AsyncGenerator<GuestEntry, void, undefined> {
    const flags = (follow ? FileFlag.follow : 0) | (attributes ? FileFlag.attributes : 0);
    const request = { ...file, op: FileOp.list, flags, depth, signal };
    await using session = await this.#open(request);
    yield* records(session, "entry", (record) => parseEntry(record, "relative"));
    await session.done();
  }

  /** Opens a regular file. */
  async read(file: GuestFile, { offset = 0, length, signal }: ReadOptions): Promise<ReadFile> {
    await using undo = new AsyncDisposableStack();
    const request = { ...file, op: FileOp.read, flags: FileFlag.follow, offset, length, signal };
    const session = undo.use(await this.#open(request));
    const chunks = session.chunks();
    const reader = new RecordReader("entry");
    const entry = await firstEntry(session, chunks, reader);
    const owned = undo.move();
    return {
      entry,
      chunks: contentOf(session, chunks, reader.rest()),
      [Symbol.asyncDispose]: () => owned.disposeAsync(),
    };
  }

  /** Writes a file. A caller whose `content` fails leaves the part before the failure, unless the write is atomic. */
  async write(
    file: GuestFile,
    { parents, atomic, append, exclusive, signal, ...properties }: WriteOptions,
    content: AsyncIterable<Uint8Array>,
  ): Promise<GuestEntry> {
    const flags =
      (parents === true ? FileFlag.parents : 0) |
      (atomic === true ? FileFlag.atomic : 0) |
      (append === true ? FileFlag.append : 0) |
      (exclusive === true ? FileFlag.exclusive : 0);
    const request = { ...file, op: FileOp.write, flags, properties, signal };
    await using session = await this.#open(request);
    await send(session, content);
    return (await this.#result(session)).entry;
  }

  /** Makes a directory, unless it exists; with `parents`, also the missing ones above. */
  async makeDirectory(
    file: GuestFile,
    { parents, signal, ...properties }: FileOptions & GuestFileProperties & { readonly parents: boolean },
  ): Promise<{ readonly entry: GuestEntry; readonly created: boolean }> {
    const flags = parents ? FileFlag.parents : 0;
    const { entry, count } = await this.#entry({ ...file, op: FileOp.directory, flags, properties, signal });
    return { entry, created: count > 0n };
  }

  /** Removes a file, or a directory; with `recursive`, also all that is in it. */
  async remove(file: GuestFile, { recursive, signal }: FileOptions & { readonly recursive: boolean }): Promise<void> {
    const flags = recursive ? FileFlag.recursive : 0;
    await using session = await this.#open({ ...file, op: FileOp.remove, flags, signal });
    for await (const record of records(session, "entry", (bytes) => bytes)) {
      if (!isProgress(record)) session.decode(unexpectedBytes);
    }
    await session.done();
  }

  /** Renames a file or a directory. */
  async move(from: GuestFile, { to, replace, parents, owner, signal }: FileOptions & MoveOptions): Promise<GuestEntry> {
    const flags = (replace ? FileFlag.replace : 0) | (parents === true ? FileFlag.parents : 0);
    const properties = given({ owner: owner ?? null });
    return (await this.#entry({ ...from, op: FileOp.move, flags, properties, more: [to], signal })).entry;
  }

  /** Makes a file of the contents of others, one after the other, which stay. It appears when it is complete. */
  async join(
    to: GuestFile,
    { from, signal, ...properties }: FileOptions & GuestFileProperties & { readonly from: readonly GuestPath[] },
  ): Promise<GuestEntry> {
    const request = { ...to, op: FileOp.join, flags: FileFlag.parents, properties, more: from, signal };
    return (await this.#entry(request)).entry;
  }

  /** Sets properties of what the path leads to. */
  async change(file: GuestFile, { signal, ...properties }: FileOptions & GuestFileProperties): Promise<GuestEntry> {
    const request = { ...file, op: FileOp.attributes, flags: FileFlag.follow, properties, signal };
    return (await this.#entry(request)).entry;
  }

  /** The user of a text, as in `GuestFile`; ENOENT when the guest has no such user or group. */
  async user(user: string, { signal }: FileOptions): Promise<GuestUser> {
    const path = "/" as GuestPath;
    await using session = await this.#open({ path, user, op: FileOp.user, flags: 0, signal });
    const answer: GuestUser[] = [];
    for await (const record of records(session, "user", parseUser)) {
      if (answer.push(record) > 1) session.decode(unexpectedBytes);
    }
    await session.done();
    return answer[0] ?? session.decode(unexpectedBytes);
  }

  /**
   * The changes in a directory; with `recursive`, also below. The first event is `ready`. A caller that leaves
   * ends the watch.
   * @param options.syncs requests for all events up to now
   */
  async *watch(
    file: GuestFile,
    { recursive, syncs = new WatchSyncs(), signal }: FileOptions & WatchOptions,
  ): AsyncGenerator<GuestFileEvent, void, undefined> {
    const flags = FileFlag.follow | (recursive ? FileFlag.recursive : 0);
    await using session = await this.#open({ ...file, op: FileOp.watch, flags, signal });
    using _syncs = syncs;
    for await (const event of records(session, "watch", parseFileEvent, Number.POSITIVE_INFINITY)) {
      if (event === null) syncs.answer();
      else {
        if (event.type === "ready") syncs.open(() => session.sync());
        yield event;
      }
    }
    await session.done();
  }

  /** The result of a request without content. */
  async #entry(request: FileRequest): Promise<Result> {
    await using session = await this.#open(request);
    return await this.#result(session);
  }

  /** The one record of a result, and the number in its DONE. */
  async #result(session: FileSession): Promise<Result> {
    const chunks = session.chunks();
    const reader = new RecordReader("entry");
    const entry = await firstEntry(session, chunks, reader);
    const last = reader.isBetweenRecords ? await chunks.next() : null;
    if (last?.done !== true) session.decode(unexpectedBytes);
    return { entry, count: await session.done() };
  }

  /** Starts a request. Disposal of its session ends it. */
  async #open(request: FileRequest): Promise<FileSession> {
    const { signal } = request;
    await untilAborted(this.#target.started, signal);
    const payload = encodeFileOpen(request, this.#target.session);
    if (payload.byteLength > FRAME_PAYLOAD_BYTES_MAX) {
      throw new AgentError(constants.errno.E2BIG, "the paths and attributes of the request are too long");
    }
    return await FileSession.open(this.#link, request.op === FileOp.watch ? "watch" : "file", payload, signal);
  }
}

interface Result {
  readonly entry: GuestEntry;
  readonly count: bigint;
}

/** The fields of a FILE_OPEN. */
interface FileRequest extends GuestFile, FileOptions {
  readonly op: number;
  readonly flags: number;
  readonly depth?: number;
  readonly offset?: number;
  readonly length?: number | undefined;
  readonly properties?: GuestFileProperties;
  /** strings after the path */
  readonly more?: readonly ByteString[];
}

function encodeFileOpen(request: FileRequest, target: number): Uint8Array {
  const { op, user, path, depth = 0, offset = 0, length, properties = {}, more = [] } = request;
  const { mode, owner, attributes } = properties;
  const flags = request.flags | (mode === undefined ? 0 : FileFlag.mode) | (owner === undefined ? 0 : FileFlag.owner);
  const strings: (Uint8Array | null)[] = [textToByteString(user), path, ...more].map(byteStringToBytes);
  for (const [attribute, value] of attributes ?? []) strings.push(byteStringToBytes(attribute), value);
  const head = packIntegers(
    [32, target],
    [16, op],
    [16, flags],
    [32, 0],
    [32, 0],
    [32, mode ?? 0],
    [32, owner?.uid ?? 0],
    [32, owner?.gid ?? 0],
    [32, depth],
    [64, offset],
    [64, op === FileOp.read ? (length ?? TO_THE_END) : 0],
    [16, strings.length],
    [16, 0],
  );
  return Buffer.concat([head, ...strings.flatMap(stringOf)]);
}

function stringOf(bytes: Uint8Array | null): Uint8Array[] {
  if (bytes === null) return [packIntegers([16, FILE_STRING_NONE])];
  return [packIntegers([16, bytes.byteLength]), bytes];
}

async function firstEntry(
  session: FileSession,
  chunks: AsyncIterator<Uint8Array>,
  reader: RecordReader,
): Promise<GuestEntry> {
  for (;;) {
    const step = await chunks.next();
    if (step.done === true) return session.decode(unexpectedBytes);
    reader.push(step.value);
    let record = session.decode(() => reader.take());
    while (record !== null && isProgress(record)) record = session.decode(() => reader.take());
    const entry = record;
    if (entry !== null) return session.decode(() => parseEntry(entry, "requested"));
  }
}

/** The records of a stream. */
async function* records<T>(
  session: FileSession,
  kind: RecordKind,
  parse: (record: Uint8Array) => T,
  stillMs?: number,
): AsyncGenerator<T, void, undefined> {
  const reader = new RecordReader(kind);
  const next = () => {
    const record = reader.take();
    return record === null ? null : { value: parse(record) };
  };
  for await (const chunk of session.chunks(stillMs)) {
    reader.push(chunk);
    for (let item = session.decode(next); item !== null; item = session.decode(next)) yield item.value;
  }
  if (!reader.isBetweenRecords) session.decode(unexpectedBytes);
}

function unexpectedBytes(): never {
  throw new AgentProtocolError("the bytes of an answer are not those of its records");
}

/** The bytes after the record of a read. */
async function* contentOf(
  session: FileSession,
  chunks: AsyncGenerator<Uint8Array>,
  first: Uint8Array,
): AsyncGenerator<Uint8Array, void, undefined> {
  if (first.byteLength > 0) yield first;
  yield* chunks;
  await session.done();
}

/** Sends the content of a file until its end, or until the guest takes no more, for which it then says the reason. */
async function send(session: FileSession, content: AsyncIterable<Uint8Array>): Promise<void> {
  const iterator = content[Symbol.asyncIterator]();
  // Not awaited: a client that sends nothing must not hold the answer back.
  using _left = { [Symbol.dispose]: () => void iterator.return?.().catch(() => undefined) };
  for (;;) {
    const step = await untilAborted(iterator.next(), session.over).catch((error: unknown) => {
      if (session.over.aborted) return null;
      throw error;
    });
    if (step === null) return;
    if (step.done === true) return await session.end();
    if (!(await session.write(step.value))) return;
  }
}
