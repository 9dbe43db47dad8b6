/** Requests for files against a root that is hostile, and hosts that stall; in the agent's native build. */
import { describe, expect, test } from "bun:test";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import {
  appendFileSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import {
  AgentFrame,
  FileOp,
  FRAME_HEADER_BYTES,
  HostFrame,
  Stream,
  WATCHES_COUNT_MAX,
} from "../../../src/vm/agent/protocol.ts";
import {
  ask,
  content,
  entries,
  type FileRequest,
  fileOpen,
  parseUser,
  startTarget,
  TARGET,
} from "../../support/agent/file-requests.ts";
import {
  EXIT_REFUSED,
  type Frame,
  frame,
  NativeAgent,
  parseError,
  signalFrame,
  u32,
} from "../../support/agent/native-agent.ts";
import { until } from "../../support/waiting.ts";

const EAGAIN = 11;
const ECANCELED = 125;
const EINVAL = 22;
const ENOENT = 2;
const ESRCH = 3;
const SESSION = 50;

async function open() {
  const agent = await NativeAgent.mounted();
  await startTarget(agent);
  const at = (path: string) => join(agent.directory, "r", path);
  return { agent, at, [Symbol.asyncDispose]: () => agent[Symbol.asyncDispose]() };
}

/** The agent's children that serve requests: the parent of the target has a child. */
function visitors(agent: NativeAgent): string[] {
  const children = (pid: number | string) =>
    readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8")
      .split(" ")
      .filter((child) => child !== "");
  return children(agent.pid).filter((pid) => children(pid).length === 0);
}

describe("users", () => {
  test("are those of passwd and group, which may be hostile", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    const user = async (name: string) => {
      const resolved = await ask(agent, { op: FileOp.user, user: name });
      return resolved.error === null ? parseUser(resolved) : resolved.error;
    };
    expect(await user("root")).toEqual({ errno: ENOENT, text: "user root: No such file or directory" });
    expect(await user("12")).toMatchObject({ uid: 12, gid: 0, groups: [], name: "", home: "/", shell: "/bin/sh" });
    mkdirSync(at("etc"));
    const lines = [
      "",
      ":::",
      "short",
      `long:x:1:1::/:${"s".repeat(5000)}`,
      "nul:x:1:1::/\0:/bin/sh",
      "big:x:4294967296:1::/:/bin/sh",
      "none:x:4294967295:1::/:/bin/sh",
      "minus:x:-1:1::/:/bin/sh",
      "hex:x:0x0:0::/:/bin/sh",
      "ann:x:1000:100:Ann:/home/ann:/bin/bash",
      "ann:x:0:0::/root:/bin/sh",
      "bob:x:1000:200::relative:",
      "carl:x:4294967294:4294967294",
    ];
    const groups = ["staff:x:50:bob,ann", "bad:x:y:ann", "wheel:x:10:annette", "audio:x:29:,ann,", "last:x:60:ann"];
    writeFileSync(at("etc/passwd"), lines.join("\n"));
    writeFileSync(at("etc/group"), groups.join("\n"));
    const ann = { uid: 1000, gid: 100, groups: [50, 29, 60], name: "ann", home: "/home/ann", shell: "/bin/bash" };
    expect(await user("ann")).toEqual(ann);
    expect(await user("1000")).toEqual(ann);
    expect(await user("ann:wheel")).toEqual({ ...ann, gid: 10, groups: [] });
    expect(await user("1000:7")).toEqual({ ...ann, gid: 7, groups: [] });
    expect(await user("bob")).toMatchObject({ uid: 1000, gid: 200, groups: [50], home: "/", shell: "/bin/sh" });
    expect(await user("carl")).toMatchObject({ uid: 4_294_967_294, gid: 4_294_967_294 });
    for (const name of [
      "long",
      "nul",
      "big",
      "none",
      "minus",
      "hex",
      "4294967295",
      "-1",
      "ann ",
      ":",
      "x".repeat(9000),
    ])
      expect(await user(name)).toMatchObject({ errno: ENOENT });
    expect(await user("ann:games")).toMatchObject({ errno: ENOENT, text: "group games: No such file or directory" });
    expect(await user("a\0b")).toMatchObject({ errno: EINVAL });
    const both = await ask(agent, { op: FileOp.user, user: "ann", uid: 1 });
    expect(both.error?.errno).toBe(EINVAL);
    const names = entries(await ask(agent, { op: FileOp.stat, path: "/etc/passwd" }));
    expect(names[0]).toMatchObject({ uid: 0, user: "ann" });
  });

  test("of files without an end are read within bounds", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    mkdirSync(at("etc"));
    execFileSync("truncate", ["-s", "100M", at("etc/group")]);
    writeFileSync(at("etc/passwd"), `first:x:1:1::/:\n${"y".repeat(1 << 20)}\nlast:x:2:2::/:\n`);
    const first = await ask(agent, { op: FileOp.user, user: "first" });
    expect(parseUser(first)).toMatchObject({ uid: 1, groups: [] });
    expect((await ask(agent, { op: FileOp.user, user: "last" })).error?.errno).toBe(ENOENT);
    rmSync(at("etc/passwd"));
    execFileSync("mkfifo", [at("etc/passwd")]);
    expect((await ask(agent, { op: FileOp.user, user: "first" })).error?.errno).toBe(ENOENT);
  });

  test("a visitor has the identity of its user, no right of root, and shows its memory to no program", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    writeFileSync(at("secret"), "x", { mode: 0o600 });
    execFileSync("chmod", ["4755", at("secret")]);
    agent.send(fileOpen(SESSION, { op: FileOp.watch, path: "/", uid: 1000, gid: 1001 }));
    expect((await agent.next()).type).toBe(AgentFrame.output);
    const [pid] = visitors(agent);
    const status = readFileSync(`/proc/${pid}/status`, "utf8");
    const field = (name: string) => new RegExp(`^${name}:[ \\t]*(.*)$`, "m").exec(status)?.[1]?.trim();
    expect([field("Uid"), field("Gid"), field("Groups")]).toEqual([
      "1000\t1000\t1000\t1000",
      "1001\t1001\t1001\t1001",
      "",
    ]);
    for (const set of ["CapPrm", "CapEff", "CapAmb"]) expect(field(set)).toBe("0000000000000000");
    // A process whose memory others may read belongs to its user.
    expect(statSync(`/proc/${pid}/status`).uid).toBe(0);
    agent.send(frame(HostFrame.fileEnd, SESSION));
    expect(parseError(await agent.next()).errno).toBe(ECANCELED);
    const refused = async (request: Parameters<typeof ask>[1]) =>
      (await ask(agent, { uid: 1000, gid: 1001, ...request })).error?.errno;
    expect(await refused({ op: FileOp.directory, path: "/d" })).toBe(13);
    expect(await refused({ op: FileOp.remove, path: "/secret" })).toBe(13);
    expect(await refused({ op: FileOp.attributes, path: "/secret", flags: ["mode"], mode: 0o777 })).toBe(1);
    execFileSync("chmod", ["600", at("secret")]);
    expect(await refused({ op: FileOp.read, path: "/secret" })).toBe(13);
  });
});

describe("trees", () => {
  test("a directory of 100,000 entries is listed and removed", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    mkdirSync(at("many"));
    execFileSync("sh", ["-c", 'cd "$1" && seq 100000 | xargs -n 2000 touch', "sh", at("many")]);
    const list = await ask(agent, { op: FileOp.list, path: "/many", depth: 1 });
    expect(list.done).toBe(100_001n);
    expect(new Set(entries(list).map(({ path }) => path)).size).toBe(100_001);
    const removed = await ask(agent, { op: FileOp.remove, path: "/many", flags: ["recursive"] });
    expect(removed.done).toBe(100_001n);
    expect(existsSync(at("many"))).toBeFalse();
  }, 120_000);

  test("a tree deeper than any path is removed, and listed to its limit", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    const script = "import os,sys\nos.chdir(sys.argv[1])\nfor i in range(1500):\n os.mkdir('d'*20); os.chdir('d'*20)";
    execFileSync("python3", ["-c", script, at(".")]);
    const path = `/${"d".repeat(20)}`;
    expect((await ask(agent, { op: FileOp.list, path, depth: 64 })).done).toBe(65n);
    expect((await ask(agent, { op: FileOp.remove, path, flags: ["recursive"] })).done).toBe(1500n);
    expect(readdirSync(at("."))).toEqual([]);
  });

  test("entries with a longer path than a request can have are left out of a listing", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    const script = "import os,sys\nos.chdir(sys.argv[1])\nfor i in range(40):\n os.mkdir('d'*255); os.chdir('d'*255)";
    execFileSync("python3", ["-c", script, at(".")]);
    const list = await ask(agent, { op: FileOp.list, path: "/", depth: 64 });
    expect(entries(list).map(({ path }) => path.length)).toEqual(
      Array.from({ length: 17 }, (_, n) => n && n * 256 - 1),
    );
  });

  test("links that are swapped while a tree is removed or listed lead nowhere", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    mkdirSync(at("outside"));
    for (let index = 0; index < 100; index++) writeFileSync(at(`outside/${index}`), "");
    // Python exchanges the two names of a pair, again and again.
    const swaps = [
      "import ctypes,os,sys",
      "c=ctypes.CDLL(None)",
      "os.chdir(sys.argv[1])",
      "names=[(b'a%d'%i,b'l%d'%i) for i in range(200)]",
      "while True:",
      " for a,l in names: c.renameat2(-100,a,-100,l,2)",
    ].join("\n");
    for (let round = 0; round < 2; round++) {
      for (let index = 0; index < 200; index++) {
        mkdirSync(at(`tree/a${index}`), { recursive: true });
        symlinkSync("../outside", at(`tree/l${index}`));
      }
      const swapper = spawn("python3", ["-c", swaps, at("tree")], { stdio: "ignore" });
      await until("links are swapped", () => lstatSync(at("tree/a199")).isSymbolicLink());
      const list = await ask(agent, { op: FileOp.list, path: "/tree", depth: 9 });
      expect(entries(list).filter(({ path }) => /\/\d+$/.test(path))).toEqual([]);
      await ask(agent, { op: FileOp.remove, path: "/tree", flags: ["recursive"] });
      swapper.kill("SIGKILL");
      await once(swapper, "exit");
      rmSync(at("tree"), { recursive: true, force: true });
    }
    expect(readdirSync(at("outside")).length).toBe(100);
  });
});

describe("reads", () => {
  test("a file that shrinks or grows has no more bytes than its record says", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    writeFileSync(at("f"), Buffer.alloc(2 << 20, 1));
    // Without credit beyond the first, the visitor stops in the middle.
    agent.send(fileOpen(SESSION, { op: FileOp.read, path: "/f" }));
    const first = await agent.next();
    appendFileSync(at("f"), Buffer.alloc(1 << 20, 2));
    const chunks = [first.payload.subarray(4)];
    agent.send(frame(HostFrame.window, SESSION, u32(Stream.stdout), u32(8 << 20)));
    let next: Frame = await agent.next();
    for (; next.type === AgentFrame.output; next = await agent.next()) chunks.push(next.payload.subarray(4));
    expect(next.payload.readBigUInt64LE(0)).toBe(BigInt(2 << 20));
    const whole = content({ bytes: Buffer.concat(chunks), done: 0n, error: null });
    expect([whole.entry.size, whole.content.length]).toEqual([BigInt(2 << 20), 2 << 20]);
  });

  test("a host that grants no credit holds one visitor and a bounded stream", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    execFileSync("truncate", ["-s", "1G", at("f")]);
    agent.send(fileOpen(SESSION, { op: FileOp.read, path: "/f" }));
    let bytes = 0;
    while (bytes < 262_144) bytes += (await agent.next()).payload.length - 4;
    expect(bytes).toBe(262_144);
    expect(await agent.quiet(50)).toBeTrue();
    expect((await ask(agent, { op: FileOp.stat, path: "/f" })).done).toBe(1n);
    agent.send(frame(HostFrame.fileEnd, SESSION));
    expect(parseError(await agent.next()).errno).toBe(ECANCELED);
    expect(visitors(agent)).toEqual([]);
  });
});

describe("the end of a request", () => {
  test("of an atomic write leaves nothing", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    writeFileSync(at("f"), "old");
    agent.send(
      fileOpen(SESSION, { op: FileOp.write, path: "/f", flags: ["atomic"] }),
      frame(HostFrame.stdin, SESSION, Buffer.alloc(60_000, 1)),
    );
    await until("the temporary file is there", () => readdirSync(at(".")).length === 2);
    agent.send(frame(HostFrame.fileEnd, SESSION), frame(HostFrame.stdin, SESSION));
    let last = await agent.next();
    while (last.type === AgentFrame.window) last = await agent.next();
    expect(parseError(last).errno).toBe(ECANCELED);
    expect([readdirSync(at(".")), readFileSync(at("f"), "utf8")]).toEqual([["f"], "old"]);
  });

  test("of a visitor that stands still comes all the same, and of one that was killed", async () => {
    await using scene = await open();
    const { agent } = scene;
    agent.send(fileOpen(SESSION, { op: FileOp.watch, path: "/" }));
    await agent.next();
    process.kill(Number(visitors(agent)[0]), "SIGSTOP");
    agent.send(frame(HostFrame.fileEnd, SESSION));
    expect(parseError(await agent.next()).errno).toBe(ECANCELED);
    agent.send(fileOpen(SESSION + 1, { op: FileOp.watch, path: "/" }));
    await agent.next();
    process.kill(Number(visitors(agent)[0]), "SIGKILL");
    expect(parseError(await agent.next())).toEqual({ errno: 10, text: "the visitor died: No child processes" });
  });

  test("comes before the target's EXIT when that ends", async () => {
    await using scene = await open();
    const { agent } = scene;
    const sessions = [50, 51, 52];
    for (const session of sessions) agent.send(fileOpen(session, { op: FileOp.watch, path: "/" }));
    for (const _ of sessions) expect((await agent.next()).type).toBe(AgentFrame.output);
    agent.send(signalFrame(TARGET, 9));
    const last: Frame[] = [];
    while (last.at(-1)?.type !== AgentFrame.exit) last.push(await agent.next());
    expect(last.map(({ session }) => session).sort()).toEqual([TARGET, ...sessions]);
    for (const error of last.slice(0, -1)) expect(parseError(error).errno).toBe(ESRCH);
    agent.send(frame(HostFrame.forget, TARGET), frame(HostFrame.freeze, 60));
    expect((await agent.next()).type).toBe(AgentFrame.done);
  });

  test("there is room for a number of watches, none of which stops a quiesce; a hold waits for them", async () => {
    await using scene = await open();
    const { agent } = scene;
    for (let index = 0; index <= WATCHES_COUNT_MAX; index++)
      agent.send(fileOpen(100 + index, { op: FileOp.watch, path: "/" }));
    const frames: Frame[] = [];
    while (frames.length <= WATCHES_COUNT_MAX) frames.push(await agent.next());
    const refused = frames.filter(({ type }) => type === AgentFrame.error);
    expect(refused.map((error) => [error.session, parseError(error).errno])).toEqual([
      [100 + WATCHES_COUNT_MAX, EAGAIN],
    ]);
    // Other requests have room of their own.
    expect((await ask(agent, { op: FileOp.stat, path: "/" })).done).toBe(1n);
    agent.send(frame(HostFrame.quiesce, 200, u32(1000)));
    expect((await agent.next()).type).toBe(AgentFrame.quiesced);
    agent.send(frame(HostFrame.thaw, 200));
    expect((await agent.next()).type).toBe(AgentFrame.done);
    agent.send(frame(HostFrame.hold, 201));
    expect(parseError(await agent.next()).text).toBe("requests are under way");
    for (let index = 0; index < WATCHES_COUNT_MAX; index++) agent.send(frame(HostFrame.fileEnd, 100 + index));
    for (let index = 0; index < WATCHES_COUNT_MAX; index++)
      expect(parseError(await agent.next()).errno).toBe(ECANCELED);
    agent.send(frame(HostFrame.hold, 202));
    expect((await agent.next()).type).toBe(AgentFrame.done);
  });
});

/** A FILE_OPEN with another number in its payload. */
function changed(request: FileRequest, at: number, value: number): Buffer {
  const bytes = fileOpen(SESSION, request);
  bytes.writeUInt16LE(value, FRAME_HEADER_BYTES + at);
  return bytes;
}

const WATCH = { op: FileOp.watch, path: "/" } as const;
const STAT = { op: FileOp.stat, path: "/" } as const;
const WRITE = { op: FileOp.write, path: "/f" } as const;

test.each([
  ["an operation that does not exist", changed(STAT, 4, 12)],
  ["operation 0", changed(STAT, 4, 0)],
  ["a flag of another operation", fileOpen(SESSION, { ...STAT, flags: ["recursive"] })],
  ["a flag that does not exist", changed(STAT, 6, 512)],
  ["a number where zero must be", changed(STAT, 50, 1)],
  ["too few strings", changed(STAT, 48, 1)],
  ["more strings than there are", changed(STAT, 48, 3)],
  ["a string that ends after the frame", changed(STAT, 54, 2)],
  ["a string that ends before the frame", changed(STAT, 54, 0)],
  ["a string too many", fileOpen(SESSION, { ...STAT, more: ["/x"] })],
  ["an attribute without a value", fileOpen(SESSION, { ...WRITE, more: ["user.x"] })],
  ["no target of a move", fileOpen(SESSION, { op: FileOp.move, path: "/f" })],
  ["content for another operation", Buffer.concat([fileOpen(SESSION, WATCH), frame(HostFrame.stdin, SESSION)])],
  [
    "content after its end",
    Buffer.concat([fileOpen(SESSION, WRITE), ...[1, 2].map(() => frame(HostFrame.stdin, SESSION))]),
  ],
  [
    "credit for standard error",
    Buffer.concat([fileOpen(SESSION, WATCH), frame(HostFrame.window, SESSION, u32(2), u32(1))]),
  ],
  [
    "bytes in the end of a request",
    Buffer.concat([fileOpen(SESSION, WATCH), frame(HostFrame.fileEnd, SESSION, u32(0))]),
  ],
])("%s is malformed", async (_, bytes) => {
  await using scene = await open();
  scene.agent.send(bytes);
  expect((await scene.agent.exited).code).toBe(EXIT_REFUSED);
});
