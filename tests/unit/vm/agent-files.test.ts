/** Requests for the files of a guest whose bytes may be hostile, against a scripted agent. */
import { describe, expect, test } from "bun:test";
import { constants } from "node:os";
import type { GuestEntry } from "../../../src/domain/tree/guest-file.ts";
import { type ByteString, type GuestPath, parseGuestPathText } from "../../../src/domain/tree/guest-path.ts";
import { type AgentError, AgentProtocolError } from "../../../src/vm/agent/agent.ts";
import { FileSession } from "../../../src/vm/agent/files/file-session.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import {
  AgentFrame,
  FILES_COUNT_MAX,
  FileEvent,
  FileFlag,
  FileOp,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  Stream,
  WATCHES_COUNT_MAX,
  WINDOW_BYTES_INITIAL,
} from "../../../src/vm/agent/protocol.ts";
import { done, failure, openAgent, openAgentFiles, problem, text } from "../../support/guests/agent-script.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";
import { turns, until } from "../../support/waiting.ts";

const { errno } = constants;
const NEVER = new AbortController().signal;
const at = (path: string) => ({ path: parseGuestPathText(path), user: "" });
const STAT = { follow: true, signal: NEVER };

interface RecordFields {
  readonly mode?: number;
  readonly size?: bigint;
  readonly path?: string;
  readonly target?: string;
  readonly user?: string;
  readonly group?: string;
  readonly attributes?: Uint8Array;
  readonly length?: number;
}

/** An entry record; `length` replaces its own. */
function entryRecord(fields: RecordFields = {}): Buffer {
  const { mode = 0o100_644, size = 5n, path = "/f", target = "", user = "", group = "" } = fields;
  const attributes = fields.attributes ?? new Uint8Array();
  const texts = [path, target, user, group].map((value) => Buffer.from(value, "latin1"));
  const rest = Buffer.concat([...texts, attributes]);
  const head = packIntegers(
    ...([
      [32, mode],
      [32, 1],
      [32, 2],
      [64, size],
      [64, 1_500_000_000_000_000_007n],
      [64, 77],
      [32, 1],
    ] as const),
    ...texts.map((bytes) => [16, bytes.byteLength] as const),
    [32, attributes.byteLength],
  );
  return Buffer.concat([packIntegers([32, fields.length ?? 4 + head.byteLength + rest.byteLength]), head, rest]);
}

const attribute = (name: string, value: string, nameBytes = name.length) =>
  Buffer.concat([packIntegers([16, nameBytes], [16, value.length]), text(name + value)]);
const progress = packIntegers([32, 12], [64, 1]);

describe("a request", () => {
  test("names the command, the user, the paths and the properties", async () => {
    const { guest, command, files, output } = await openAgentFiles();
    const owner = { uid: 7, gid: 8 };
    const attributes = new Map([
      ["user.a" as ByteString, text("b")],
      ["user.c" as ByteString, null],
    ]);
    const changed = files.change({ ...at("/d/ü"), user: "app" }, { mode: 0o640, owner, attributes, signal: NEVER });
    const { session, payload } = await guest.frame(HostFrame.fileOpen);
    expect(payload.readUInt32LE(0)).toBe(command);
    expect([payload.readUInt16LE(4), payload.readUInt16LE(6)]).toEqual([
      FileOp.attributes,
      FileFlag.follow | FileFlag.mode | FileFlag.owner,
    ]);
    expect([payload.readUInt32LE(16), payload.readUInt32LE(20), payload.readUInt32LE(24)]).toEqual([0o640, 7, 8]);
    expect(payload.readUInt16LE(48)).toBe(6);
    const strings = payload.subarray(52);
    expect(strings.toString("latin1")).toBe(
      "\x03\x00app\x05\x00/d/\xc3\xbc\x06\x00user.a\x01\x00b\x06\x00user.c\xff\xff",
    );
    output(session, entryRecord({ path: "/d/\xc3\xbc", user: "app", attributes: attribute("user.a", "b") }));
    guest.send(AgentFrame.done, session, done());
    const expected: Partial<GuestEntry> = { type: "f", mode: 0o644, uid: 1, gid: 2, size: 5, inode: 77n, nlink: 1 };
    expect(await changed).toMatchObject({ ...expected, user: "app", mtimeNs: 1_500_000_000_000_000_007n });
    expect([...(await changed).attributes]).toEqual([["user.a" as ByteString, text("b")]]);
  });

  test("describes a file that is larger than a number can say", async () => {
    for (const size of [2n ** 53n - 1n, 2n ** 53n, 2n ** 63n - 1n]) {
      const { guest, agent, files, output } = await openAgentFiles();
      const stat = files.stat(at("/f"), STAT);
      const { session } = await guest.frame(HostFrame.fileOpen);
      output(session, entryRecord({ size }));
      guest.send(AgentFrame.done, session, done());
      expect((await stat).size).toBe(Number.MAX_SAFE_INTEGER);
      const flushed = agent.flush();
      guest.send(AgentFrame.done, (await guest.frame(HostFrame.flush)).session, done());
      await flushed;
    }
  });

  test("ignores records that say only that the guest works", async () => {
    const { guest, files, output } = await openAgentFiles();
    const moved = files.move(at("/a"), { to: "/b" as GuestPath, replace: false, signal: NEVER });
    const { session } = await guest.frame(HostFrame.fileOpen);
    output(session, Buffer.concat([progress, progress.subarray(0, 5)]));
    output(session, Buffer.concat([progress.subarray(5), entryRecord({ path: "/b" })]));
    guest.send(AgentFrame.done, session, done());
    expect((await moved).path).toBe("/b" as ByteString);
  });

  test("reports the guest's error", async () => {
    const { guest, files } = await openAgentFiles();
    const stat = failure(files.stat(at("/none"), STAT));
    const { session } = await guest.frame(HostFrame.fileOpen);
    guest.send(AgentFrame.error, session, problem(errno.ENOENT, "file /none"));
    expect(((await stat) as AgentError).errno).toBe(errno.ENOENT);
  });

  test("whose strings do not fit a frame is refused", async () => {
    const { files } = await openAgentFiles();
    const from = Array.from({ length: 20 }, () => `/${"x/".repeat(2000)}` as GuestPath);
    const joined = (await failure(files.join(at("/to"), { from, signal: NEVER }))) as AgentError;
    expect(joined.errno).toBe(errno.E2BIG);
  });
});

describe("a hostile record", () => {
  const cases: readonly (readonly [string, Buffer])[] = [
    ["is too short", entryRecord({ length: 55 })],
    ["is too long", entryRecord({ length: 100_000 })],
    ["is longer than its fields", Buffer.concat([entryRecord({ length: 59 }), Buffer.alloc(1)])],
    ["is shorter than its fields", entryRecord({ length: 57 })],
    ["is of no type", entryRecord({ mode: 0o644 })],
    ["has more than a mode", entryRecord({ mode: 0o1100_644 })],
    ["has a NUL in its path", entryRecord({ path: "/\0" })],
    ["has too long a target", entryRecord({ target: "x".repeat(4097) })],
    ["has too long a user", entryRecord({ user: "x".repeat(257) })],
    ["has an attribute that is longer than its bytes", entryRecord({ attributes: attribute("user.a", "b", 99) })],
    ["has an attribute without a name", entryRecord({ attributes: attribute("", "b") })],
    ["has half an attribute", entryRecord({ attributes: Buffer.alloc(3) })],
  ];
  test.each(cases)("that %s closes the stream", async (_name, record) => {
    const { guest, agent, files, output } = await openAgentFiles();
    const stat = failure(files.stat(at("/f"), STAT));
    const { session } = await guest.frame(HostFrame.fileOpen);
    output(session, record);
    guest.send(AgentFrame.done, session, done());
    expect(await stat).toBeInstanceOf(AgentProtocolError);
    expect(await failure(agent.flush())).toBeInstanceOf(AgentProtocolError);
  });

  test.each(["/etc/passwd", "..", "a/../b", "a//b", "./a"])("of a listing cannot lead out by %p", async (path) => {
    const { guest, files, output } = await openAgentFiles();
    const entries = files.list(at("/d"), { depth: 1, ...STAT });
    const listed = failure(entries.next());
    const { session } = await guest.frame(HostFrame.fileOpen);
    output(session, entryRecord({ path }));
    expect(await listed).toBeInstanceOf(AgentProtocolError);
  });

  test("of a watch has a known type and a relative path", async () => {
    const watchRecord = (type: number, path: string) =>
      Buffer.concat([
        packIntegers([32, 16 + path.length], [32, type], [32, 3], [16, path.length], [16, 0]),
        text(path),
      ]);
    for (const record of [watchRecord(11, "a"), watchRecord(FileEvent.create, "../a")]) {
      const { guest, files, output } = await openAgentFiles();
      const events = files.watch(at("/d"), { recursive: true, signal: NEVER });
      const first = events.next();
      const { session } = await guest.frame(HostFrame.fileOpen);
      output(session, watchRecord(FileEvent.ready, ""));
      expect((await first).value).toEqual({ type: "ready", cookie: 3, path: "" as ByteString });
      const next = failure(events.next());
      output(session, record);
      expect(await next).toBeInstanceOf(AgentProtocolError);
    }
  });

  test("or a second one after a result closes the stream", async () => {
    for (const extra of [entryRecord(), text("x")]) {
      const { guest, files, output } = await openAgentFiles();
      const stat = failure(files.stat(at("/f"), STAT));
      const { session } = await guest.frame(HostFrame.fileOpen);
      output(session, Buffer.concat([entryRecord(), extra]));
      guest.send(AgentFrame.done, session, done());
      expect(await stat).toBeInstanceOf(AgentProtocolError);
    }
  });
});

describe("a stream of the guest", () => {
  test("may cut records anywhere", async () => {
    const random = seededRandom(seedOfTests());
    const paths = ["", ...Array.from({ length: 200 }, (_, n) => `d/${"n".repeat(n + 1)}`)];
    const stream = Buffer.concat(paths.map((path) => entryRecord({ path })));
    const { guest, files, output } = await openAgentFiles();
    const listed: string[] = [];
    const reading = (async () => {
      for await (const { path } of files.list(at("/d"), { depth: 2, ...STAT })) listed.push(path);
    })();
    const { session } = await guest.frame(HostFrame.fileOpen);
    for (let offset = 0; offset < stream.byteLength; ) {
      const end = Math.min(stream.byteLength, offset + 1 + random.below(300));
      output(session, stream.subarray(offset, end));
      offset = end;
    }
    guest.send(AgentFrame.done, session, done(201n));
    await reading;
    expect(listed).toEqual(paths);
  });

  test("is bounded by the reader's pace", async () => {
    const { guest, files, output } = await openAgentFiles();
    const reading = files.read(at("/f"), { signal: NEVER });
    const { session } = await guest.frame(HostFrame.fileOpen);
    const record = entryRecord({ size: 10n ** 9n });
    output(session, record);
    await using file = await reading;
    const piece = Buffer.alloc(32_768);
    let sentBytes = record.byteLength;
    for (; sentBytes + piece.byteLength <= WINDOW_BYTES_INITIAL; sentBytes += piece.byteLength) output(session, piece);
    await turns(10);
    // The reader has taken the record alone, which is far less than half a window.
    expect(guest.frames.filter(({ type }) => type === HostFrame.window)).toEqual([]);
    output(session, Buffer.alloc(WINDOW_BYTES_INITIAL - sentBytes + 1));
    const chunks = failure((async () => await Array.fromAsync(file.chunks))());
    expect(await chunks).toBeInstanceOf(AgentProtocolError);
  });

  test("ends with an error when the guest makes no progress", async () => {
    const { guest, agent } = openAgent();
    const sent: number[] = [];
    const link = {
      post: (type: number) => void sent.push(type),
      postAsked: () => undefined,
      sendMade: async () => undefined,
      send: async () => undefined,
      forget: () => undefined,
      fail: (error: Error) => error,
      open: async (_session: unknown, transmit: (id: number) => Promise<void>) => await transmit(5),
    };
    const session = await FileSession.open(link, "file", new Uint8Array(), NEVER);
    expect(((await failure(session.chunks(1).next())) as AgentError).errno).toBe(errno.ETIMEDOUT);
    expect(sent).toEqual([HostFrame.fileEnd]);
    expect([guest.frames, agent.uninvitedCount]).toEqual([[], 0]);
  });
});

describe("a write", () => {
  test("waits for credit, and ends with the content", async () => {
    const { guest, files, output } = await openAgentFiles();
    const content = async function* () {
      for (let n = 0; n < 4; n++) yield new Uint8Array(INPUT_WINDOW_BYTES_INITIAL).fill(n);
    };
    const writing = files.write(at("/f"), { parents: true, signal: NEVER }, content());
    const { session, payload } = await guest.frame(HostFrame.fileOpen);
    expect(payload.readUInt16LE(6)).toBe(FileFlag.parents);
    const sentBytes = () =>
      guest.frames.filter(({ type }) => type === HostFrame.stdin).reduce((sum, each) => sum + each.payload.length, 0);
    for (let n = 1; n <= 4; n++) {
      await until("the content is sent", () => sentBytes() === n * INPUT_WINDOW_BYTES_INITIAL);
      await turns(10);
      expect(sentBytes()).toBe(n * INPUT_WINDOW_BYTES_INITIAL);
      guest.send(AgentFrame.window, session, packIntegers([32, Stream.stdin], [32, INPUT_WINDOW_BYTES_INITIAL]));
    }
    await until("the content ends", () => guest.frames.at(-1)?.payload.byteLength === 0);
    output(session, entryRecord());
    guest.send(AgentFrame.done, session, done(1n));
    expect((await writing).type).toBe("f");
  });

  test("that the guest refuses does not wait for the rest of the content", async () => {
    const { guest, files } = await openAgentFiles();
    let isOver = false;
    const content = {
      [Symbol.asyncIterator]: () => ({
        next: () => new Promise<never>(() => undefined),
        return: () => {
          isOver = true;
          return new Promise<never>(() => undefined);
        },
      }),
    };
    const writing = failure(files.write(at("/f"), { signal: NEVER }, content));
    const { session } = await guest.frame(HostFrame.fileOpen);
    guest.send(AgentFrame.error, session, problem(errno.EACCES, "file /f"));
    expect(((await writing) as AgentError).errno).toBe(errno.EACCES);
    expect(isOver).toBe(true);
  });

  test("whose content fails ends the work in the guest", async () => {
    const { guest, files } = await openAgentFiles();
    const left = new Error("the client left");
    const content = async function* () {
      yield text("half");
      throw left;
    };
    const writing = failure(files.write(at("/f"), { signal: NEVER }, content()));
    const { session } = await guest.frame(HostFrame.fileEnd);
    guest.send(AgentFrame.error, session, problem(errno.ECANCELED, "ended"));
    expect(await writing).toBe(left);
  });
});

describe("a caller that leaves", () => {
  test("ends the work, and the guest's place is free when the guest has confirmed it", async () => {
    const { guest, files, output } = await openAgentFiles();
    const left = new AbortController();
    const requests = Array.from({ length: FILES_COUNT_MAX }, () =>
      failure(files.stat(at("/f"), { follow: true, signal: left.signal })),
    );
    const last = await guest.frame(HostFrame.fileOpen, FILES_COUNT_MAX - 1);
    left.abort(new Error("left"));
    await guest.frame(HostFrame.fileEnd, FILES_COUNT_MAX - 1);
    const refused = (await failure(files.stat(at("/f"), STAT))) as AgentError;
    expect(refused.errno).toBe(errno.EAGAIN);
    // Watches have sessions of their own.
    const watches = Array.from({ length: WATCHES_COUNT_MAX + 1 }, () =>
      files.watch(at("/d"), { recursive: false, signal: NEVER }).next(),
    );
    expect(((await failure(watches.at(-1) ?? Promise.resolve())) as AgentError).errno).toBe(errno.EAGAIN);
    // The bytes that the guest sent before are dropped.
    output(last.session, entryRecord());
    for (const { session } of guest.frames.filter(({ type }) => type === HostFrame.fileEnd)) {
      guest.send(AgentFrame.error, session, problem(errno.ECANCELED, "ended"));
    }
    expect((await Promise.all(requests)).map(({ message }) => message)).toEqual(requests.map(() => "left"));
    const sentCount = guest.frames.length;
    void files.stat(at("/f"), STAT).catch(() => undefined);
    await until("another request is sent", () => guest.frames.length > sentCount);
  });

  test("ends the stream of a guest that sends beyond its credit", async () => {
    const { guest, agent, files, output } = await openAgentFiles();
    const left = new AbortController();
    const reading = failure(files.read(at("/f"), { signal: left.signal }));
    const { session } = await guest.frame(HostFrame.fileOpen);
    left.abort(new Error("left"));
    await guest.frame(HostFrame.fileEnd);
    for (let bytes = 0; bytes <= WINDOW_BYTES_INITIAL; bytes += 65_000) output(session, Buffer.alloc(65_000));
    expect(await reading).toBeInstanceOf(Error);
    expect(await failure(agent.flush())).toBeInstanceOf(AgentProtocolError);
  });

  test("may be a hold, which ends all requests and waits for their ends", async () => {
    const { guest, agent, files } = await openAgentFiles();
    const stat = failure(files.stat(at("/f"), STAT));
    const { session } = await guest.frame(HostFrame.fileOpen);
    const held = agent.hold();
    expect((await guest.frame(HostFrame.fileEnd)).session).toBe(session);
    expect(guest.frames.some(({ type }) => type === HostFrame.hold)).toBe(false);
    guest.send(AgentFrame.error, session, problem(errno.ECANCELED, "ended"));
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.hold)).session, done());
    await held;
    expect(((await stat) as AgentError).errno).toBe(errno.EAGAIN);
  });
});
