import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { clientHello, helloTo, records } from "../../support/network/client-hello.ts";
import { guestRequest, type TestGate, testGate } from "../../support/network/gate.ts";
import { type Peer, peer } from "../../support/network/peers.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(60_000);

const NAME = "www.example.com";
let outside: TestGate;
let server: Peer;
beforeAll(async () => {
  outside = await testGate();
  server = await peer();
});
afterAll(async () => {
  await outside[Symbol.asyncDispose]();
  await server[Symbol.asyncDispose]();
});

async function pinned() {
  const destination = { kind: "address", host: "127.0.0.1", port: server.port } as const;
  const request = guestRequest(destination, { except: ["127.0.0.1"], serverName: NAME });
  return await outside.gate.connect(request, new AbortController().signal);
}

/** How a connection ends, with whatever comes before. */
async function endOf(connection: Awaited<ReturnType<typeof pinned>>): Promise<string> {
  for await (const _chunk of connection.chunks());
  return await connection.ended;
}

test("a client that asks for the name is let through, whatever the pieces, and every byte arrives once", async () => {
  const hello = helloTo(NAME);
  const before = server.received().byteLength;
  const connection = await pinned();
  for (const at of [0, 3, 5, 60]) {
    const next = { 0: 3, 3: 5, 5: 60, 60: hello.byteLength }[at];
    expect(server.received().byteLength).toBe(before);
    await connection.write(hello.subarray(at, next));
  }
  await connection.write(Buffer.from("the rest"));
  const expected = Buffer.concat([hello, Buffer.from("the rest")]);
  await until("all of it is there", () => server.received().byteLength === before + expected.byteLength);
  expect(server.received().subarray(before)).toEqual(expected);
  connection.reset();
});

test.each([
  ["another name", helloTo("other.example.com")],
  ["a name below", helloTo(`a.${NAME}`)],
  ["the name with a dot", helloTo(`${NAME}.`)],
  ["no name", records(clientHello([]))],
  ["plain HTTP", Buffer.from(`GET / HTTP/1.1\r\nHost: ${NAME}\r\n\r\n`)],
  ["more than a hello may have", Buffer.concat([Buffer.of(22, 3, 1, 64, 0, 1, 0, 63, 0), Buffer.alloc(20_000)])],
])("%s is reset, and the server gets none of it", async (_, bytes) => {
  const before = server.received().byteLength;
  const connection = await pinned();
  await connection.write(bytes);
  expect(await endOf(connection)).toBe("denied_sni");
  expect(server.received().byteLength).toBe(before);
});

test("a client that stops within its hello is reset, one that sends nothing just ends", async () => {
  const before = server.received().byteLength;
  const torn = await pinned();
  await torn.write(helloTo(NAME).subarray(0, 20));
  torn.end();
  expect(await endOf(torn)).toBe("denied_sni");
  const count = server.sockets.length;
  const empty = await pinned();
  await until("the server has it", () => server.sockets.length > count);
  server.sockets.at(-1)?.end();
  empty.end();
  expect(await endOf(empty)).toBe("ended");
  expect(server.received().byteLength).toBe(before);
});
