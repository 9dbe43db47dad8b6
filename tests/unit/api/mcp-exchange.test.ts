import { expect, spyOn, test } from "bun:test";
import { passedOn } from "../../../src/api/mcp/message.ts";
import { Progress } from "../../../src/api/mcp/progress.ts";
import { mcpExchange } from "../../../src/api/mcp/server.ts";
import type { LogEvent } from "../../../src/domain/log-event.ts";
import { silentLog } from "../../../src/log.ts";
import type { Service } from "../../../src/service/service.ts";
import { alice } from "../../support/database.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const CALLS_COUNT = 50;
const EVENTS_COUNT = 1000;
const never = new Promise<never>(() => undefined);

const OPERATION = { id: ID, kind: "instance", status: "PENDING", startedAt: null, finishedAt: null, error: null };

/** A service that accepts runs, which never end; `parts` are the later states of its operations. */
function serviceOf(parts: object): Service {
  return {
    status: { version: "1" },
    inspect: { image: () => ({ id: ID }) },
    instances: { spawn: async () => ID },
    operations: { get: () => OPERATION, ...parts },
  } as unknown as Service;
}

/** Answers a call of a tool, without reading the answer. */
async function called(service: Service, name: string, input: unknown, meta = {}): Promise<Response> {
  const exchange = mcpExchange({ service, log: silentLog });
  const params = { name, arguments: input, _meta: meta };
  const { message, takeInput } = passedOn({ jsonrpc: "2.0", method: "tools/call", id: 1, params });
  const headers = { accept: "application/json, text/event-stream", "content-type": "application/json" };
  const request = new Request("http://localhost/mcp", { method: "POST", headers });
  const principal = { accountId: alice, grants: new Set(["*"]), tokenId: "t" };
  const { signal } = new AbortController();
  return await exchange(request, message, {
    ...{ principal, requestId: "r", signal, takeInput, progress: new Progress() },
  } as Parameters<typeof exchange>[2]);
}

test("a call that waits for the end of a run holds no part of the run's input", async () => {
  const waits: string[] = [];
  const wait = (_principal: unknown, id: string) => {
    waits.push(id);
    return never;
  };
  const service = serviceOf({ wait });
  const inputs: WeakRef<object>[] = [];
  const responses: Response[] = [];
  for (let n = 0; n < CALLS_COUNT; n++) {
    const input = { image: ID, command: "true", env: { A: String(n) } };
    inputs.push(new WeakRef(input.env));
    responses.push(await called(service, "run", input));
  }
  while (waits.length < CALLS_COUNT) await new Promise((resolve) => setImmediate(resolve));
  Bun.gc(true);
  await new Promise((resolve) => setImmediate(resolve));
  Bun.gc(true);
  // A reference may remain on the stack by chance.
  expect(inputs.filter((input) => input.deref() !== undefined).length).toBeLessThan(CALLS_COUNT / 2);
  expect(responses).toHaveLength(CALLS_COUNT);
});

test("a client that does not read gets a few progress messages and the answer", async () => {
  let nowMs = 0;
  // There is a pause between two messages.
  const clock = spyOn(performance, "now").mockImplementation(() => {
    nowMs += 60_000;
    return nowMs;
  });
  using _restored = { [Symbol.dispose]: () => clock.mockRestore() };
  let left = EVENTS_COUNT;
  const event = { type: "progress", spid: 0, payload: Buffer.from('{"step":"pulling"}') } as unknown as LogEvent;
  const next = async () => (left-- > 0 ? [event] : null);
  const events = () => ({ next, [Symbol.dispose]: () => undefined });
  const response = await called(serviceOf({ events }), "follow", { operation: ID }, { progressToken: "p" });
  while (left > 0) await new Promise((resolve) => setImmediate(resolve));
  const text = await response.text();
  expect(text.split("notifications/progress").length - 1).toBe(4);
  expect(text).toContain('"result"');
});
