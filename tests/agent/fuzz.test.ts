/**
 * Random and mutated frames against the sanitizer build. Each seed is a whole conversation and gives the same frames
 * every time: `COPPICE_FUZZ_SEED=n bun test tests/agent/fuzz.test.ts` replays one, `COPPICE_FUZZ_COUNT=n` runs more.
 */

import { afterAll, beforeAll, expect, test } from "bun:test";
import { createServer, type Server } from "node:net";
import {
  AgentFrame,
  ExecFlag,
  FILE_OPEN_FIXED_BYTES,
  FileFlag,
  FileOp,
  FRAME_HEADER_BYTES,
  FRAME_PAYLOAD_BYTES_MAX,
  HostFrame,
  SESSION_GUEST_BIT,
  Stream,
} from "../../src/vm/agent/protocol.ts";
import { fileOpen } from "../support/agent/file-requests.ts";
import { resumeFrame } from "../support/agent/listening-agent.ts";
import {
  EXIT_CLOSED,
  EXIT_REFUSED,
  execFrames,
  execOpen,
  execSpec,
  type Frame,
  frame,
  NativeAgent,
  putOpen,
  signalFrame,
  syncFrame,
  u16,
  u32,
  u64,
} from "../support/agent/native-agent.ts";
import { dnsQuestion, heldSyn, ipv4, Kernel } from "../support/agent/packets.ts";
import { pause } from "../support/waiting.ts";

const SEEDS_COUNT_DEFAULT = 60;
const FRAMES_COUNT_MAX = 60;
const TURNS_COUNT = 30;
const replay = process.env["COPPICE_FUZZ_SEED"];
const count = Number(process.env["COPPICE_FUZZ_COUNT"] ?? SEEDS_COUNT_DEFAULT);
const seeds = replay === undefined ? Array.from({ length: count }, (_, index) => index + 1) : [Number(replay)];

let server: Server;
let serverPort = 0;
beforeAll(async () => {
  // Answers, ends or resets, depending on its input.
  server = createServer((socket) => {
    socket.on("error", () => undefined);
    socket.on("data", (chunk) => {
      const first = Buffer.from(chunk)[0] ?? 0;
      if (first < 200) socket.write(chunk);
      else if (first < 230) socket.end();
      else socket.resetAndDestroy();
    });
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  serverPort = (server.address() as { port: number }).port;
});
afterAll(() => void server.close());

/** A generator of random numbers that is the same everywhere (splitmix32). */
class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  /** an integer from 0 to `end`, which is not included */
  below(end: number): number {
    this.#state = (this.#state + 0x9e3779b9) | 0;
    let mixed = this.#state ^ (this.#state >>> 16);
    mixed = Math.imul(mixed, 0x21f0aaad);
    mixed ^= mixed >>> 15;
    mixed = Math.imul(mixed, 0x735a2d97);
    return ((mixed ^ (mixed >>> 15)) >>> 0) % end;
  }

  pick<T>(list: readonly T[]): T {
    return list[this.below(list.length)] as T;
  }

  chance(percent: number): boolean {
    return this.below(100) < percent;
  }

  bytes(length: number): Buffer {
    return Buffer.from(Array.from({ length }, () => this.below(256)));
  }
}

/** One more than the last type that a host may send. */
const HOST_TYPE_END = Math.max(...Object.values(HostFrame)) + 1;
const INTERESTING = [
  0, 1, 2, 3, 4, 7, 8, 12, 15, 16, 127, 128, 255, 256, 65_535, 65_536, 65_537, 0x7fff_ffff, 0xffff_ffff,
];
const PATHS = [
  "/a",
  "/a/b/c",
  "/",
  "/..",
  "/a/../../x",
  "//",
  "rel",
  "",
  "/\0",
  "/dev/null",
  `/${"p".repeat(5000)}`,
  "/é",
];

/**
 * The lengths and counts of a specification go wrong, never its strings: what parses runs on this machine. A
 * specification whose lengths changed can only name pieces of `true`.
 */
function spec(random: Random): Buffer {
  const bytes = execSpec({
    argv: random.pick([["true"], ["cat"], ["sh", "-c", "echo x; echo y >&2"], ["yes"]]),
    env: [],
  });
  const fields = [0, 7, 11, 16];
  if (random.chance(30)) bytes.writeUInt32LE(random.pick(INTERESTING), random.pick(fields));
  if (random.chance(10)) return bytes.subarray(0, random.below(bytes.length));
  if (random.chance(5)) return random.bytes(random.below(200));
  return bytes;
}

/** Frames of a connection, mostly to a server that is there. */
function connection(random: Random, id: number): Buffer[] {
  const port = random.chance(80) ? serverPort : 1 + random.below(9);
  const frames = [frame(HostFrame.netDial, id, u16(port), u16(0))];
  // Data before the connection is open ends the agent, so most conversations avoid it.
  if (random.chance(3)) frames.push(frame(HostFrame.netData, id, random.bytes(1 + random.below(500))));
  if (random.chance(30)) frames.push(frame(HostFrame.netReset, id));
  return frames;
}

/** A command whose files are requested. */
const TARGET = 201;

/** A request for files, and frames for its session. The native agent's root has nothing of this machine. */
function file(random: Random, id: number): Buffer[] {
  const flags = (Object.keys(FileFlag) as (keyof typeof FileFlag)[]).filter(() => random.chance(15));
  const open = fileOpen(id, {
    op: random.pick(Object.values(FileOp)),
    path: random.pick(PATHS),
    flags: random.chance(70) ? [] : flags,
    target: random.chance(80) ? TARGET : random.below(200),
    user: random.chance(80) ? "" : random.pick(["root", "0", "mail:1", ":", "x".repeat(300)]),
    uid: random.chance(90) ? 0 : random.pick(INTERESTING),
    depth: random.chance(90) ? random.below(65) : random.pick(INTERESTING),
    offset: random.pick(INTERESTING),
    mode: random.below(0o10000),
    more: Array.from({ length: random.pick([0, 0, 0, 1, 2, 3]) }, () => random.pick(["/a", "user.x", "", null, "/b"])),
  });
  const at = FRAME_HEADER_BYTES + FILE_OPEN_FIXED_BYTES;
  if (random.chance(3))
    open.writeUInt16LE(random.pick(INTERESTING) & 0xffff, random.pick([at - 4, at - 2, at, at + 2]));
  const rest = [
    frame(HostFrame.stdin, id, random.bytes(random.below(2000))),
    frame(HostFrame.stdin, id),
    frame(HostFrame.fileEnd, id),
    frame(HostFrame.window, id, u32(Stream.stdout), u32(random.below(1000))),
  ];
  return [open, ...rest.filter((_, index) => random.chance(index < 2 ? 5 : 30))];
}

/** Frames for a session of any kind, or for none. */
function stray(random: Random, id: number): Buffer[] {
  const guest = SESSION_GUEST_BIT + random.below(3);
  const resume = resumeFrame(1n, random.chance(95) ? undefined : random.pick(INTERESTING));
  return random.pick([
    [random.chance(50) ? frame(HostFrame.leave, id) : resume, resume],
    [frame(HostFrame.hold, id), ...(random.chance(30) ? [] : [random.chance(95) ? syncFrame(3n) : resume])],
    [frame(HostFrame.resize, random.chance(95) ? guest : id, u16(random.below(300)), u16(random.below(300)))],
    [frame(HostFrame.limit, id, u64(random.chance(95) ? 1 + random.below(500) : random.pick(INTERESTING)))],
    [frame(HostFrame.network, 0, u32(random.below(2)))],
    [frame(random.pick([HostFrame.flush, HostFrame.thaw, HostFrame.forget]), id)],
    [frame(HostFrame.quiesce, id, u32(random.chance(95) ? 1 + random.below(50) : random.pick(INTERESTING)))],
    [frame(HostFrame.quiesce, id, u32(500)), frame(HostFrame.thaw, id)],
    [frame(HostFrame.resolved, id, u32(random.pick(INTERESTING)))],
    [frame(HostFrame.netAccept, guest)],
    [frame(HostFrame.netRefuse, guest, u32(random.pick(INTERESTING)))],
    [frame(HostFrame.netData, random.chance(80) ? guest : id, random.bytes(1 + random.below(3000)))],
    [frame(HostFrame.netEnd, random.chance(80) ? guest : id)],
    [frame(HostFrame.netReset, random.chance(80) ? guest : id)],
  ]);
}

/** The frames of one request, mostly in order. */
function request(random: Random): Buffer[] {
  const id = 1 + random.below(200);
  switch (random.below(17)) {
    case 0:
      return [syncFrame(BigInt(random.below(1000)))];
    case 1:
      return [frame(HostFrame.mount, id, u16(random.chance(98) ? 1 : random.below(200)), u16(random.below(2)))];
    case 2:
    case 3: {
      const content = random.bytes(random.below(300));
      const size = random.chance(97) ? content.length : random.pick(INTERESTING);
      const open = putOpen(id, random.pick(PATHS), size, random.below(0o10000));
      return content.length === 0 ? [open] : [open, frame(HostFrame.putData, id, content)];
    }
    case 4:
    case 5:
    case 6: {
      const bytes = spec(random);
      const size = random.chance(97) ? bytes.length : random.pick(INTERESTING);
      const hasStdin = random.below(2);
      const main = random.chance(30) ? random.below(200) : 0;
      const flags = hasStdin | (main === 0 ? 0 : ExecFlag.linger * random.below(2));
      const terminal = random.chance(30)
        ? { flags: 2 | flags, rows: random.below(100), columns: random.below(300) }
        : {};
      const open = execOpen(id, size, {
        flags,
        timeoutMs: 1 + random.below(300),
        main,
        uid: random.chance(20) ? random.pick(INTERESTING) : 0,
        gid: random.chance(20) ? random.pick(INTERESTING) : 0,
        ...terminal,
      });
      const cut = random.below(bytes.length + 1);
      const pieces = [bytes.subarray(0, cut), bytes.subarray(cut)].filter(({ length }) => length > 0);
      const input = [random.bytes(random.below(2000)), Buffer.alloc(0)].slice(random.below(2));
      return [
        open,
        ...pieces.map((piece) => frame(HostFrame.execSpec, id, piece)),
        ...(hasStdin === 1 ? input.map((piece) => frame(HostFrame.stdin, id, piece)) : []),
        ...(terminal.rows !== undefined && random.chance(50) ? [frame(HostFrame.resize, id, u16(1), u16(2))] : []),
      ];
    }
    case 7:
      return random.chance(10) ? [frame(HostFrame.stdin, id, random.bytes(random.pick([0, 1, 1000])))] : [];
    case 8:
      return [signalFrame(id, 1 + random.below(31), random.below(2))];
    case 9:
      return [
        frame(HostFrame.window, id, u32(1 + random.below(random.chance(5) ? 3 : 2)), u32(random.pick(INTERESTING))),
      ];
    case 10:
    case 11:
      return connection(random, id);
    case 12:
      return stray(random, id);
    case 13:
    case 14:
    case 15:
      return file(random, id);
    default:
      return [
        random.chance(20)
          ? frame(HostFrame.freeze, id)
          : frame(HostFrame.index, id, u16(random.pick([0, 0, 1, 65_535]))),
      ];
  }
}

/** Damages a frame that is not a specification. */
function mutate(random: Random, bytes: Buffer): Buffer {
  const damaged = Buffer.from(bytes);
  switch (random.below(5)) {
    case 0:
      damaged.writeUInt32LE(random.pick(INTERESTING), 0);
      return damaged;
    case 1:
      damaged.writeUInt16LE(random.below(HOST_TYPE_END), 4);
      return damaged;
    case 2: {
      const at = random.below(damaged.length);
      damaged[at] = (damaged[at] ?? 0) ^ (1 << random.below(8));
      return damaged;
    }
    case 3:
      return damaged.subarray(0, random.below(damaged.length));
    default:
      return Buffer.concat([damaged, random.bytes(random.below(40))]);
  }
}

function conversation(random: Random): Buffer {
  const frames: Buffer[] = random.chance(85) ? [syncFrame(), frame(HostFrame.mount, 1, u16(1), u16(1))] : [];
  frames.push(execFrames(TARGET, { argv: ["cat"], stdin: true }));
  // Most conversations stay well-formed for long, so that they reach deep states.
  const damage = random.pick([0, 0, 1, 5]);
  while (frames.length < FRAMES_COUNT_MAX) {
    for (const bytes of request(random)) {
      const type = bytes.readUInt16LE(4);
      const isSpec = type === HostFrame.execSpec || type === HostFrame.execOpen;
      if (random.chance(damage) && !isSpec) frames.push(mutate(random, bytes));
      else if (!random.chance(1)) frames.push(bytes);
    }
  }
  if (random.chance(10)) frames.push(random.bytes(200));
  if (random.chance(5)) frames.push(frame(HostFrame.stdin, 1, Buffer.alloc(FRAME_PAYLOAD_BYTES_MAX)));
  return Buffer.concat(frames);
}

const RECORD_TYPES = [1, 2, 6, 12, 28, 65, 255];
const NAMES = ["example.com", "a.b.c.d", "localhost", "1.1.18.198.in-addr.arpa", "x".repeat(63), "", "9.9.ip6.arpa"];

/** Traffic of the guest's programs: SYNs and questions, some of them damaged. */
function trouble(random: Random, kernel: Kernel): void {
  const isIpv4 = random.chance(70);
  const to = isIpv4 ? random.pick([ipv4("1.2.3.4"), ipv4("198.18.1.0"), ipv4("192.0.2.2")]) : random.bytes(16);
  const from = isIpv4 ? ipv4("192.0.2.2") : random.bytes(16);
  const [fromPort, toPort] = [1 + random.below(40), 1 + random.below(5)];
  const options = random.bytes(4 * random.below(11));
  const syn = heldSyn({ from, to, fromPort, toPort }, random.below(3), options);
  const question = dnsQuestion(random.pick(NAMES), random.pick(RECORD_TYPES), random.below(65_536));
  const damaged = (bytes: Buffer): Buffer => {
    for (let time = random.below(4); time > 0 && bytes.length > 0; time--) {
      bytes[random.below(bytes.length)] = random.chance(50)
        ? random.below(256)
        : random.pick([0, 1, 63, 64, 0xc0, 0xff]);
    }
    return random.chance(10) ? bytes.subarray(0, random.below(bytes.length + 1)) : bytes;
  };
  kernel.hold(random.chance(30) ? damaged(syn) : syn);
  kernel.ask(random.chance(5) ? random.bytes(random.below(600)) : damaged(question));
}

/** Answers the guest's requests, mostly as a host would. */
function judge(random: Random, { type, session }: Frame): Buffer {
  if (type === AgentFrame.resolve) return frame(HostFrame.resolved, session, u32(random.pick([0, 0, 0, 2, 3, 5])));
  const answers = [
    frame(HostFrame.netRefuse, session, u32(1 + random.below(7))),
    frame(HostFrame.netAccept, session),
    frame(HostFrame.netReset, session),
    Buffer.concat([frame(HostFrame.netAccept, session), frame(HostFrame.netData, session, random.bytes(99))]),
    Buffer.concat([frame(HostFrame.netAccept, session), frame(HostFrame.netEnd, session)]),
  ];
  return random.chance(90) ? random.pick(answers) : Buffer.alloc(0);
}

/** Reads frames and grants credit for most of them, until none comes for a while or the agent has ended. */
async function converse(agent: NativeAgent, random: Random): Promise<void> {
  for (let idle = 0; idle < 3 && !agent.closed; ) {
    const answer = agent.poll();
    if (answer === null) {
      idle += 1;
      await pause("something may come", 10);
      continue;
    }
    idle = 0;
    if (answer.type === AgentFrame.netOpen || answer.type === AgentFrame.resolve) {
      agent.send(judge(random, answer));
      continue;
    }
    if (answer.type === AgentFrame.netOpened || (answer.type === AgentFrame.netData && random.chance(70))) {
      agent.send(frame(HostFrame.netData, answer.session, random.bytes(1 + random.below(300))));
      if (random.chance(20)) agent.send(frame(HostFrame.netEnd, answer.session));
    }
    if (answer.type === AgentFrame.netData) {
      agent.send(frame(HostFrame.window, answer.session, u32(Stream.data), u32(answer.payload.length)));
    }
    if (answer.type !== AgentFrame.output || random.chance(30)) continue;
    const stream = answer.payload.subarray(0, 4);
    agent.send(frame(HostFrame.window, answer.session, stream, u32(answer.payload.length - 4)));
    // `yes` never ends by itself.
    if (random.chance(20)) return;
  }
}

test.each(seeds)("seed %d ends in order", async (seed) => {
  const random = new Random(seed);
  const bytes = conversation(random);
  await using agent = await NativeAgent.start();
  for (let at = 0; at < bytes.length && !agent.closed; ) {
    const end = at + 1 + random.below(random.pick([4, 100, 5000]));
    agent.send(bytes.subarray(at, end));
    at = end;
    if (random.chance(10)) await converse(agent, random);
  }
  await converse(agent, random);
  const { code } = await agent.close();
  expect([EXIT_CLOSED, EXIT_REFUSED] as (number | null)[]).toContain(code);
});

test.each(seeds)("seed %d of a guest's packets leaves the agent alive, and what it sends well-formed", async (seed) => {
  const random = new Random(seed);
  await using agent = await NativeAgent.start();
  agent.send(frame(HostFrame.network, 0, u32(random.below(2))));
  expect((await agent.next()).type).toBe(AgentFrame.done);
  using kernel = await Kernel.open(agent);
  for (let turn = 0; turn < TURNS_COUNT; turn++) {
    for (let count = random.below(20); count > 0; count--) trouble(random, kernel);
    agent.send(syncFrame());
    for (let answer = await agent.next(); answer.type !== AgentFrame.synced; answer = await agent.next()) {
      if (answer.type === AgentFrame.netOpen || answer.type === AgentFrame.resolve) agent.send(judge(random, answer));
    }
    kernel.received();
  }
});
