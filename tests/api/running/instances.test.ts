import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { ApiError } from "../../../src/domain/errors.ts";
import type { OperationId } from "../../../src/domain/ids.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { until } from "../../support/waiting.ts";

let api: Api;
let image = "";
let file = { uuid: "", sha256: "" };
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
  file = (await api.call("POST", "/v1/files", { body: "input" })).json;
});
afterAll(() => api[Symbol.asyncDispose]());

const spawn = (fields: object) =>
  api.call("POST", "/v1/instances", { json: { image: "tag:base", command: "true", ...fields } });
const last = () => api.operations.instances.at(-1);

describe('"POST /instances spawns a sandbox instance that executes a command"', () => {
  // spec: instances.spawn, instance.fields
  heldTest(
    '"201 Created with a Location header; body {uuid: string}", and the uuid is that of the operation',
    async () => {
      const answer = await spawn({});
      expect(answer.status).toBe(201);
      expect(answer.json).toEqual({ uuid: expect.stringMatching(/^[0-9a-f-]{36}$/) });
      expect(answer.headers.get("location")).toBe(`/v1/operations/${answer.json.uuid}`);
      expect((await api.call("GET", answer.headers.get("location") ?? "")).json).toMatchObject({
        kind: "instance",
        status: "PENDING",
      });
    },
  );

  // spec: instances.shell, instances.cwd, instances.truncate_output_at, instances.timeout, instances.disposable
  heldTest("the defaults of the table", async () => {
    await spawn({});
    expect(last()).toEqual({
      imageId: image as never,
      argv: ["true"],
      ...{ env: {}, unset: [], shell: false, inherit: false, preserveEnv: false, preserveCwd: false },
      ...{ cwd: "/root", isCwdGiven: false },
      uid: 0,
      gid: 0,
      timeoutSeconds: 300,
      files: [],
      truncateOutputAtBytes: 1_048_576,
      stdin: null,
      stdinOpen: false,
      terminal: null,
      hostname: null,
      disposable: false,
      tag: null,
      resources: { vcpus: 1, memoryBytes: 268_435_456, diskBytes: 1_073_741_824 },
      network: null,
      requestedAt: null,
    });
  });

  heldTest("fields that only other surfaces have change nothing", async () => {
    const foreign = { inherit: true, preserveEnv: true, preserveCwd: true, unset: ["A"], isCwdGiven: true };
    await spawn({ ...foreign, preserve_env: true, preserve_cwd: true });
    expect(last()).toMatchObject({ inherit: false, preserveEnv: false, preserveCwd: false, unset: [] });
    const refused = await spawn({ network: "ceiling" });
    errorOf(refused, "validation_error");
  });

  // spec: instances.image, instances.command, instances.shell, instances.env, instances.cwd, instances.timeout
  // spec: instances.files, instances.truncate_output_at, instances.stdin, instances.hostname, instances.disposable
  heldTest("every field arrives", async () => {
    const stdin = `base64:${Buffer.from([0, 255]).toString("base64")}`;
    await spawn({
      image: image.toUpperCase(),
      command: "cat $1",
      shell: true,
      args: ["/in"],
      env: { A: "1", B_ü: "ä b=c" },
      cwd: "/work//dir/.",
      uid: 1000,
      gid: 4_294_967_294,
      timeout: 3600,
      files: {
        "/in": { uuid: file.uuid, mode: "0755" },
        "/deep/er": { uuid: file.uuid.toUpperCase(), uid: 7, gid: 8 },
      },
      truncate_output_at: 0,
      stdin,
      stdin_open: true,
      pty: { rows: 24, cols: 65_535 },
      hostname: "host-1.example",
      disposable: true,
      resources: { vcpus: 2, memory_bytes: 536_870_912, disk_bytes: 2_147_483_648 },
      network: { allow: [{ host: "A.example.ORG" }], tls: "any" },
    });
    const content = { fileId: file.uuid, sha256: file.sha256, sizeBytes: 5 };
    expect(last()).toEqual({
      imageId: image as never,
      argv: ["/bin/sh", "-c", "cat $1", "/bin/sh", "/in"],
      ...{
        env: { A: "1", B_ü: "ä b=c" },
        unset: [],
        shell: true,
        inherit: false,
        preserveEnv: false,
        preserveCwd: false,
      },
      ...{ cwd: "/work/dir", isCwdGiven: true },
      uid: 1000,
      gid: 4_294_967_294,
      timeoutSeconds: 3600,
      files: [
        { path: "/in", mode: 0o755, uid: 0, gid: 0, ...content },
        { path: "/deep/er", mode: 0o644, uid: 7, gid: 8, ...content },
      ] as never,
      truncateOutputAtBytes: 0,
      stdin,
      stdinOpen: true,
      terminal: { rows: 24, columns: 65_535 },
      hostname: "host-1.example",
      disposable: true,
      tag: null,
      resources: { vcpus: 2, memoryBytes: 536_870_912, diskBytes: 2_147_483_648 },
      network: { allow: [{ host: "a.example.org", ports: [80, 443] }], tls: "any", record: false },
      requestedAt: null,
    });
  });

  heldTest("a tag for the image needs a scope of its own, and is refused where there is no image", async () => {
    expect((await spawn({ tag: "after" })).status).toBe(201);
    expect(last()).toMatchObject({ tag: "after", disposable: false });
    for (const fields of [{ tag: "" }, { tag: "a b" }, { tag: "x".repeat(129) }, { tag: "after", disposable: true }]) {
      expect(errorOf(await spawn(fields), "validation_error").details["field"]).toBe("tag");
    }
    const token = await api.issue("alice", ["instances:spawn", "images:read"]);
    const json = { image: "tag:base", command: "true" };
    expect((await api.call("POST", "/v1/instances", { json, token })).status).toBe(201);
    const answer = await api.call("POST", "/v1/instances", { json: { ...json, tag: "after" }, token });
    expect(errorOf(answer, "forbidden").details["scope"]).toBe("images:tag");
  });

  heldTest("env names that are properties of JavaScript objects are ordinary names", async () => {
    const body = `{"image":"tag:base","command":"env","env":{"__proto__":"a","constructor":"b","toString":"c"}}`;
    const answer = await api.call("POST", "/v1/instances", { body, headers: { "content-type": "application/json" } });
    expect(answer.status).toBe(201);
    expect(JSON.stringify(last()?.env)).toBe('{"__proto__":"a","constructor":"b","toString":"c"}');
  });

  test("large bodies are accepted, however many come at once", async () => {
    const stdin = `base64:${Buffer.alloc(8_388_608, 1).toString("base64")}`;
    const answers = await Promise.all(Array.from({ length: 8 }, () => spawn({ stdin })));
    expect(answers.map(({ status }) => status)).toEqual(Array.from({ length: 8 }, () => 201));
  });

  heldTest("beyond the limit of waiting operations the answer is 429 with Retry-After", async () => {
    api.operations.refusal = new ApiError("too_many_requests", "too much is waiting", { limit_bytes: 9 });
    const answer = await spawn({});
    api.operations.refusal = null;
    expect(errorOf(answer, "too_many_requests").details).toEqual({ limit_bytes: 9 });
    expect(answer.status).toBe(429);
    expect(Number(answer.headers.get("retry-after"))).toBeGreaterThan(0);
  });

  // spec: instances.stdin
  test("stdin of 10 MiB is accepted, as ASCII and as base64; a byte more is 400", async () => {
    const size = 10_485_760;
    expect((await spawn({ stdin: "x".repeat(size) })).status).toBe(201);
    expect((await spawn({ stdin: `base64:${Buffer.alloc(size).toString("base64")}` })).status).toBe(201);
    errorOf(await spawn({ stdin: "x".repeat(size + 1) }), "validation_error");
    errorOf(await spawn({ stdin: `base64:${Buffer.alloc(size + 1).toString("base64")}` }), "validation_error");
  });

  // spec: instances.image
  heldTest("a tag is resolved at once", async () => {
    const first = await api.addImage([[]], { tag: "moves" });
    await spawn({ image: "tag:moves" });
    expect(last()?.imageId).toBe(first);
    const second = await api.addImage([[]], { tag: "moves" });
    await spawn({ image: "tag:moves" });
    expect(last()?.imageId).toBe(second);
  });

  // spec: instances.image, instances.files, errors.404
  test("a missing image or file is 404 at once, not later; so is another account's", async () => {
    const foreign = await api.addImage([[]], { account: "bob", tag: "theirs" });
    for (const missing of ["tag:nothing", Bun.randomUUIDv7(), foreign, "tag:theirs"]) {
      expect(errorOf(await spawn({ image: missing }), "not_found").details["field"]).toBe("image");
    }
    const theirs = (await api.call("POST", "/v1/files", { body: "theirs", token: api.foreignToken })).json.uuid;
    for (const uuid of [Bun.randomUUIDv7(), theirs]) {
      expect(errorOf(await spawn({ files: { "/a": { uuid } } }), "not_found").details["field"]).toBe("files");
    }
  });
});

describe("GET /instances/{uuid}/stats", () => {
  const sample = (at: number) => ({
    cpuTimeMs: 10 * at,
    cpuPercent: 12.5,
    memoryBytes: 1000,
    memoryPeakBytes: 2000,
    pids: 3,
    at,
  });
  const wireSample = (at: number) => ({
    cpu_time_ms: 10 * at,
    cpu_percent: 12.5,
    memory_bytes: 1000,
    memory_peak_bytes: 2000,
    pids: 3,
    at: new Date(at).toISOString(),
  });

  heldTest("409 before it runs and after it has ended, 404 for an import", async () => {
    const { uuid } = (await spawn({})).json;
    errorOf(await api.call("GET", `/v1/instances/${uuid}/stats`), "conflict");
    await api.call("DELETE", `/v1/operations/${uuid}`);
    errorOf(await api.call("GET", `/v1/instances/${uuid}/stats?once=true`), "conflict");
    const imported = await api.call("POST", "/v1/images/import", { json: { registry: "registry.example.net/a" } });
    errorOf(await api.call("GET", `/v1/instances/${imported.json.uuid}/stats`), "not_found");
  });

  heldTest("one object with once=true, otherwise events and an end", async () => {
    const { uuid } = (await spawn({})).json;
    api.operations.start(uuid as OperationId);
    api.operations.samples = [sample(1), sample(2)];
    expect((await api.call("GET", `/v1/instances/${uuid}/stats?once=true`)).json).toEqual(wireSample(1));
    const stream = await api.call("GET", `/v1/instances/${uuid}/stats`);
    expect(stream.headers.get("content-type")).toStartWith("text/event-stream");
    const events = [1, 2].map((at) => `data: ${JSON.stringify(wireSample(at))}\n\n`);
    expect(stream.text).toBe(`${events.join("")}event: end\ndata: {}\n\n`);
    expect(api.operations.openStats).toBe(0);
  });

  heldTest("a client that leaves ends the sampling", async () => {
    const { uuid } = (await spawn({})).json;
    api.operations.start(uuid as OperationId);
    api.operations.samples = Array.from({ length: 100_000 }, (_, at) => sample(at));
    const leaving = new AbortController();
    const headers = { authorization: `Bearer ${api.token}` };
    const response = await fetch(`${api.url}/v1/instances/${uuid}/stats`, { headers, signal: leaving.signal });
    await response.body?.getReader().read();
    expect(api.operations.openStats).toBe(1);
    leaving.abort();
    await until("no client reads samples", () => api.operations.openStats === 0);
  });
});
