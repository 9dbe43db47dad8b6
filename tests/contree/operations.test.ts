import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { UNKNOWN_UUID } from "../support/api/samples.ts";
import { Contree, contreeError } from "../support/contree/contree.ts";
import { contreeEvents, followUntil } from "../support/contree/events.ts";
import { endedOperation, operationOf, ran, spawned } from "../support/contree/runs.ts";

// A busy host boots an emulated machine in many times the usual three seconds.
setDefaultTimeout(180_000);

const RESOURCES = [
  ...["block_input", "block_output", "cost", "elapsed_time", "involuntary_switches", "max_rss", "monotonic_time"],
  ...["page_faults", "page_faults_io", "shared_memory", "signals", "swaps", "system_cpu_time", "unshared_memory"],
  ...["user_cpu_time", "voluntary_switches"],
];
const STATE = ["continued", "core_dump", "exit_code", "pid", "signal", "stopped", "timed_out"];
const SUMMARY = [
  ...["consumed_cpu", "consumed_memory", "created_at", "duration", "error", "image_size", "image_uuid", "kind"],
  ...["result_image_uuid", "status", "uuid"],
];

let contree: Contree;
beforeAll(async () => {
  contree = await Contree.start();
});
afterAll(() => contree[Symbol.asyncDispose]());

const list = async (query = "") => (await contree.call("GET", `/operations${query}`)).json;

describe("GET /operations/{uuid}", () => {
  test("has the request, all figures, and the image of the result", async () => {
    const { operation } = await ran(contree, {
      ...{ command: "echo hi; echo e\u00e9 >&2; echo x > /x; exit 3", shell: true, disposable: false, timeout: 99 },
      ...{ env: { TOKEN: "secret" }, stdin: { value: "secret" }, preserve_env: false, hostname: "h" },
    });
    expect(Object.keys(operation).sort()).toEqual([...SUMMARY, "metadata", "result"].sort());
    expect(operation).toMatchObject({ kind: "instance", status: "SUCCESS", error: null, image_uuid: contree.image });
    expect(operation.result).toEqual({ image: operation.result_image_uuid, tag: null });
    expect(operation.result_image_uuid).not.toBe(contree.image);
    for (const name of ["duration", "consumed_cpu", "consumed_memory", "image_size"]) {
      expect(operation[name]).toBeGreaterThan(0);
    }
    expect(operation.duration).toBeLessThan(600);
    const { result, ...request } = operation.metadata;
    expect(request).toMatchObject({
      ...{ command: "echo hi; echo e\u00e9 >&2; echo x > /x; exit 3", args: [], shell: true, image: contree.image },
      ...{ env: { TOKEN: "<MASKED>" }, cwd: "", uid: 0, gid: 0, hostname: "h", timeout: 99, disposable: false },
      ...{ stdin: { value: "", encoding: "ascii" }, truncate_output_at: 1_048_576, files: {} },
    });
    expect(JSON.stringify(operation)).not.toContain("secret");
    expect(result.stdout).toEqual({ value: "hi\n", encoding: "ascii", truncated: false });
    expect(result.stderr).toEqual({
      ...{ value: Buffer.from("e\u00e9\n").toString("base64"), encoding: "base64", truncated: false },
    });
    expect(Object.keys(result.state).sort()).toEqual(STATE);
    expect(result.state).toMatchObject({ exit_code: 3, signal: -1, timed_out: false, core_dump: false });
    expect(result.state.pid).toBeGreaterThan(0);
    expect(Object.keys(result.resources).sort()).toEqual(RESOURCES);
    expect(result.resources.max_rss).toBeGreaterThan(0);
    expect(result.resources.elapsed_time).toBeGreaterThan(0);
    expect(Object.values(result.resources).every((value) => typeof value === "number")).toBe(true);
  });

  test("a signal or the time limit has no exit code", async () => {
    const state = async (command: string, timeout = 60) =>
      (await ran(contree, { command, shell: true, timeout })).operation.metadata.result.state;
    expect(await state("kill -9 $$")).toMatchObject({ exit_code: -1, signal: 9, timed_out: false });
    expect(await state("exit 137")).toMatchObject({ exit_code: 137, signal: -1, timed_out: false });
    expect(await state("kill -SEGV $$")).toMatchObject({ exit_code: -1, signal: 11 });
    // The limit counts from the request: on a busy host, the start of a machine uses seconds of it.
    const late = await ran(contree, { command: "echo begun; sleep 100", shell: true, timeout: 8 });
    expect(late.operation.metadata.result.state).toMatchObject({ exit_code: -1, signal: 9, timed_out: true });
    expect([late.out, late.operation.status]).toEqual(["begun\n", "SUCCESS"]);
  });

  test("a run that changed nothing has the image of its source, a disposable one none", async () => {
    const unchanged = await ran(contree, { command: "false", disposable: false });
    expect(unchanged.operation.result).toEqual({ image: contree.image, tag: null });
    expect(unchanged.code).toBe(1);
    const tagged = await ran(contree, { command: "false", disposable: false, tag: "a/run:1" });
    const { result, metadata } = tagged.operation;
    expect([result.tag, metadata.tag, result.image === contree.image]).toEqual(["a/run:1", "a/run:1", false]);
    const { json } = await contree.call("GET", "/images?tag=a/run:1");
    expect(json.images).toMatchObject([{ uuid: result.image, tag: "a/run:1" }]);
    const disposable = await ran(contree, { command: "touch", args: ["/x"] });
    expect(disposable.operation).toMatchObject({ result: { image: null, tag: null }, result_image_uuid: null });
    expect(disposable.operation.image_size).toBeNull();
  });

  test("while it runs, it has the output so far on request", async () => {
    const id = await spawned(contree, { command: "echo begun; sleep 1000", shell: true });
    await followUntil(contree, id, ({ type }) => type === "stdout");
    for (const query of ["", "?inflight=0", "?inflight=false"]) {
      const { metadata, result, status, duration } = await operationOf(contree, id, query);
      expect([metadata.result, result, status]).toEqual([null, null, "EXECUTING"]);
      expect(duration).toBeGreaterThanOrEqual(0);
    }
    for (const query of ["?inflight", "?inflight=", "?inflight=1", "?inflight=true"]) {
      const { metadata, result } = await operationOf(contree, id, query);
      expect(metadata.result.stdout).toEqual({ value: "begun\n", encoding: "ascii", truncated: false });
      expect(metadata.result.state).toMatchObject({ exit_code: -1, signal: -1, timed_out: false });
      expect(result).toBeNull();
    }
    const answer = await contree.call("GET", `/operations/${id}`);
    expect(answer.headers.get("retry-after")).toBe("1");
    expect((await contree.call("DELETE", `/operations/${id}`)).status).toBe(202);
    const cancelled = await endedOperation(contree, id);
    expect(cancelled).toMatchObject({ status: "CANCELLED", result: { image: null, tag: null } });
    expect(cancelled.metadata.result.stdout.value).toBe("begun\n");
    expect(cancelled.metadata.result.state).toMatchObject({ exit_code: -1, signal: -1 });
    contreeError(await contree.call("DELETE", `/operations/${id}`), 409, "conflict");
  });

  test("long output is sent without a length, byte for byte", async () => {
    const bytes = 1_048_576;
    for (const [source, filler] of [
      ["tr '\\0' '\"'", '"'],
      ["cat", "\0"],
    ] as const) {
      const command = `head -c ${bytes} /dev/zero | ${source}`;
      const id = await spawned(contree, { command, shell: true });
      await contreeEvents(contree, id, "?follow=1");
      const { headers, json } = await contree.call("GET", `/operations/${id}`);
      expect(headers.get("content-length")).toBeNull();
      const { value, encoding, truncated } = json.metadata.result.stdout;
      const content = Buffer.from(value, encoding === "ascii" ? "latin1" : "base64");
      expect(content.equals(Buffer.alloc(bytes, filler))).toBe(true);
      expect([encoding, truncated]).toEqual([filler === "\0" ? "base64" : "ascii", false]);
    }
    const both = await spawned(contree, { command: "head -c 60000 /dev/urandom | tee /proc/self/fd/2", shell: true });
    await contreeEvents(contree, both, "?follow=1");
    const { headers, json } = await contree.call("GET", `/operations/${both}`);
    expect(headers.get("content-length")).toBeNull();
    expect(json.metadata.result.stdout.value).toBe(json.metadata.result.stderr.value);
  });

  test("an import has its reference, and the image that it made", async () => {
    const { json } = await contree.call("GET", `/images?uuid=${contree.image}`);
    const id = json.images[0].operation_uuid;
    const operation = await operationOf(contree, id);
    expect(operation).toMatchObject({ kind: "image_import", image_uuid: null, result_image_uuid: contree.image });
    expect(operation.result).toEqual({ image: contree.image, tag: null });
    expect(operation.metadata).toEqual({
      ...{ registry: { url: `docker://${contree.reference}` }, tag: null, timeout: 300 },
    });
    expect(operation.image_size).toBeGreaterThan(0);
  });

  test("operations of the other interface are the same, and the reverse", async () => {
    const theirs = await contree.appliance.spawn({
      image: contree.image,
      command: "echo v1; kill -TERM $$",
      shell: true,
    });
    const { metadata, result } = await endedOperation(contree, theirs);
    expect(metadata).toMatchObject({ command: "echo v1; kill -TERM $$", shell: true, timeout: 300, disposable: false });
    expect(metadata.result).toMatchObject({ stdout: { value: "v1\n" }, state: { exit_code: -1, signal: 15 } });
    expect(result.image).toBe(contree.image);
    const { operation } = await ran(contree, { command: "echo ours; kill -TERM $$", shell: true });
    const ownForm = await (await contree.appliance.fetch(`/operations/${operation.uuid}`)).json();
    expect(ownForm).toMatchObject({ status: "SUCCESS", result: { exit_code: 143, stdout: { content: "ours\n" } } });
  });

  test("malformed ids are 400, unknown ids 404, and a token needs the scope", async () => {
    contreeError(await contree.call("GET", "/operations/x"), 400, "validation_error");
    contreeError(await contree.call("GET", `/operations/${UNKNOWN_UUID}`), 404, "not_found");
    contreeError(await contree.call("DELETE", `/operations/${UNKNOWN_UUID}`), 404, "not_found");
    contreeError(await contree.call("GET", `/operations/${UNKNOWN_UUID}?inflight=2`), 400, "validation_error");
    const token = await contree.appliance.createToken("tester", "--scope", "images:read");
    contreeError(await contree.call("GET", `/operations/${UNKNOWN_UUID}`, { token }), 403, "forbidden");
    contreeError(await contree.call("DELETE", `/operations/${UNKNOWN_UUID}`, { token }), 403, "forbidden");
    contreeError(await contree.call("POST", `/operations/${UNKNOWN_UUID}`), 405, "method_not_allowed");
  });
});

describe("GET /operations", () => {
  test("is an array of summaries, the newest first, in pages", async () => {
    const ids: string[] = [];
    for (const command of ["true", "false"]) ids.unshift((await ran(contree, { command })).operation.uuid);
    const rows = await list();
    expect(rows.slice(0, 2).map(({ uuid }: { uuid: string }) => uuid)).toEqual(ids);
    for (const summary of rows) expect(Object.keys(summary).sort()).toEqual(SUMMARY);
    expect(await list("?limit=1&offset=1")).toEqual(rows.slice(1, 2));
    expect(await list("?offset=100000")).toEqual([]);
    const { metadata: _metadata, result: _result, ...single } = await operationOf(contree, ids[0] ?? "");
    expect(rows[0]).toEqual(single);
  });

  test("is filtered by status, kind and time", async () => {
    const all = await list();
    for (const status of ["PENDING", "ASSIGNED", "EXECUTING", "SUCCESS", "FAILED", "CANCELLED"]) {
      expect(await list(`?status=${status}`)).toEqual(all.filter((each: { status: string }) => each.status === status));
    }
    for (const kind of ["instance", "image_import"]) {
      expect(await list(`?kind=${kind}`)).toEqual(all.filter((each: { kind: string }) => each.kind === kind));
    }
    expect(await list("?since=1h")).toEqual(all);
    expect(await list("?until=1h")).toEqual([]);
    expect(await list(`?since=${Math.floor(Date.now() / 1000) - 3600}`)).toEqual(all);
    expect(await list("?until=0")).toEqual([]);
  });

  test("accepts the members of an enumeration for their values", async () => {
    for (const status of ["ASSIGNED", "SUCCESS", "FAILED"]) {
      expect(await list(`?status=OperationStatus.${status}`)).toEqual(await list(`?status=${status}`));
    }
    for (const kind of ["instance", "image_import"]) {
      expect(await list(`?kind=OperationKind.${kind.toUpperCase()}`)).toEqual(await list(`?kind=${kind}`));
    }
  });

  test.each([
    "status=OperationStatus.DONE",
    "status=Other.SUCCESS",
    "status=DONE",
    "status=success",
    "kind=checkpoint",
    "kind=",
    "limit=0",
    "limit=1001",
    "offset=-1",
    "since=x",
  ])("%s is 400", async (query) => {
    contreeError(await contree.call("GET", `/operations?${query}`), 400, "validation_error");
  });

  test("has no checkpoints; one that is named is a run without a command", async () => {
    const id = await spawned(contree, { command: "echo x > /x; echo made; sleep 1000", shell: true });
    await followUntil(contree, id, ({ type }) => type === "stdout");
    const answer = await contree.appliance.post(`/instances/${id}/checkpoint`, {});
    const { uuid } = (await answer.json()) as { uuid: string };
    const operation = await endedOperation(contree, uuid);
    expect(operation).toMatchObject({ kind: "instance", status: "SUCCESS", metadata: { command: "" } });
    expect(operation.result.image).toBe(operation.result_image_uuid);
    expect(Object.keys(operation.metadata.result.state).sort()).toEqual(STATE);
    for (const query of ["", "?kind=instance", "?status=SUCCESS"]) {
      expect((await list(query)).map((each: { uuid: string }) => each.uuid)).not.toContain(uuid);
    }
    await contree.call("DELETE", `/operations/${id}`);
  });
});
