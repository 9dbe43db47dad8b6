import { expect, test } from "bun:test";
import { createServer } from "node:net";
import { join } from "node:path";
import { request } from "../../../src/network/gate/connection.ts";
import { FRAME, frame, messageFrame, WINDOW_BYTES, windowFrame } from "../../../src/network/gate/frames.ts";
import { ANSWER_BYTES_MAX } from "../../../src/network/gate/messages.ts";
import { type GateEnd, GateError } from "../../../src/network/gate.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";

const LOOKUP = { op: "lookup", lookup: { host: "a.example", servers: [], hostsFile: null } } as const;
const ANSWER = messageFrame({ ok: true, addresses: ["192.0.2.1"] });
const END = frame(FRAME.end);
const data = (bytes: number): Uint8Array => Buffer.concat([Buffer.of(FRAME.data, 0, 0, bytes), Buffer.alloc(bytes)]);

/** The end of a connection with a process that says `said`, and its chunks. @throws the error of the request */
async function conversation(said: readonly Uint8Array[]): Promise<{ end: GateEnd; chunks: Uint8Array[] }> {
  await using scratch = await scratchDirectory("/tmp", "coppice-gate-");
  const path = join(scratch.path, "gate");
  const server = createServer((socket) => void socket.on("error", () => undefined).write(Buffer.concat(said)));
  await new Promise<void>((resolve) => server.listen(path, resolve));
  using _server = { [Symbol.dispose]: () => void server.close() };
  const { connection } = await request(path, LOOKUP, { limitMs: 5000, signal: new AbortController().signal });
  const chunks: Uint8Array[] = [];
  for await (const chunk of connection.chunks()) chunks.push(chunk);
  connection.reset();
  return { end: await connection.ended, chunks };
}

/** The daemon's result with that process: the error of the request, or the end of the connection. */
async function daemonGot(...said: readonly Uint8Array[]): Promise<string> {
  try {
    return (await conversation(said)).end;
  } catch (error) {
    if (!(error instanceof GateError)) throw error;
    return error.message;
  }
}

test.each([
  ["data before the answer", [data(1), ANSWER]],
  ["an end before the answer", [END, ANSWER]],
  ["a window before the answer", [windowFrame(1), ANSWER]],
  ["a longer answer than any", [messageFrame({ ok: true, addresses: [" ".repeat(ANSWER_BYTES_MAX)] })]],
])("a process that sends %s has ended for the daemon", async (_, said) => {
  expect(await daemonGot(...said)).toBe("the connecting process has ended");
});

test.each([
  ["no JSON", frame(FRAME.message, Buffer.from("{"))],
  ["no address", messageFrame({ ok: true, addresses: ["a.example"] })],
  ["an address with a long zone", messageFrame({ ok: true, addresses: [`fe80::1%${"a".repeat(10_000)}`] })],
  ["another verdict", messageFrame({ ok: false, verdict: "allowed", message: "", addresses: [] })],
])("an answer with %s is invalid", async (_, said) => {
  expect(await daemonGot(said)).toBe("the connecting process sent an invalid answer");
});

test("many small frames become few chunks", async () => {
  const count = 20_000;
  const { chunks } = await conversation([ANSWER, ...Array<Uint8Array>(count).fill(data(1)), END]);
  expect(chunks.reduce((sum, each) => sum + each.byteLength, 0)).toBe(count);
  expect(chunks.length).toBeLessThan(count / 10);
});

test.each([
  ["two answers", [ANSWER, ANSWER]],
  ["two ends", [ANSWER, END, END]],
  ["data after the end", [ANSWER, END, data(1)]],
  ["a window of nothing", [ANSWER, windowFrame(0)]],
  ["a window that was not used", [ANSWER, windowFrame(1)]],
  ["an unknown frame", [ANSWER, Buffer.of(9, 0, 0, 0)]],
  ["longer data than a window", [ANSWER, Buffer.of(FRAME.data, (WINDOW_BYTES >> 16) + 1, 0, 0)]],
])("a connection on which the process sends %s is lost", async (_, said) => {
  expect(await daemonGot(...said)).toBe("lost");
});
