import { describe, expect, test } from "bun:test";
import type { Socket } from "node:net";
import { AgentFrame, HostFrame } from "../../src/vm/agent/protocol.ts";
import { execute, frame, type NativeAgent, u32 } from "../support/agent/native-agent.ts";
import { dial, ends, expectSilence, next, requestOf, startNetwork } from "../support/agent/network-agent.ts";
import { dnsQuestion, heldSyn, ipv4, parseAnswer } from "../support/agent/packets.ts";
import { until } from "../support/waiting.ts";

const [TYPE_A, TYPE_NS, TYPE_PTR, TYPE_AAAA] = [1, 2, 12, 28];
const [RESPONSE_OK, RESPONSE_FORMAT, RESPONSE_FAILURE, RESPONSE_NO_NAME] = [0, 1, 2, 3];
const [RESPONSE_NOT_IMPLEMENTED, RESPONSE_REFUSED] = [4, 5];
/** Limits of the agent: see vm-assets/agent/budget.h. */
const [QUESTIONS_COUNT_MAX, NAMES_COUNT_MAX, CLIENTS_COUNT_MAX] = [64, 4096, 16];
/** Answers the agent's next query. */
async function resolveNext(agent: NativeAgent, code = RESPONSE_OK): Promise<string> {
  const { session, payload } = await next(agent, AgentFrame.resolve);
  agent.send(frame(HostFrame.resolved, session, u32(code)));
  return `${payload.readUInt16LE(0)} ${payload.subarray(2).toString()}`;
}

describe("names", () => {
  test("are asked of the host in lower case, and get an address each", async () => {
    await using both = await startNetwork();
    const addresses: Buffer[] = [];
    for (const name of ["Example.COM", "example.com", "www.example.com"]) {
      const question = dnsQuestion(name, TYPE_A);
      const answer = both.kernel.answer(question);
      expect(await resolveNext(both.agent)).toBe(`${TYPE_A} ${name.toLowerCase()}`);
      const { code, data, id, question: repeated } = await answer;
      expect([code, id, repeated]).toEqual([RESPONSE_OK, 7, question.subarray(12)]);
      addresses.push(data as Buffer);
    }
    expect(addresses).toEqual(["198.18.1.0", "198.18.1.0", "198.18.1.1"].map(ipv4));
    both.kernel.hold(heldSyn(ends(4000, ipv4("198.18.1.1"))));
    expect(requestOf(await next(both.agent, AgentFrame.netOpen))).toEqual([443, 0, Buffer.from("www.example.com")]);
    both.kernel.hold(heldSyn(ends(4001, ipv4("198.18.1.2"))));
    expect(requestOf(await next(both.agent, AgentFrame.netOpen))).toEqual([443, 4, ipv4("198.18.1.2")]);
    const reverse = both.kernel.answer(dnsQuestion("1.1.18.198.in-addr.arpa", TYPE_PTR));
    expect((await reverse).data?.toString("latin1")).toBe("\x03www\x07example\x03com\0");
  });

  test("have the host's response code, and no record of another type", async () => {
    await using both = await startNetwork();
    for (const [type, code] of [
      [TYPE_A, RESPONSE_NO_NAME],
      [TYPE_A, RESPONSE_FAILURE],
      [TYPE_AAAA, RESPONSE_OK],
      [TYPE_NS, RESPONSE_OK],
      [TYPE_NS, RESPONSE_NO_NAME],
    ] as const) {
      const answer = both.kernel.answer(dnsQuestion("example.com", type));
      await resolveNext(both.agent, code);
      expect(await answer).toMatchObject({ code, data: null });
    }
  });

  test("of this machine, and reverse names, are answered without the host", async () => {
    await using both = await startNetwork();
    expect((await execute(both.agent, { argv: ["true"], hostname: "Own-Box" })).exitCode).toBe(0);
    for (const [name, type, expected] of [
      ["own-box", TYPE_A, ipv4("127.0.0.1")],
      ["OWN-BOX", TYPE_A, ipv4("127.0.0.1")],
      ["own-box", TYPE_AAAA, null],
      ["a.localhost", TYPE_A, ipv4("127.0.0.1")],
      ["1.0.0.127.in-addr.arpa", TYPE_PTR, Buffer.from("\x09localhost\0")],
      [`1.${"0.".repeat(31)}ip6.arpa`, TYPE_PTR, Buffer.from("\x09localhost\0")],
      ["", TYPE_NS, null],
    ] as const) {
      expect(await both.kernel.answer(dnsQuestion(name, type))).toMatchObject({ code: RESPONSE_OK, data: expected });
    }
    for (const name of ["1.1.18.198.in-addr.arpa", "4.3.2.1.in-addr.arpa"]) {
      expect(await both.kernel.answer(dnsQuestion(name, TYPE_PTR))).toMatchObject({
        code: RESPONSE_NO_NAME,
        data: null,
      });
    }
    await expectSilence(both.agent, both.kernel);
  });

  test("that are none get an error without the host, and bytes that are not a question get nothing", async () => {
    await using both = await startNetwork();
    const good = dnsQuestion("example.com", TYPE_A);
    const change = (at: number, value: number): Buffer => {
      const bytes = Buffer.from(good);
      bytes[at] = value;
      return bytes;
    };
    for (const bytes of [Buffer.alloc(0), good.subarray(0, 11), change(2, 0x81)]) both.kernel.ask(bytes);
    const long = dnsQuestion(Array.from({ length: 4 }, () => "a".repeat(63)).join("."), TYPE_A);
    for (const [bytes, code] of [
      [change(2, 0x29), RESPONSE_NOT_IMPLEMENTED],
      [change(5, 2), RESPONSE_FORMAT],
      [change(5, 0), RESPONSE_FORMAT],
      [change(12, 0xc0), RESPONSE_FORMAT],
      [change(12, 64), RESPONSE_FORMAT],
      [good.subarray(0, good.length - 1), RESPONSE_FORMAT],
      [good.subarray(0, 14), RESPONSE_FORMAT],
      [long, RESPONSE_FORMAT],
      [change(good.length - 1, 3), RESPONSE_REFUSED],
      [dnsQuestion("a b.example.com", TYPE_A), RESPONSE_NO_NAME],
      [dnsQuestion("é.example.com", TYPE_A), RESPONSE_NO_NAME],
      [dnsQuestion("nul\0.example.com", TYPE_A), RESPONSE_NO_NAME],
    ] as const) {
      expect([bytes.toString("latin1"), (await both.kernel.answer(bytes)).code]).toEqual([
        bytes.toString("latin1"),
        code,
      ]);
    }
    await expectSilence(both.agent, both.kernel);
  });

  test("as long as names can be are resolved", async () => {
    await using both = await startNetwork();
    const name = [..."abc"].map((letter) => letter.repeat(63)).join(".");
    for (const longest of [`${name}.${"d".repeat(61)}`, "x".repeat(63)]) {
      const answer = both.kernel.answer(dnsQuestion(longest, TYPE_A));
      expect(await resolveNext(both.agent)).toBe(`${TYPE_A} ${longest}`);
      expect((await answer).data).toHaveLength(4);
    }
    const reverse = await both.kernel.answer(dnsQuestion("0.1.18.198.in-addr.arpa", TYPE_PTR));
    expect(reverse.data).toHaveLength(255);
  });

  test("wait for the host beyond a number of questions, and none is lost", async () => {
    await using both = await startNetwork();
    const count = QUESTIONS_COUNT_MAX + 10;
    for (let id = 0; id < count; id++) both.kernel.ask(dnsQuestion(`n${id}.example.com`, TYPE_A, id));
    const queries = [];
    for (let id = 0; id < QUESTIONS_COUNT_MAX; id++) queries.push((await next(both.agent, AgentFrame.resolve)).session);
    await expectSilence(both.agent, both.kernel);
    expect(new Set(queries).size).toBe(QUESTIONS_COUNT_MAX);
    for (const id of queries) both.agent.send(frame(HostFrame.resolved, id, u32(RESPONSE_OK)));
    for (let id = 0; id < 10; id++) await resolveNext(both.agent);
    for (let id = 0; id < count; id++) await both.kernel.packet();
    // Answers to nothing are dropped.
    both.agent.send(frame(HostFrame.resolved, queries[0] ?? 0, u32(0)), frame(HostFrame.resolved, 0, u32(0)));
    await expectSilence(both.agent, both.kernel);
  });

  test("beyond their number are forgotten, those that were used last not, and no address is used again", async () => {
    await using both = await startNetwork();
    const resolve = async (name: string): Promise<Buffer> => {
      const answer = both.kernel.answer(dnsQuestion(name, TYPE_A));
      await resolveNext(both.agent);
      return (await answer).data as Buffer;
    };
    const [held, used, unused] = [await resolve("held.com"), await resolve("used.com"), await resolve("unused.com")];
    both.kernel.hold(heldSyn(ends(4000, held)));
    await next(both.agent, AgentFrame.netOpen);
    const addresses = new Set([held, used, unused].map((address) => address.toString("hex")));
    for (let number = 0; number < NAMES_COUNT_MAX - 2; number++) {
      addresses.add((await resolve(`n${number}.com`)).toString("hex"));
      if (number === NAMES_COUNT_MAX / 2) expect(await resolve("used.com")).toEqual(used);
    }
    expect(addresses.size).toBe(NAMES_COUNT_MAX + 1);
    both.kernel.hold(heldSyn(ends(4001, unused)));
    expect(requestOf(await next(both.agent, AgentFrame.netOpen))).toEqual([443, 4, unused]);
    for (const [port, address, name] of [
      [4002, used, "used.com"],
      [4003, held, "held.com"],
    ] as const) {
      both.kernel.hold(heldSyn(ends(port, address)));
      expect(requestOf(await next(both.agent, AgentFrame.netOpen))).toEqual([443, 0, Buffer.from(name)]);
    }
    expect(addresses.has((await resolve("unused.com")).toString("hex"))).toBe(false);
  }, 60_000);
});

describe("questions over TCP", () => {
  const framed = (message: Buffer): Buffer =>
    Buffer.concat([Buffer.from([message.length >> 8, message.length & 255]), message]);

  /** The next answer of a stream. */
  class Client {
    readonly socket: Socket;
    #received = Buffer.alloc(0);
    closed = false;
    constructor(socket: Socket) {
      this.socket = socket;
      socket.on("data", (chunk) => {
        this.#received = Buffer.concat([this.#received, Buffer.from(chunk)]);
      });
      socket.on("close", () => {
        this.closed = true;
      });
      socket.on("end", () => socket.end());
    }
    async message(): Promise<Buffer> {
      const length = () => (this.#received.length < 2 ? Number.POSITIVE_INFINITY : 2 + this.#received.readUInt16BE(0));
      await until("an answer comes", () => this.#received.length >= length());
      const message = this.#received.subarray(2, length());
      this.#received = this.#received.subarray(length());
      return message;
    }
  }

  test("may come two in one segment, or one in pieces, and each is answered", async () => {
    await using both = await startNetwork();
    const client = new Client(await dial(both.kernel.streams, 0));
    const [a, aaaa] = [dnsQuestion("example.com", TYPE_A, 1), dnsQuestion("example.com", TYPE_AAAA, 2)];
    client.socket.write(Buffer.concat([framed(a), framed(aaaa)]));
    expect(await resolveNext(both.agent)).toBe(`${TYPE_A} example.com`);
    expect(await resolveNext(both.agent)).toBe(`${TYPE_AAAA} example.com`);
    expect(parseAnswer(a, await client.message())).toMatchObject({ id: 1, data: ipv4("198.18.1.0") });
    expect(parseAnswer(aaaa, await client.message())).toMatchObject({ id: 2, code: RESPONSE_OK, data: null });
    const bytes = framed(dnsQuestion("localhost", TYPE_A, 3));
    for (const byte of bytes) {
      client.socket.write(Buffer.from([byte]));
      await both.agent.sync();
    }
    expect(parseAnswer(bytes.subarray(2), await client.message())).toMatchObject({ id: 3, data: ipv4("127.0.0.1") });
    client.socket.write(framed(a));
    client.socket.end();
    await resolveNext(both.agent);
    expect(parseAnswer(a, await client.message())).toMatchObject({ id: 1 });
    await until("the agent closes", () => client.closed);
  });

  test("that are nonsense end the client", async () => {
    await using both = await startNetwork();
    for (const bytes of [Buffer.from([255, 255, 1]), framed(Buffer.alloc(5)), framed(Buffer.alloc(12, 0xff))]) {
      const client = new Client(await dial(both.kernel.streams, 0));
      client.socket.write(bytes);
      await until("the agent closes", () => client.closed);
    }
    await expectSilence(both.agent, both.kernel);
  });

  test("have room for a number of clients: one more replaces the one that was idle for longest", async () => {
    await using both = await startNetwork();
    const clients: Client[] = [];
    for (let number = 0; number <= CLIENTS_COUNT_MAX; number++) {
      clients.push(new Client(await dial(both.kernel.streams, 0)));
      await both.agent.sync();
    }
    await until("the first is closed", () => clients[0]?.closed === true);
    expect(clients.slice(1).map(({ closed }) => closed)).not.toContain(true);
    const last = clients.at(-1) as Client;
    last.socket.write(framed(dnsQuestion("localhost", TYPE_A)));
    expect((await last.message()).readUInt16BE(6)).toBe(1);
    for (const { socket } of clients) socket.destroy();
  });

  test("whose client is gone get no answer", async () => {
    await using both = await startNetwork();
    const client = new Client(await dial(both.kernel.streams, 0));
    client.socket.write(framed(dnsQuestion("example.com", TYPE_A)));
    const { session } = await next(both.agent, AgentFrame.resolve);
    client.socket.destroy();
    both.agent.send(frame(HostFrame.resolved, session, u32(0)));
    await expectSilence(both.agent, both.kernel);
  });
});
