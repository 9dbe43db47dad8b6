import { afterAll, beforeAll, expect, test } from "bun:test";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { Api, errorOf } from "../support/api/api.ts";

const MIB = 1_048_576;
/** More of them than an account may have under way and waiting. */
const BODIES_COUNT = 80;

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

/** A request whose body lacks its last byte. */
async function slowBody(): Promise<Socket> {
  const { hostname, port } = new URL(api.url);
  const socket = connect(Number(port), hostname);
  await once(socket, "connect");
  const fields = { host: "x", authorization: `Bearer ${api.token}`, "content-length": String(MIB) };
  const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.write(`POST /v1/instances HTTP/1.1\r\n${lines.join("")}\r\n`);
  socket.write(Buffer.alloc(MIB - 1, " "));
  return socket;
}

test("bodies that never end are refused beyond a few to the account that sends them, and to nobody else", async () => {
  using sockets = new DisposableStack();
  const slow: Promise<Socket>[] = Array.from({ length: BODIES_COUNT }, async () => {
    const socket = await slowBody();
    sockets.defer(() => socket.destroy());
    return socket;
  });
  // The first that is answered is one too many: none of the others can be.
  const [answer] = await Promise.race(slow.map(async (socket) => (await once(await socket, "data")) as [Buffer]));
  expect(answer.toString()).toStartWith("HTTP/1.1 429");
  const other = { json: { image: "tag:none", command: "x".repeat(MIB / 16) }, token: api.foreignToken };
  errorOf(await api.call("POST", "/v1/instances", other), "not_found");
  const small = { json: { image: "tag:none", command: "true" } };
  errorOf(await api.call("POST", "/v1/instances", small), "not_found");
});
