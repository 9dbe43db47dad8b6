import {
  AgentFrame,
  FILE_ENTRY_FIXED_BYTES,
  FILE_PROGRESS_BYTES,
  FILE_STRING_NONE,
  FILE_USER_FIXED_BYTES,
  FILE_WATCH_FIXED_BYTES,
  FileFlag,
  type FileOp,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  Stream,
} from "../../../src/vm/agent/protocol.ts";
import { execFrames, type Frame, frame, type NativeAgent, parseError, u16, u32, u64 } from "./native-agent.ts";

/** Session of the command whose files are requested. */
export const TARGET = 5;
export const TO_END = 0xffff_ffff_ffff_ffffn;

export interface FileRequest {
  readonly op: (typeof FileOp)[keyof typeof FileOp];
  readonly path?: string | Uint8Array;
  readonly flags?: readonly (keyof typeof FileFlag)[];
  readonly target?: number;
  readonly user?: string;
  readonly uid?: number;
  readonly gid?: number;
  readonly mode?: number;
  readonly owner?: readonly [uid: number, gid: number];
  readonly depth?: number;
  readonly offset?: bigint | number;
  readonly length?: bigint | number;
  /** strings of the operation; null is none */
  readonly more?: readonly (string | Uint8Array | null)[];
}

export function fileOpen(session: number, request: FileRequest): Buffer {
  const flags = (request.flags ?? []).reduce((sum, name) => sum | FileFlag[name], 0);
  const strings = [request.user ?? "", request.path ?? "/", ...(request.more ?? [])];
  const [ownerUid, ownerGid] = request.owner ?? [0, 0];
  const words = [request.uid ?? 0, request.gid ?? 0, request.mode ?? 0, ownerUid, ownerGid, request.depth ?? 0];
  return frame(
    HostFrame.fileOpen,
    session,
    u32(request.target ?? TARGET),
    u16(request.op),
    u16(flags),
    ...words.map(u32),
    u64(request.offset ?? 0),
    u64(request.length ?? TO_END),
    u16(strings.length),
    u16(0),
    ...strings.map((text) => {
      const bytes = Buffer.from(text ?? "");
      return Buffer.concat([u16(text === null ? FILE_STRING_NONE : bytes.length), bytes]);
    }),
  );
}

export interface FileAnswer {
  /** the bytes of the stream */
  readonly bytes: Buffer;
  /** the number of DONE */
  readonly done: bigint | null;
  readonly error: { readonly errno: number; readonly text: string } | null;
}

/** Starts the command whose files are requested; it waits for the end of its input. */
export async function startTarget(agent: NativeAgent, session = TARGET): Promise<void> {
  agent.send(execFrames(session, { argv: ["cat"], stdin: true, timeoutMs: 120_000 }));
  const { type } = await agent.next();
  if (type !== AgentFrame.started) throw new Error(`a frame of type ${type}`);
}

/** Receives the frames of requests, and grants credit for all of their bytes. */
export async function answer(agent: NativeAgent, session: number): Promise<FileAnswer> {
  const chunks: Buffer[] = [];
  for (;;) {
    const next: Frame = await agent.next();
    if (next.session !== session) continue;
    if (next.type === AgentFrame.output) {
      chunks.push(Buffer.from(next.payload.subarray(4)));
      agent.send(frame(HostFrame.window, session, u32(Stream.stdout), u32(next.payload.length - 4)));
    } else if (next.type !== AgentFrame.window) {
      const isDone = next.type === AgentFrame.done;
      const done = isDone ? next.payload.readBigUInt64LE(0) : null;
      return { bytes: Buffer.concat(chunks), done, error: isDone ? null : parseError(next) };
    }
  }
}

let lastSession = 1000;

/** Makes a request without content. */
export async function ask(agent: NativeAgent, request: FileRequest): Promise<FileAnswer> {
  const session = ++lastSession;
  agent.send(fileOpen(session, request));
  return await answer(agent, session);
}

/** Writes content, as the agent gives credit for it. */
export async function write(agent: NativeAgent, request: FileRequest, content: Uint8Array): Promise<FileAnswer> {
  const session = ++lastSession;
  agent.send(fileOpen(session, request));
  let credit = INPUT_WINDOW_BYTES_INITIAL;
  let at = 0;
  for (;;) {
    while (at < content.length && credit > 0) {
      const size = Math.min(credit, content.length - at, 65_536);
      agent.send(frame(HostFrame.stdin, session, content.subarray(at, at + size)));
      at += size;
      credit -= size;
      if (at === content.length) agent.send(frame(HostFrame.stdin, session));
    }
    if (content.length === 0) agent.send(frame(HostFrame.stdin, session));
    if (at === content.length) return await answer(agent, session);
    const next = await agent.next();
    if (next.session !== session) continue;
    if (next.type === AgentFrame.error) return { bytes: Buffer.alloc(0), done: null, error: parseError(next) };
    if (next.type === AgentFrame.window) credit += next.payload.readUInt32LE(4);
  }
}

export interface EntryRecord {
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly size: bigint;
  readonly mtimeNs: bigint;
  readonly inode: bigint;
  readonly links: number;
  readonly path: string;
  readonly link: string;
  readonly user: string;
  readonly group: string;
  readonly attributes: Readonly<Record<string, string>>;
}

/** Texts are bytes, as latin1. */
function parseEntry(bytes: Buffer): EntryRecord {
  let at = FILE_ENTRY_FIXED_BYTES;
  const text = (length: number) => {
    at += length;
    return bytes.toString("latin1", at - length, at);
  };
  const [path = "", link = "", user = "", group = ""] = [44, 46, 48, 50].map((offset) =>
    text(bytes.readUInt16LE(offset)),
  );
  const attributes: Record<string, string> = {};
  if (at + bytes.readUInt32LE(52) !== bytes.length) throw new Error("an entry of another length");
  while (at < bytes.length) {
    const [name, value] = [bytes.readUInt16LE(at), bytes.readUInt16LE(at + 2)];
    at += 4;
    attributes[text(name)] = text(value);
  }
  return {
    mode: bytes.readUInt32LE(4),
    uid: bytes.readUInt32LE(8),
    gid: bytes.readUInt32LE(12),
    size: bytes.readBigUInt64LE(16),
    mtimeNs: bytes.readBigInt64LE(24),
    inode: bytes.readBigUInt64LE(32),
    links: bytes.readUInt32LE(40),
    ...{ path, link, user, group, attributes },
  };
}

/** The records of a stream, and what follows the first `count` of them. */
export function records(bytes: Buffer, count = Number.POSITIVE_INFINITY): { records: Buffer[]; rest: Buffer } {
  const list: Buffer[] = [];
  let at = 0;
  while (at < bytes.length && list.length < count) {
    const length = bytes.readUInt32LE(at);
    if (length < FILE_PROGRESS_BYTES || at + length > bytes.length) throw new Error("a record of a wrong length");
    list.push(bytes.subarray(at, at + length));
    at += length;
  }
  return { records: list, rest: bytes.subarray(at) };
}

/** The entries of an answer, without progress. @throws Error for the answer of a failure */
export function entries({ bytes, error }: FileAnswer): EntryRecord[] {
  if (error !== null) throw new Error(error.text);
  return records(bytes)
    .records.filter(({ length }) => length !== FILE_PROGRESS_BYTES)
    .map(parseEntry);
}

/** The entry and the content of a file that was read. */
export function content({ bytes, error }: FileAnswer): { entry: EntryRecord; content: Buffer } {
  if (error !== null) throw new Error(error.text);
  const { records: first, rest } = records(bytes, 1);
  return { entry: parseEntry(first[0] as Buffer), content: rest };
}

export interface WatchRecord {
  readonly type: number;
  readonly cookie: number;
  readonly path: string;
}

export function parseWatch(bytes: Buffer): WatchRecord {
  const path = bytes.toString("latin1", FILE_WATCH_FIXED_BYTES);
  if (path.length !== bytes.readUInt16LE(12)) throw new Error("a watch record of another length");
  return { type: bytes.readUInt32LE(4), cookie: bytes.readUInt32LE(8), path };
}

export function parseUser({ bytes }: FileAnswer) {
  const counts = [12, 14, 16, 18].map((offset) => bytes.readUInt16LE(offset));
  const [nameBytes = 0, homeBytes = 0, shellBytes = 0, groupCount = 0] = counts;
  const groups = Array.from({ length: groupCount }, (_, i) => bytes.readUInt32LE(FILE_USER_FIXED_BYTES + 4 * i));
  const at = FILE_USER_FIXED_BYTES + 4 * groupCount;
  return {
    uid: bytes.readUInt32LE(4),
    gid: bytes.readUInt32LE(8),
    groups,
    name: bytes.toString("latin1", at, at + nameBytes),
    home: bytes.toString("latin1", at + nameBytes, at + nameBytes + homeBytes),
    shell: bytes.toString("latin1", at + nameBytes + homeBytes, at + nameBytes + homeBytes + shellBytes),
  };
}
