import { afterAll, beforeAll, expect, test } from "bun:test";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { Api, errorOf } from "../../support/api/api.ts";
import { until } from "../../support/waiting.ts";

const MIB = 1_048_576;
/** More than an account may have in progress and waiting. */
const BODIES_COUNT = 80;
const UPLOADS_COUNT = 140;

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

/** A request whose body lacks its last byte. */
async function slowBody(path: string): Promise<Socket> {
  const { hostname, port } = new URL(api.url);
  const socket = connect(Number(port), hostname);
  await once(socket, "connect");
  const fields = { host: "x", authorization: `Bearer ${api.token}`, "content-length": String(MIB) };
  const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.write(`POST ${path} HTTP/1.1\r\n${lines.join("")}\r\n`);
  socket.write(Buffer.alloc(MIB - 1, " "));
  return socket;
}

/** Sends this many, and returns the first answer: that of the excess request, as no other can be answered. */
async function firstAnswer(path: string, count: number, sockets: DisposableStack): Promise<string> {
  const answers = Array.from({ length: count }, async () => {
    const socket = await slowBody(path);
    sockets.defer(() => socket.destroy());
    return (await once(socket, "data")) as [Buffer];
  });
  for (const answer of answers) answer.catch(() => undefined);
  const [first] = await Promise.race(answers);
  return first.toString();
}

const spawn = (command: string, token: string) =>
  api.call("POST", "/v1/instances", { json: { image: "tag:none", command }, token });

test("beyond a few bodies without an end, an account is refused more, and no other account is", async () => {
  {
    using sockets = new DisposableStack();
    expect(await firstAnswer("/v1/instances", BODIES_COUNT, sockets)).toStartWith("HTTP/1.1 429");
    errorOf(await spawn("x".repeat(MIB / 16), api.foreignToken), "not_found");
    errorOf(await spawn("true", api.token), "not_found");
    expect((await api.call("POST", "/v1/files", { body: "x" })).status).toBe(201);
  }
  // Clients that leave free their room, once the daemon has seen them leave.
  await until("there is room again", async () => (await spawn("x".repeat(MIB / 16), api.token)).status === 404);
}, 60_000);

test("the same holds for uploads without an end", async () => {
  {
    using sockets = new DisposableStack();
    expect(await firstAnswer("/v1/files", UPLOADS_COUNT, sockets)).toStartWith("HTTP/1.1 429");
    expect((await api.call("POST", "/v1/files", { body: "x", token: api.foreignToken })).status).toBe(201);
    errorOf(await spawn("x".repeat(MIB / 16), api.token), "not_found");
  }
  await until("there is room again", async () => (await api.call("POST", "/v1/files", { body: "y" })).status === 201);
}, 60_000);
