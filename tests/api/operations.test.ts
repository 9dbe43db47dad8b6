import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import type { AccountId, OperationId } from "../../src/domain/ids.ts";
import { Api, errorOf } from "../support/api/api.ts";
import { heldTest } from "../support/api/program.ts";
import { filesOpenBelow } from "../support/images/layer-files.ts";
import { writeOutputs } from "../support/outputs.ts";
import { pause, until } from "../support/waiting.ts";

const ALICE = "alice" as AccountId;
const RESULT = {
  exit_code: 3,
  stdout: { truncated: false, bytes: 0 },
  stderr: { truncated: true, bytes: 0 },
  cpu_time_ms: 12,
  memory_bytes: 1_234_567,
  timed_out: false,
  isolation: "vm-emulated",
};

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

const get = (id: string, query = "") => api.call("GET", `/v1/operations/${id}${query}`);
const openOutputs = () => filesOpenBelow(api.parts.layout.events, api.parts.pid);
/** Ends an instance with these outputs. */
async function succeed(
  id: OperationId,
  stdout: Uint8Array | string,
  stderr: Uint8Array | string,
  more: Partial<typeof RESULT> & { readonly image?: string } = {},
): Promise<void> {
  const sizes = await writeOutputs(api.parts.layout, id, { stdout, stderr });
  const result = { ...RESULT, ...more };
  const sized = { stdout: { ...result.stdout, ...sizes.stdout }, stderr: { ...result.stderr, ...sizes.stderr } };
  api.operations.succeed(id, { ...result, ...sized });
}

describe('"GET /operations/{operationId} returns one Operation"', () => {
  // spec: operations.get, operation.fields, states.values, states.retry-after, events.polling
  test("PENDING, then EXECUTING, with Retry-After; SUCCESS without", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    const pending = await get(id);
    expect(pending.json).toEqual({ id, status: "PENDING", kind: "instance", created_at: expect.any(String) });
    expect(pending.headers.get("retry-after")).toBe("1");
    api.operations.start(id);
    const executing = await get(id);
    expect(executing.json).toMatchObject({ status: "EXECUTING", started_at: expect.any(String) });
    expect(executing.headers.get("retry-after")).toBe("1");
    await succeed(id, "hello\n", "");
    const ended = await get(id);
    expect(ended.headers.get("retry-after")).toBeNull();
    expect(ended.json).toMatchObject({
      status: "SUCCESS",
      finished_at: expect.any(String),
      duration_ms: expect.any(Number),
    });
  });

  // spec: result.exit_code, result.outputs, result.cpu_time_ms, result.memory_bytes, result.timed_out, output.content
  // spec: output.encoding, output.truncated
  test('"Result of a kind=instance operation": every field of the table, output objects too', async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    api.operations.start(id);
    await succeed(id, "plain \u0000\u007f text", Uint8Array.of(0xff, 0x00, 0x80), { image: id });
    expect((await get(id)).json.result).toEqual({
      exit_code: 3,
      stdout: { content: "plain \u0000\u007f text", encoding: "ascii", truncated: false },
      stderr: { content: "/wCA", encoding: "base64", truncated: true },
      cpu_time_ms: 12,
      memory_bytes: 1_234_567,
      timed_out: false,
      image: id,
      isolation: "vm-emulated",
    });
  });

  test("10 MiB of binary output are returned", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    api.operations.start(id);
    const bytes = Buffer.alloc(10_485_760, 0xfe);
    await succeed(id, bytes, "");
    const { stdout, stderr } = (await get(id)).json.result;
    expect(Buffer.from(stdout.content, "base64").equals(bytes)).toBe(true);
    expect(stderr).toEqual({ content: "", encoding: "ascii", truncated: true });
  });

  test.each([65_536, 65_537, 1_000_001])("%i bytes of any text are returned, or none", async (length) => {
    const random = Buffer.alloc(length, randomBytes(4093));
    const ascii = Buffer.from(random.map((byte) => byte & 0x7f));
    const { id } = api.operations.insert(ALICE, "instance");
    api.operations.start(id);
    await succeed(id, ascii, random);
    const { json } = await get(id);
    const { stdout, stderr } = json.result;
    expect([stdout.encoding, stdout.truncated, stderr.encoding, stderr.truncated]).toEqual([
      "ascii",
      false,
      "base64",
      true,
    ]);
    expect(stdout.content === ascii.toString("latin1")).toBe(true);
    expect(Buffer.from(stderr.content, "base64").equals(random)).toBe(true);
    expect((await api.call("HEAD", `/v1/operations/${id}`)).status).toBe(200);
    // The answer can arrive before the program has closed outputs that it did not send.
    await until("no output is open", () => openOutputs().length === 0);
  });

  test("a client that leaves early leaves no file open", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    api.operations.start(id);
    const bytes = Buffer.alloc(10_485_760, "x");
    await succeed(id, bytes, bytes, { stderr: { truncated: false, bytes: 0 } });
    const leaving = new AbortController();
    const headers = { authorization: `Bearer ${api.token}` };
    const response = await fetch(`${api.url}/v1/operations/${id}`, { headers, signal: leaving.signal });
    await (response.body as ReadableStream<Uint8Array>).getReader().read();
    leaving.abort();
    await until("no file is open", () => openOutputs().length === 0);
  });

  test("an import's result is returned as it is", async () => {
    const { id } = api.operations.insert(ALICE, "image_import");
    api.operations.start(id);
    const result = { image: id, tag: "base", digest: `sha256:${"0".repeat(64)}`, size_bytes: 4096 };
    api.operations.succeed(id, result);
    expect((await get(id)).json.result).toEqual(result);
  });

  // spec: states.values
  test("FAILED has the error object and no result", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    api.operations.start(id);
    const error = { error: "unavailable", message: "no virtual machine monitor", details: { cpu_time_ms: 4 } } as const;
    api.operations.fail(id, error);
    const { json } = await get(id);
    expect(json).toMatchObject({ status: "FAILED", error });
    expect(json.result).toBeUndefined();
  });
});

describe("long poll", () => {
  heldTest("wait answers as soon as the operation ends", async () => {
    const { id } = api.operations.insert(ALICE, "image_import");
    api.operations.start(id);
    const startedAt = performance.now();
    const answer = get(id, "?wait=30");
    await until("the request waits", () => api.operations.waitsCount === 1);
    api.operations.succeed(id, { image: id, digest: "sha256:0", size_bytes: 1 });
    expect((await answer).json.status).toBe("SUCCESS");
    // Not at the end of its wait.
    expect(performance.now() - startedAt).toBeLessThan(30_000);
  });

  heldTest("or when the time is up, with the current status", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    const startedAt = performance.now();
    const answer = await get(id, "?wait=1");
    expect(performance.now() - startedAt).toBeGreaterThan(900);
    expect(answer.json.status).toBe("PENDING");
    expect(answer.headers.get("retry-after")).toBe("1");
  });

  test.each(["61", "-1", "1.5", "abc", ""])("wait=%s is 400", async (wait) => {
    const { id } = api.operations.insert(ALICE, "instance");
    expect(errorOf(await get(id, `?wait=${wait}`), "validation_error").message).toBe(
      "wait must be an integer from 0 to 60",
    );
  });
});

describe('"DELETE /operations/{operationId} cancels an operation"', () => {
  const cancel = (id: string) => api.call("DELETE", `/v1/operations/${id}`);

  // spec: operations.cancel, states.values
  test('PENDING: "202 Accepted" with the Operation, which is CANCELLED; then it is a conflict', async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    const answer = await cancel(id);
    expect(answer.status).toBe(202);
    expect(answer.json).toMatchObject({ id, status: "CANCELLED" });
    expect(errorOf(await cancel(id), "conflict").details).toEqual({ status: "CANCELLED" });
  });

  // spec: operations.cancel
  test("EXECUTING: 202 for every request, and it can no longer succeed", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    api.operations.start(id);
    for (let round = 0; round < 2; round++) {
      const answer = await cancel(id);
      expect(answer.status).toBe(202);
      expect(answer.json.status).toBe("EXECUTING");
      expect(answer.headers.get("retry-after")).toBe("1");
    }
    expect(() => api.operations.succeed(id, RESULT)).toThrow();
  });

  // spec: states.conflict, errors.409
  test('"409 Conflict with the state of an operation" for every terminal state', async () => {
    const { id: done } = api.operations.insert(ALICE, "instance");
    api.operations.start(done);
    api.operations.succeed(done, RESULT);
    const { id: failed } = api.operations.insert(ALICE, "instance");
    api.operations.fail(failed, { error: "unavailable", message: "x", details: {} });
    for (const id of [done, failed]) errorOf(await cancel(id), "conflict");
    expect((await get(done)).json.status).toBe("SUCCESS");
  });
});

describe('"GET /operations lists operations"', () => {
  let own: Api;
  const ids: string[] = [];
  beforeAll(async () => {
    own = await Api.start();
    const make = (kind: "instance" | "image_import") => {
      const { id } = own.operations.insert(ALICE, kind);
      ids.push(id);
      return id;
    };
    make("instance");
    own.operations.start(make("image_import"));
    const done = make("instance");
    own.operations.start(done);
    own.operations.succeed(done, RESULT);
    own.operations.fail(make("image_import"), { error: "unavailable", message: "x", details: {} });
    own.operations.cancel(ALICE, make("instance"));
    own.operations.insert("bob" as AccountId, "instance");
  });
  afterAll(() => own[Symbol.asyncDispose]());
  const list = async (query: string) =>
    ((await own.call("GET", `/v1/operations${query}`)).json as { id: string }[]).map(({ id }) => ids.indexOf(id));

  // spec: operations.list, operations.list.limit, operations.list.offset, operations.list.status
  // spec: operations.list.kind, operations.list.since, operations.list.until
  test.each([
    ["", [4, 3, 2, 1, 0]],
    ["?limit=2&offset=1", [3, 2]],
    ["?status=PENDING", [0]],
    ["?status=EXECUTING", [1]],
    ["?status=SUCCESS", [2]],
    ["?status=FAILED", [3]],
    ["?status=CANCELLED", [4]],
    ["?kind=instance", [4, 2, 0]],
    ["?kind=image_import", [3, 1]],
    ["?kind=instance&status=SUCCESS", [2]],
    ["?kind=image_import&status=SUCCESS", []],
    ["?since=1h", [4, 3, 2, 1, 0]],
    ["?until=1h", []],
    ["?since=2020-01-01&until=0s", [4, 3, 2, 1, 0]],
  ])("%s", async (query, expected) => {
    expect(await list(query)).toEqual(expected);
  });

  test("results in listings have no stdout and stderr", async () => {
    const [done] = (await own.call("GET", "/v1/operations?status=SUCCESS")).json;
    const { stdout: _stdout, stderr: _stderr, ...rest } = RESULT;
    expect(done.result).toEqual(rest);
  });

  // spec: operations.list.status, operations.list.kind, errors.400
  test.each(["status=pending", "status=", "status=DONE", "kind=import", "kind=", "status=PENDING&status=FAILED"])(
    "%s is 400",
    async (query) => {
      const error = errorOf(await own.call("GET", `/v1/operations?${query}`), "validation_error");
      expect(error.message).toStartWith(query.split("=")[0] ?? "");
    },
  );
});

describe("paging", () => {
  // spec: operations.list.limit, operations.list.offset, operations.list.until
  test("a walk with a fixed until shows every row once while rows are added", async () => {
    await using walked = await Api.start();
    const expected = new Set<string>();
    for (let index = 0; index < 137; index++) expected.add(walked.operations.insert(ALICE, "instance").id);
    await pause("these rows are older than the bound", 5);
    const bound = new Date().toISOString();
    await pause("those to come are younger", 5);
    const seen: string[] = [];
    for (let offset = 0; ; offset += 10) {
      for (let index = 0; index < 7; index++) walked.operations.insert(ALICE, "instance");
      const { json } = await walked.call("GET", `/v1/operations?limit=10&offset=${offset}&until=${bound}`);
      seen.push(...(json as { id: string }[]).map(({ id }) => id));
      if (json.length < 10) break;
    }
    expect(seen).toHaveLength(expected.size);
    expect(new Set(seen)).toEqual(expected);
  });
});
