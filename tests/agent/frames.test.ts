import { describe, expect, test } from "bun:test";
import {
  AgentFrame,
  FRAME_PAYLOAD_BYTES_MAX,
  HostFrame,
  LAYERS_COUNT_MAX,
  PROTOCOL_VERSION,
  SESSION_GUEST_BIT,
} from "../../src/vm/agent/protocol.ts";
import {
  collect,
  EXIT_CLOSED,
  EXIT_REFUSED,
  execFrames,
  execOpen,
  frame,
  NativeAgent,
  parseError,
  putOpen,
  signalFrame,
  syncFrame,
  u16,
  u32,
  u64,
} from "../support/agent/native-agent.ts";
import { throwing } from "../support/failures.ts";

describe("the stream", () => {
  test("is decoded wherever it is cut", async () => {
    await using agent = await NativeAgent.start();
    const bytes = Buffer.concat([
      syncFrame(5n),
      frame(HostFrame.mount, 1, u16(1), u16(1)),
      execFrames(2, { argv: ["sh", "-c", "printf cut"] }, 10),
    ]);
    // One byte at a time cuts at every place; each write wakes the agent separately.
    for (const byte of bytes) await agent.flush(Uint8Array.of(byte));
    expect((await agent.next()).payload.readBigUInt64LE()).toBe(5n);
    expect((await agent.next()).type).toBe(AgentFrame.done);
    expect((await collect(agent, 2)).stdout.toString()).toBe("cut");
    expect((await agent.close()).code).toBe(EXIT_CLOSED);
  });

  test("may hold many requests at once, which are answered in order", async () => {
    await using agent = await NativeAgent.start();
    const count = 500;
    agent.send(...Array.from({ length: count }, (_, index) => syncFrame(BigInt(index))));
    for (let index = 0; index < count; index++) {
      const { type, payload } = await agent.next();
      expect(type).toBe(AgentFrame.synced);
      expect(payload.readBigUInt64LE()).toBe(BigInt(index));
    }
  });

  test("that ends between frames ends the agent with its normal status", async () => {
    await using agent = await NativeAgent.start();
    expect((await agent.close()).code).toBe(EXIT_CLOSED);
  });
});

const sync = syncFrame();
const header = (length: number, type: number, zero = 0) =>
  Buffer.concat([u32(length), u16(type), u16(zero), u32(1), Buffer.alloc(Math.min(length, 64))]);

/** Malformed input: each of these ends the agent, which reads nothing after it. */
const MALFORMED: Readonly<Record<string, Buffer>> = {
  "a payload too long": header(FRAME_PAYLOAD_BYTES_MAX + 1, HostFrame.sync),
  "the largest length": header(0xffff_ffff, HostFrame.sync),
  "type 0": header(0, 0),
  "a type between": header(0, Math.max(...Object.values(HostFrame)) + 1),
  "a type of the agent": header(0, AgentFrame.exit),
  "a header whose zero is not": header(0, HostFrame.freeze, 1),
  "SYNC too short": frame(HostFrame.sync, 0, sync.subarray(12, 40)),
  "SYNC too long": frame(HostFrame.sync, 0, sync.subarray(12), u32(0)),
  "MOUNT of nothing": frame(HostFrame.mount, 1, u16(0), u16(1)),
  "MOUNT of too many layers": frame(HostFrame.mount, 1, u16(LAYERS_COUNT_MAX + 1), u16(1)),
  "MOUNT with an unknown flag": frame(HostFrame.mount, 1, u16(1), u16(3)),
  "MOUNT without flags": frame(HostFrame.mount, 1, u16(1)),
  "PUT without its size": frame(HostFrame.putOpen, 1, u32(0), u32(0), u32(0), u32(0)),
  "EXEC without its time": frame(HostFrame.execOpen, 1, u32(16), u32(0)),
  "EXEC with an unknown flag": execOpen(1, 16, { flags: 8 }),
  "an idle EXEC with standard input": execOpen(1, 16, { flags: 5 }),
  "EXEC with a size and no terminal": execOpen(1, 16, { rows: 1 }),
  "EXEC of session 0": execOpen(0, 16),
  "EXEC of a session of the guest": execOpen(SESSION_GUEST_BIT + 1, 16),
  "PUT with a reserve": frame(HostFrame.putOpen, 1, u32(0), u32(0), u32(0), u32(1), u64(0), Buffer.from("/f")),
  "NETWORK without flags": frame(HostFrame.network, 0),
  "NETWORK with an unknown flag": frame(HostFrame.network, 0, u32(4)),
  "ACCEPT with a payload": frame(HostFrame.netAccept, 1, u32(0)),
  "REFUSE without a reason": frame(HostFrame.netRefuse, 1),
  "empty data of a connection": frame(HostFrame.netData, 1),
  "END with a payload": frame(HostFrame.netEnd, 1, u32(0)),
  "RESET with a payload": frame(HostFrame.netReset, 1, u32(0)),
  "RESOLVED without a code": frame(HostFrame.resolved, 1),
  "RESOLVED with an impossible code": frame(HostFrame.resolved, 1, u32(16)),
  "DIAL of port 0": frame(HostFrame.netDial, 1, u16(0), u16(0)),
  "DIAL with a reserve": frame(HostFrame.netDial, 1, u16(80), u16(1)),
  "DIAL of session 0": frame(HostFrame.netDial, 0, u16(80), u16(0)),
  "DIAL without a port": frame(HostFrame.netDial, 1),
  "HOLD with a payload": frame(HostFrame.hold, 1, u32(0)),
  "RESIZE without columns": frame(HostFrame.resize, 1, u16(1)),
  "FLUSH with a payload": frame(HostFrame.flush, 1, u32(0)),
  "QUIESCE without a time": frame(HostFrame.quiesce, 1),
  "QUIESCE for no time": frame(HostFrame.quiesce, 1, u32(0)),
  "QUIESCE for too long": frame(HostFrame.quiesce, 1, u32(60_001)),
  "THAW with a payload": frame(HostFrame.thaw, 1, u32(0)),
  "LIMIT without a time": frame(HostFrame.limit, 1),
  "SIGNAL without flags": frame(HostFrame.signal, 1, u32(9)),
  "FREEZE with a payload": frame(HostFrame.freeze, 1, u32(0)),
  "INDEX without a disk": frame(HostFrame.index, 1),
  "INDEX of a layer that no machine has": frame(HostFrame.index, 1, u16(LAYERS_COUNT_MAX)),
  "credit for standard input": frame(HostFrame.window, 1, u32(0), u32(1)),
  "credit for a stream 4": frame(HostFrame.window, 1, u32(4), u32(1)),
  "credit without an amount": frame(HostFrame.window, 1, u32(1)),
};

describe("the agent refuses", () => {
  test.each(Object.entries(MALFORMED))("%s", async (_, bytes) => {
    await using agent = await NativeAgent.start();
    agent.send(bytes, syncFrame());
    expect(await agent.exited).toEqual({ code: EXIT_REFUSED, signal: null });
    expect(await throwing(agent.next())).toThrow("closed");
  });

  /** Frames that are valid only for a session of the right kind and state. */
  const inSession: Readonly<Record<string, Buffer>> = {
    "more data than the file has": Buffer.concat([
      putOpen(4, "/f", 3),
      frame(HostFrame.putData, 4, Buffer.from("four")),
    ]),
    "empty data": Buffer.concat([putOpen(4, "/f", 3), frame(HostFrame.putData, 4)]),
    "standard input for a file": Buffer.concat([putOpen(4, "/f", 3), frame(HostFrame.stdin, 4, Buffer.from("x"))]),
    "file data for a command": Buffer.concat([execOpen(4, 100), frame(HostFrame.putData, 4, Buffer.from("x"))]),
    "more of a specification than was said": Buffer.concat([
      execOpen(4, 3),
      frame(HostFrame.execSpec, 4, Buffer.from("four")),
    ]),
    "standard input before the command": Buffer.concat([
      execOpen(4, 100, { flags: 1 }),
      frame(HostFrame.stdin, 4, Buffer.from("x")),
    ]),
    "standard input that was not announced": Buffer.concat([
      execFrames(4, { argv: ["sleep", "9"] }),
      frame(HostFrame.stdin, 4, Buffer.from("x")),
    ]),
    "standard input after its end": Buffer.concat([
      execFrames(4, { argv: ["sleep", "9"], stdin: true }),
      frame(HostFrame.stdin, 4),
      frame(HostFrame.stdin, 4, Buffer.from("x")),
    ]),
    "standard input beyond its credit": Buffer.concat([
      execFrames(4, { argv: ["sleep", "9"], stdin: true }),
      ...Array.from({ length: 7 }, () => frame(HostFrame.stdin, 4, Buffer.alloc(65_536))),
    ]),
    "a signal with an unknown flag": Buffer.concat([execFrames(4, { argv: ["sleep", "9"] }), signalFrame(4, 9, 2)]),
    "a time limit of nothing": Buffer.concat([
      execFrames(4, { argv: ["sleep", "9"] }),
      frame(HostFrame.limit, 4, u64(0)),
    ]),
    "a time limit beyond all": Buffer.concat([
      execFrames(4, { argv: ["sleep", "9"] }),
      frame(HostFrame.limit, 4, u64(0xffff_ffff_ffff_ffffn)),
    ]),
    "a size of no terminal": Buffer.concat([
      execFrames(4, { argv: ["sleep", "9"], stdin: true }),
      frame(HostFrame.resize, 4, u16(1), u16(1)),
    ]),
    "data of a connection for a command": Buffer.concat([
      execFrames(4, { argv: ["sleep", "9"], stdin: true }),
      frame(HostFrame.netData, 4, Buffer.from("x")),
    ]),
    "credit of a connection for a command": Buffer.concat([
      execFrames(4, { argv: ["sleep", "9"], stdin: true }),
      frame(HostFrame.window, 4, u32(3), u32(1)),
    ]),
    "signal 0": Buffer.concat([execFrames(4, { argv: ["sleep", "9"] }), signalFrame(4, 0)]),
    "signal 65": Buffer.concat([execFrames(4, { argv: ["sleep", "9"] }), signalFrame(4, 65)]),
  };

  test.each(Object.entries(inSession))("%s", async (_, bytes) => {
    await using agent = await NativeAgent.mounted();
    agent.send(bytes);
    expect(await agent.exited).toEqual({ code: EXIT_REFUSED, signal: null });
  });
});

describe("the agent answers with an error", () => {
  test("another protocol version", async () => {
    await using agent = await NativeAgent.start();
    const other = Buffer.from(syncFrame());
    other.writeUInt32LE(PROTOCOL_VERSION + 1, 12);
    agent.send(other);
    expect(parseError(await agent.next()).text).toContain(`host speaks protocol ${PROTOCOL_VERSION + 1}`);
  });

  test("a step before its disks", async () => {
    await using agent = await NativeAgent.start();
    agent.send(execFrames(2, { argv: ["true"] }), frame(HostFrame.freeze, 3), frame(HostFrame.index, 4, u16(0)));
    expect(parseError(await agent.next()).text).toContain("no root file system");
    expect(parseError(await agent.next()).text).toContain("no scratch");
    expect(parseError(await agent.next()).text).toContain("no such layer");
  });

  test("a layer that is missing, and the steps behind it, until the next SYNC", async () => {
    await using agent = await NativeAgent.start();
    agent.send(frame(HostFrame.mount, 1, u16(2), u16(1)), execFrames(2, { argv: ["true"] }));
    expect(parseError(await agent.next()).text).toContain("l/01/upper");
    expect(parseError(await agent.next()).text).toContain("an earlier step failed");
    agent.send(syncFrame(), frame(HostFrame.mount, 1, u16(1), u16(1)));
    expect((await agent.next()).type).toBe(AgentFrame.synced);
    expect((await agent.next()).type).toBe(AgentFrame.done);
    agent.send(frame(HostFrame.mount, 1, u16(1), u16(1)));
    expect(parseError(await agent.next()).text).toContain("mounted already");
  });

  test("to nothing else: frames for ended sessions are dropped", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(
      frame(HostFrame.putData, 9, Buffer.from("x")),
      frame(HostFrame.execSpec, 9, Buffer.from("x")),
      frame(HostFrame.stdin, 9),
      signalFrame(9, 9),
      frame(HostFrame.window, 9, u32(1), u32(1)),
      frame(HostFrame.window, 9, u32(3), u32(1)),
      frame(HostFrame.resize, 9, u16(1), u16(1)),
      frame(HostFrame.netData, 9, Buffer.from("x")),
      frame(HostFrame.netEnd, 9),
      frame(HostFrame.netReset, 9),
      frame(HostFrame.netAccept, SESSION_GUEST_BIT + 9),
      frame(HostFrame.netRefuse, SESSION_GUEST_BIT + 9, u32(1)),
      frame(HostFrame.resolved, 9, u32(3)),
      syncFrame(3n),
    );
    expect((await agent.next()).payload.readBigUInt64LE()).toBe(3n);
  });
});
