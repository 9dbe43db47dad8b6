import { describe, expect, test } from "bun:test";
import { createServer, type Server, type Socket } from "node:net";
import {
  AgentFrame,
  CONNECTIONS_COUNT_MAX,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  INPUT_WINDOW_BYTES_MAX,
  Refusal,
  Stream,
} from "../../src/vm/agent/protocol.ts";
import {
  EXIT_REFUSED,
  type Frame,
  frame,
  NativeAgent,
  parseError,
  syncFrame,
  u16,
  u32,
} from "../support/agent/native-agent.ts";
import { pause } from "../support/waiting.ts";

const dial = (session: number, port: number): Buffer => frame(HostFrame.netDial, session, u16(port), u16(0));

/** A server on loopback; `onSocket` sees each connection. */
class LoopbackServer implements AsyncDisposable {
  readonly sockets: Socket[] = [];
  readonly #server: Server;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async open(onSocket: (socket: Socket) => void = () => undefined): Promise<LoopbackServer> {
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: false }, (socket) => {
      opened.sockets.push(socket);
      socket.on("error", () => undefined);
      onSocket(socket);
    });
    const opened = new LoopbackServer(server);
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    return opened;
  }

  get port(): number {
    return (this.#server.address() as { port: number }).port;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.sockets) socket.destroy();
    await new Promise<void>((done) => this.#server.close(() => done()));
  }
}

async function next(agent: NativeAgent, type: number): Promise<Frame> {
  const answer = await agent.next();
  if (answer.type !== type) throw new Error(`a frame of type ${answer.type}: ${answer.payload.toString("hex")}`);
  return answer;
}

describe("a connection to a port of the guest", () => {
  test("carries bytes in both directions, which end separately", async () => {
    // Sends back all it received once the other direction has ended.
    await using server = await LoopbackServer.open((socket) => {
      const chunks: Uint8Array[] = [];
      socket.on("data", (chunk) => chunks.push(Buffer.from(chunk)));
      socket.on("end", () => socket.end(Buffer.concat([Buffer.from("got "), ...chunks])));
    });
    await using agent = await NativeAgent.start();
    agent.send(dial(3, server.port));
    await next(agent, AgentFrame.netOpened);
    agent.send(frame(HostFrame.netData, 3, Buffer.from("hello")), frame(HostFrame.netEnd, 3));
    let seen = "";
    for (;;) {
      const { type, payload } = await agent.next();
      if (type === AgentFrame.netEnd) break;
      if (type === AgentFrame.netData) seen += payload.toString();
    }
    expect(seen).toBe("got hello");
    await next(agent, AgentFrame.done);
  });

  test("to a port without a listener is refused", async () => {
    const server = await LoopbackServer.open();
    const { port } = server;
    await server[Symbol.asyncDispose]();
    await using agent = await NativeAgent.start();
    agent.send(dial(3, port));
    const refused = await next(agent, AgentFrame.netRefused);
    expect([refused.session, refused.payload.readUInt32LE()]).toEqual([3, Refusal.refused]);
  });

  test("that the guest ends first still takes data from the host", async () => {
    const received = Promise.withResolvers<string>();
    await using server = await LoopbackServer.open((socket) => {
      let seen = "";
      socket.on("data", (chunk) => {
        seen += chunk.toString();
      });
      socket.on("end", () => received.resolve(seen));
      socket.end("first");
    });
    await using agent = await NativeAgent.start();
    agent.send(dial(3, server.port));
    await next(agent, AgentFrame.netOpened);
    expect((await next(agent, AgentFrame.netData)).payload.toString()).toBe("first");
    await next(agent, AgentFrame.netEnd);
    agent.send(frame(HostFrame.netData, 3, Buffer.from("late")), frame(HostFrame.netEnd, 3));
    for (let over = false; !over; ) over = (await agent.next()).type === AgentFrame.done;
    expect(await received.promise).toBe("late");
  });

  test("is reset by either side", async () => {
    const closed = Promise.withResolvers<string>();
    await using server = await LoopbackServer.open((socket) => {
      socket.on("data", (chunk) => {
        if (chunk.toString() === "reset") socket.resetAndDestroy();
      });
      socket.on("error", (error) => closed.resolve((error as NodeJS.ErrnoException).code ?? ""));
    });
    await using agent = await NativeAgent.start();
    agent.send(dial(3, server.port), dial(4, server.port));
    await next(agent, AgentFrame.netOpened);
    await next(agent, AgentFrame.netOpened);
    agent.send(frame(HostFrame.netData, 3, Buffer.from("reset")));
    const seen: number[] = [];
    for (let over = false; !over; ) {
      const { type } = await agent.next();
      seen.push(type);
      over = type === AgentFrame.netReset;
    }
    expect(seen.filter((type) => type !== AgentFrame.window)).toEqual([AgentFrame.netReset]);
    agent.send(frame(HostFrame.netReset, 4));
    expect((await next(agent, AgentFrame.netReset)).session).toBe(4);
    expect(await closed.promise).toBe("ECONNRESET");
    // These sessions are over.
    agent.send(frame(HostFrame.netReset, 4), frame(HostFrame.netData, 3, Buffer.from("x")));
    expect((await agent.sync()).type).toBe(AgentFrame.synced);
  });

  test("that was reset before the agent could answer was open", async () => {
    await using flood = await LoopbackServer.open((socket) => void socket.write(Buffer.alloc(16 << 20)));
    const reset = Promise.withResolvers<void>();
    await using server = await LoopbackServer.open((socket) => {
      socket.once("close", () => reset.resolve());
      socket.resetAndDestroy();
    });
    await using agent = await NativeAgent.start();
    agent.send(dial(3, flood.port));
    await next(agent, AgentFrame.netOpened);
    agent.pause();
    agent.send(frame(HostFrame.window, 3, u32(Stream.data), u32(16 << 20)));
    await pause("the agent's output is full", 300);
    // The answer to SYNC takes the room of the one to the dial.
    agent.send(Buffer.concat([dial(4, server.port), syncFrame()]));
    await reset.promise;
    agent.resume();
    const answers: number[] = [];
    while (answers.length === 0 || answers.at(-1) === AgentFrame.netOpened) {
      const { session, type } = await agent.next();
      if (session === 4) answers.push(type);
    }
    expect(answers).toEqual([AgentFrame.netOpened, AgentFrame.netReset]);
  });

  test("sends and accepts no more than its credit", async () => {
    await using server = await LoopbackServer.open((socket) => {
      socket.pause();
      socket.write(Buffer.alloc(1 << 20, 7));
    });
    await using agent = await NativeAgent.start();
    agent.send(dial(3, server.port));
    await next(agent, AgentFrame.netOpened);
    let received = 0;
    while (received < INPUT_WINDOW_BYTES_INITIAL) received += (await next(agent, AgentFrame.netData)).payload.length;
    expect(received).toBe(INPUT_WINDOW_BYTES_INITIAL);
    expect(await agent.quiet(100)).toBe(true);
    agent.send(frame(HostFrame.window, 3, u32(Stream.data), u32(1000)));
    // The agent may find less than that in its socket at first.
    while (received < INPUT_WINDOW_BYTES_INITIAL + 1000)
      received += (await next(agent, AgentFrame.netData)).payload.length;
    expect(received).toBe(INPUT_WINDOW_BYTES_INITIAL + 1000);
    // Its reader reads nothing: the data beyond the kernel's buffers stays in the window.
    let credit = INPUT_WINDOW_BYTES_INITIAL;
    let sent = 0;
    for (let idle = 0; idle < 2; idle = credit === 0 ? idle + 1 : 0) {
      if (credit > 0) {
        const size = Math.min(credit, 65_536);
        agent.send(frame(HostFrame.netData, 3, Buffer.alloc(size)));
        credit -= size;
        sent += size;
      }
      agent.send(syncFrame());
      for (let answer = await agent.next(); answer.type !== AgentFrame.synced; answer = await agent.next()) {
        if (answer.type === AgentFrame.window) credit += answer.payload.readUInt32LE(4);
      }
    }
    expect(sent).toBeLessThan(16 << 20);
    agent.send(
      ...Array.from({ length: INPUT_WINDOW_BYTES_MAX / 65_536 + 1 }, () =>
        frame(HostFrame.netData, 3, Buffer.alloc(65_536)),
      ),
    );
    expect(await agent.exited).toEqual({ code: EXIT_REFUSED, signal: null });
  });

  test("carries 20 MiB in each direction", async () => {
    const bytes = Buffer.from(Array.from({ length: 1 << 20 }, (_, index) => (index * 7) & 0xff));
    await using server = await LoopbackServer.open((socket) => {
      socket.on("data", (chunk) => {
        if (!socket.write(chunk)) socket.pause();
      });
      socket.on("drain", () => socket.resume());
      socket.on("end", () => socket.end());
    });
    await using agent = await NativeAgent.start();
    agent.send(dial(3, server.port));
    await next(agent, AgentFrame.netOpened);
    const [sentHash, gotHash] = [new Bun.CryptoHasher("sha256"), new Bun.CryptoHasher("sha256")];
    let credit = INPUT_WINDOW_BYTES_INITIAL;
    let left = 20 * bytes.length;
    for (;;) {
      while (credit > 0 && left > 0) {
        const at = (20 * bytes.length - left) % bytes.length;
        const part = bytes.subarray(at, at + Math.min(credit, left, 65_536));
        sentHash.update(part);
        agent.send(frame(HostFrame.netData, 3, part));
        credit -= part.length;
        left -= part.length;
        if (left === 0) agent.send(frame(HostFrame.netEnd, 3));
      }
      const { type, payload } = await agent.next();
      if (type === AgentFrame.window) credit += payload.readUInt32LE(4);
      else if (type === AgentFrame.netData) {
        gotHash.update(payload);
        agent.send(frame(HostFrame.window, 3, u32(Stream.data), u32(payload.length)));
      } else if (type === AgentFrame.done) break;
    }
    expect(gotHash.digest("hex")).toBe(sentHash.digest("hex"));
  });

  test.each([
    ["data before it is open", frame(HostFrame.netData, 3, Buffer.from("x"))],
    ["its end before it is open", frame(HostFrame.netEnd, 3)],
    ["credit before it is open", frame(HostFrame.window, 3, u32(Stream.data), u32(1))],
    ["standard input for it", frame(HostFrame.stdin, 3, Buffer.from("x"))],
    ["credit of another stream", frame(HostFrame.window, 3, u32(Stream.stdout), u32(1))],
    ["an answer to what it is not", frame(HostFrame.netAccept, 3)],
  ])("%s is malformed", async (_, bytes) => {
    await using server = await LoopbackServer.open();
    await using agent = await NativeAgent.start();
    // In one write: the second frame is handled before the connect has finished.
    agent.send(Buffer.concat([dial(3, server.port), bytes]));
    expect(await agent.exited).toEqual({ code: EXIT_REFUSED, signal: null });
  });

  test("treats data and a second end after the end as malformed", async () => {
    for (const bytes of [frame(HostFrame.netData, 3, Buffer.from("x")), frame(HostFrame.netEnd, 3)]) {
      await using server = await LoopbackServer.open();
      await using agent = await NativeAgent.start();
      agent.send(dial(3, server.port));
      await next(agent, AgentFrame.netOpened);
      agent.send(frame(HostFrame.netEnd, 3), bytes);
      expect(await agent.exited).toEqual({ code: EXIT_REFUSED, signal: null });
    }
  });
});

test("is limited in number: an ended one makes room for another, also many times over", async () => {
  await using server = await LoopbackServer.open();
  await using agent = await NativeAgent.start();
  const ids = Array.from({ length: CONNECTIONS_COUNT_MAX }, (_, index) => 1000 + index);
  agent.send(...ids.map((id) => dial(id, server.port)));
  for (const _ of ids) await next(agent, AgentFrame.netOpened);
  agent.send(dial(1, server.port));
  expect(parseError(await agent.next()).text).toBe(`${CONNECTIONS_COUNT_MAX} connections are alive`);
  agent.send(frame(HostFrame.netReset, 1100), dial(1, server.port));
  await next(agent, AgentFrame.netReset);
  await next(agent, AgentFrame.netOpened);
  for (let id = 2000; id < 2300; id++) {
    agent.send(frame(HostFrame.netReset, id === 2000 ? 1 : id - 1), dial(id, server.port));
    await next(agent, AgentFrame.netReset);
    await next(agent, AgentFrame.netOpened);
  }
});
