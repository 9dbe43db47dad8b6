/** Sandboxes over HTTP. Where a machine is needed, its processes are real ones, on this host. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { Api, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { openSandbox, runSandbox } from "../../support/api/sandboxes.ts";
import { until } from "../../support/waiting.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
let image = "";
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

const UUID = expect.stringMatching(/^[0-9a-f-]{36}$/);
const TIME = expect.stringMatching(/^20\d\d-.*Z$/);

describe("POST /sandboxes", () => {
  test("opens a sandbox, which starts, with defaults", async () => {
    const before = Date.now();
    const answer = await api.call("POST", "/v1/sandboxes", { json: { image: "tag:base" } });
    expect(answer.status).toBe(201);
    const { uuid } = answer.json;
    expect(answer.headers.get("location")).toBe(`/v1/sandboxes/${uuid}`);
    expect(answer.json).toEqual({
      ...{ uuid: UUID, name: expect.stringMatching(/^[a-z0-9][a-z0-9-]{0,38}[a-z0-9]$/), state: "starting" },
      ...{ image, head: image, instance: UUID, created_at: TIME, state_changed_at: TIME, ends_at: TIME },
      ...{ idle_timeout: null, on_timeout: "pause", auto_resume: true, pause_memory: false },
      ...{ env_names: [], cwd: null, user: null },
      ...{ network: null, metadata: {}, public_ports: [] },
      resources: { vcpus: 1, memory_bytes: 268_435_456, disk_bytes: 1_073_741_824 },
    });
    const lifeMs = Date.parse(answer.json.ends_at) - before;
    expect(lifeMs).toBeGreaterThan(3_590_000);
    expect(lifeMs).toBeLessThan(3_700_000);
    expect((await api.call("GET", `/v1/sandboxes/${uuid}`)).json).toEqual(answer.json);
  });

  test("takes every field, and answers no value of a variable", async () => {
    const { uuid: file } = (await api.call("POST", "/v1/files", { body: "content" })).json;
    const answer = await api.call("POST", "/v1/sandboxes", {
      json: {
        ...{ image, name: "all-fields", timeout: 60, idle_timeout: 30, on_timeout: "end", auto_resume: false },
        ...{ env: { SECRET: "hidden" }, cwd: "/tmp/", user: "node", public_ports: [8080] },
        ...{ network: { allow: [{ host: "a.example.org" }] }, metadata: { team: "x" } },
        resources: { vcpus: 2, memory_bytes: 536_870_912 },
        files: { "/etc/a": { uuid: file, mode: "0600" } },
        start: { command: "serve", args: ["80"], user: "1000:1000", timeout: 5 },
        boot: { command: "serve", env: { BOOT: "hidden" } },
      },
    });
    expect(answer.status).toBe(201);
    expect(answer.json).toMatchObject({
      ...{ name: "all-fields", idle_timeout: 30, on_timeout: "end", auto_resume: false, env_names: ["SECRET"] },
      ...{ cwd: "/tmp", user: "node", public_ports: [8080], metadata: { team: "x" } },
      network: { allow: [{ host: "a.example.org", ports: [80, 443] }], tls: "sni" },
      resources: { vcpus: 2, memory_bytes: 536_870_912, disk_bytes: 1_073_741_824 },
    });
    expect(answer.text).not.toContain("hidden");
    const refused = errorOf(
      await api.call("POST", "/v1/sandboxes", { json: { image, name: "all-fields" } }),
      "conflict",
    );
    expect(refused.details).toMatchObject({ field: "name" });
    // Names are those of one account.
    await api.addImage([[{ path: "f", type: "f", content: "x" }]], { account: "bob", tag: "base" });
    const foreign = { token: api.foreignToken, json: { image: "tag:base", name: "all-fields" } };
    expect((await api.call("POST", "/v1/sandboxes", foreign)).status).toBe(201);
  });

  test("what a schema cannot check is refused", async () => {
    const open = (fields: object, token = api.token) =>
      api.call("POST", "/v1/sandboxes", { json: { image, ...fields }, token });
    errorOf(await open({ image: "tag:missing" }), "not_found");
    errorOf(await open({ cwd: "relative" }), "invalid_path");
    errorOf(await open({ files: { "/a": { uuid: image } } }), "not_found");
    errorOf(await open({ resources: { vcpus: 99 } }), "validation_error");
    errorOf(await open({ network: { allow: [{ host: "example.net" }] } }), "forbidden");
    errorOf(await open({ env: { "A=B": "x" } }), "validation_error");
    const spawner = await api.issue("alice", ["instances:spawn"]);
    expect((await open({ metadata: { by: "spawner" } }, spawner)).status).toBe(201);
    for (const fields of [
      { network: { allow: [{ host: "a.example.org" }] } },
      { start: { command: "true" } },
      { boot: { command: "true" } },
    ]) {
      errorOf(await open(fields, spawner), "forbidden");
    }
  });

  test("requests that wait for machines leave the room for other bodies", async () => {
    const token = await api.issue("waiter", ["*"]);
    await api.addImage([[{ path: "f", type: "f", content: "x" }]], { account: "waiter", tag: "base" });
    const json = { image: "tag:base", ignored: "x".repeat(1_000_000) };
    const left = new AbortController();
    const url = `${api.url}/v1/sandboxes?wait=50`;
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
    const waits = Array.from({ length: 10 }, () =>
      fetch(url, { method: "POST", headers, body: JSON.stringify(json), signal: left.signal }),
    );
    const count = async () => (await api.call("GET", "/v1/sandboxes", { token })).json.length;
    await until("all of them wait", async () => (await count()) === 10);
    const quick = { registry: "registry.example.net/a:1", ignored: json.ignored };
    expect((await api.call("POST", "/v1/images/import", { json: quick, token })).status).toBe(202);
    left.abort();
    for (const outcome of await Promise.allSettled(waits)) expect(outcome.status).toBe("rejected");
  });

  test("a wait ends with its time when no machine is ready", async () => {
    const answer = await api.call("POST", "/v1/sandboxes?wait=1", { json: { image } });
    expect([answer.status, answer.json.state]).toEqual([201, "starting"]);
  });
});

describe("GET /sandboxes", () => {
  test("has pages, the newest first, without ended ones", async () => {
    const token = await api.issue("carol", ["*"]);
    await api.addImage([[{ path: "f", type: "f", content: "x" }]], { account: "carol", tag: "base" });
    const open = async (fields: object) =>
      (await api.call("POST", "/v1/sandboxes", { json: { image: "tag:base", ...fields }, token })).json.uuid as string;
    const ids: string[] = [];
    for (const n of [0, 1, 2, 3, 4]) {
      ids.unshift(
        await open({ name: `box-${n}`, metadata: { parity: n % 2 === 0 ? "even" : "odd", "a.b c": `${n}` } }),
      );
    }
    const [, , ended = ""] = ids;
    expect((await api.call("DELETE", `/v1/sandboxes/${ended}`, { token })).json.state).toBe("ended");
    const live = ids.filter((id) => id !== ended);
    const list = async (query: string) => {
      const { json, headers } = await api.call("GET", `/v1/sandboxes${query}`, { token });
      return { ids: (json as { uuid: string }[]).map(({ uuid }) => uuid), next: headers.get("x-next-cursor") };
    };
    expect(await list("")).toEqual({ ids: live, next: null });
    const pages: string[] = [];
    for (let cursor: string | null = ""; cursor !== null; ) {
      const page = await list(`?limit=3${cursor === "" ? "" : `&cursor=${cursor}`}`);
      pages.push(...page.ids);
      cursor = page.next;
    }
    expect(pages).toEqual(live);
    expect((await list("?limit=4")).next).toBeNull();
    expect((await list("?order=asc")).ids).toEqual(live.toReversed());
    const { json } = await api.call("GET", `/v1/sandboxes/${ids[1]}`, { token });
    expect((await list(`?since=${json.created_at}`)).ids).toEqual(ids.slice(0, 2));
    expect((await list("?state=ended")).ids).toEqual([ended]);
    expect((await list("?state=running")).ids).toEqual([]);
    expect((await list("?state=ended&state=starting")).ids).toEqual(ids);
    expect((await list("?name=box-1")).ids).toEqual([ids[3] ?? ""]);
    expect((await list("?metadata.parity=even")).ids).toEqual([ids[0] ?? "", ids[4] ?? ""]);
    expect((await list("?metadata.parity=even&metadata.a.b%20c=4")).ids).toEqual([ids[0] ?? ""]);
    expect((await list("?metadata.parity=none")).ids).toEqual([]);
    for (const query of ["?cursor=%20", "?cursor=YWJj", "?state=alive", "?limit=0", "?metadata.a=%ff"]) {
      errorOf(await api.call("GET", `/v1/sandboxes${query}`, { token }), "validation_error");
    }
    expect((await api.call("GET", "/v1/sandboxes", { token: await api.issue("dave", ["*"]) })).json).toEqual([]);
  });
});

describe("/sandboxes/{sandbox}", () => {
  test("is found by id and by name, and by nothing else", async () => {
    const id = await openSandbox(api, { name: "found-by-name" });
    for (const path of [id, id.toUpperCase(), "name:found-by-name", "name%3Afound-by-name"]) {
      expect((await api.call("GET", `/v1/sandboxes/${path}`)).json.uuid).toBe(id);
    }
    errorOf(await api.call("GET", "/v1/sandboxes/name:unknown"), "not_found");
    errorOf(await api.call("GET", "/v1/sandboxes/name:found-by-name", { token: api.foreignToken }), "not_found");
    for (const path of [
      "found-by-name",
      "name:",
      "name:UPPER",
      "name:a/b".replace("/", "%2f"),
      `name:${"a".repeat(41)}`,
    ]) {
      errorOf(await api.call("GET", `/v1/sandboxes/${path}`), "validation_error");
    }
    expect(errorOf(await api.call("PUT", `/v1/sandboxes/${id}`), "method_not_allowed").details).toEqual({
      allow: ["DELETE", "GET", "HEAD", "PATCH"],
    });
  });

  test("PATCH changes what it has, and nothing else", async () => {
    const id = await openSandbox(api, { name: "patched", metadata: { a: "1" }, idle_timeout: 60 });
    const patch = (json: object) => api.call("PATCH", `/v1/sandboxes/${id}`, { json });
    const before = (await api.call("GET", `/v1/sandboxes/${id}`)).json;
    expect((await patch({})).json).toEqual(before);
    expect((await patch({ idle_timeout: null, metadata: { b: "2" } })).json).toEqual({
      ...before,
      idle_timeout: null,
      metadata: { b: "2" },
    });
    const changed = (await patch({ timeout: 10, on_timeout: "end", auto_resume: false, name: "renamed" })).json;
    expect(changed).toMatchObject({ on_timeout: "end", auto_resume: false, name: "renamed" });
    expect(Date.parse(changed.ends_at)).toBeLessThan(Date.now() + 11_000);
    expect((await api.call("GET", "/v1/sandboxes/name:renamed")).json.uuid).toBe(id);
    errorOf(await api.call("GET", "/v1/sandboxes/name:patched"), "not_found");
    await openSandbox(api, { name: "occupied" });
    errorOf(await patch({ name: "occupied" }), "conflict");
    errorOf(await patch({ timeout: 86_401 }), "validation_error");
    errorOf(await patch({ network: { allow: [{ host: "example.net" }] } }), "forbidden");
    const spawner = { token: await api.issue("alice", ["instances:spawn"]) };
    const network = { network: { allow: [{ host: "a.example.org" }] } };
    errorOf(await api.call("PATCH", `/v1/sandboxes/${id}`, { json: network, ...spawner }), "forbidden");
  });

  test("DELETE ends it once, and frees its name", async () => {
    const id = await openSandbox(api, { name: "ending", env: { A: "b" } });
    const path = `/v1/sandboxes/${id}`;
    errorOf(await api.call("DELETE", `${path}?tag=saved`), "validation_error");
    const ended = await api.call("DELETE", path);
    expect([ended.status, ended.json.state, ended.json.ends_at]).toEqual([200, "ended", null]);
    expect(ended.json).toMatchObject({ ended_at: TIME, instance: null, env_names: ["A"] });
    expect((await api.call("DELETE", path)).json).toEqual(ended.json);
    errorOf(await api.call("GET", "/v1/sandboxes/name:ending"), "not_found");
    await openSandbox(api, { name: "ending" });
    for (const action of ["pause", "resume"]) {
      expect(errorOf(await api.call("POST", `${path}/${action}`), "conflict").details).toEqual({ state: "ended" });
    }
    errorOf(await api.call("PATCH", path, { json: { timeout: 5 } }), "conflict");
    const events = await api.call("GET", `${path}/events`, { headers: { accept: "application/json" } });
    const states = events.json.filter(({ type }: { type: string }) => type === "state");
    expect(states.map(({ data }: { data: { to: string } }) => data.to)).toEqual(["starting", "ended"]);
  });

  heldTest("an image that a sandbox stands on cannot be deleted", async () => {
    const own = await api.addImage([[{ path: "f", type: "f", content: "own" }]]);
    const id = await openSandbox(api, { image: own });
    errorOf(await api.call("DELETE", `/v1/images/${own}`), "conflict");
    await api.call("DELETE", `/v1/sandboxes/${id}`);
    expect((await api.call("DELETE", `/v1/images/${own}`)).status).toBe(204);
  });
});

describe("a running sandbox", () => {
  heldTest("is answered by a wait, pauses, resumes and rolls back", async () => {
    const opening = api.call("POST", "/v1/sandboxes?wait=30", { json: { image, name: "walk" } });
    const { uuid: id } = await listed("walk");
    await using first = await runSandbox(api, id);
    expect((await opening).json).toMatchObject({ state: "running", uuid: id });
    const pausing = api.call("POST", `${first.path}/pause?wait=30`);
    await first.finish();
    const paused = (await pausing).json;
    expect(paused).toMatchObject({ state: "paused", instance: null, ends_at: null });
    expect(paused.head).not.toBe(image);

    const resuming = api.call("POST", `${first.path}/resume?wait=30`);
    await reached(id, "resuming");
    await using second = await runSandbox(api, id);
    expect((await resuming).json).toMatchObject({ state: "running", head: paused.head });

    const rolling = api.call("POST", `${first.path}/rollback?wait=30`, { json: { image: "HEAD~1" } });
    await second.finish();
    await becomes(id, ({ instance }) => instance !== null);
    await using third = await runSandbox(api, id);
    expect((await rolling).json).toMatchObject({ state: "running", head: image, name: "walk" });
    const { json: states } = await api.call("GET", `${first.path}/states`);
    expect(states).toEqual([
      expect.objectContaining({ seq: 1, image: paused.head, parent: 0, reason: "pause", is_head: false, ref: null }),
      { seq: 0, image, parent: null, reason: "start", tags: ["base"], created_at: TIME, is_head: true, ref: "HEAD" },
    ]);
    errorOf(await api.call("POST", `${first.path}/rollback`, { json: { image: "HEAD~9" } }), "not_found");
    errorOf(
      await api.call("POST", `${first.path}/rollback`, { json: { image: "HEAD", tag: "x" } }),
      "validation_error",
    );

    const ending = api.call("DELETE", `${first.path}?keep=true&tag=kept-files&wait=30`);
    await third.finish();
    expect((await ending).json).toMatchObject({ state: "ended" });
    expect((await api.call("GET", "/v1/images?tag=kept-files")).json).toHaveLength(1);
    const follow = await api.call("GET", `${first.path}/events?follow=true`);
    expect(follow.text.match(/"to":"(\w+)"/g)?.map((text) => text.slice(6, -1))).toEqual([
      ...["starting", "running", "pausing", "paused", "resuming", "running", "resuming", "running", "pausing"],
      ...["paused", "ended"],
    ]);
  });

  heldTest("has samples of what it uses while it runs, for its account alone", async () => {
    const id = await openSandbox(api);
    const path = `/v1/sandboxes/${id}/metrics`;
    expect((await api.call("GET", path)).json).toEqual([]);
    await using running = await runSandbox(api, id);
    await until("the first sample", async () => (await api.call("GET", path)).json.length > 0);
    const [sample] = (await api.call("GET", path)).json;
    expect(Object.keys(sample)).toEqual(["at", "cpu_percent", "memory_bytes", "cache_bytes", "disk_bytes"]);
    expect((await api.call("GET", `${path}?since=${sample.at}&until=${sample.at}`)).json).toEqual([sample]);
    expect((await api.call("GET", `${path}?until=1h`)).json).toEqual([]);
    errorOf(await api.call("GET", `${path}?since=soon`), "validation_error");
    errorOf(await api.call("GET", path, { token: api.foreignToken }), "not_found");
    const pausing = api.call("POST", `${running.path}/pause?wait=30`);
    await running.finish();
    expect((await pausing).json.state).toBe("paused");
    expect((await api.call("GET", path)).json).toEqual([]);
  });

  heldTest("of two requests that contend, one wins, and the other has the state", async () => {
    const id = await openSandbox(api);
    await using running = await runSandbox(api, id);
    const answers = await Promise.all(
      ["pause", "pause", "rollback", "pause"].map((action) =>
        api.call("POST", `${running.path}/${action}`, action === "rollback" ? { json: {} } : {}),
      ),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 409, 409, 409]);
    for (const answer of answers.filter(({ status }) => status === 409)) {
      expect(["pausing", "resuming"]).toContain(errorOf(answer, "conflict").details["state"] as string);
    }
    await running.finish();
  });

  heldTest("a checkpoint is an operation, and a fork is all or none", async () => {
    const id = await openSandbox(api, { name: "parent", metadata: { a: "b" } });
    const path = `/v1/sandboxes/${id}`;
    errorOf(await api.call("POST", `${path}/checkpoint`, { json: {} }), "conflict");
    const executor = await api.issue("alice", ["instances:exec"]);
    const tagged = await api.call("POST", `${path}/checkpoint`, { json: { tag: "point" }, token: executor });
    errorOf(tagged, "forbidden");
    await using running = await runSandbox(api, id);
    const checkpoint = await api.call("POST", `${path}/checkpoint`, { json: { tag: "point", timeout: 9 } });
    expect(checkpoint.status).toBe(202);
    expect(checkpoint.headers.get("location")).toBe(`/v1/operations/${checkpoint.json.uuid}`);
    expect(api.operations.checkpoints.at(-1)).toMatchObject({ tag: "point", timeoutSeconds: 9, sandboxId: id });
    const pausing = api.call("POST", `${path}/pause?wait=30`);
    await running.finish();
    const { head } = (await pausing).json;
    const forked = await api.call("POST", `${path}/fork`, { json: { count: 2, name: "child" } });
    expect(forked.status).toBe(201);
    expect(forked.json).toMatchObject([
      { name: "child-1", image: head, state: "starting", metadata: { a: "b" } },
      { name: "child-2", image: head, state: "starting" },
    ]);
    errorOf(await api.call("POST", `${path}/fork`, { json: { count: 3, name: "child" } }), "conflict");
    errorOf(await api.call("POST", `${path}/fork`, { json: { count: 65 } }), "validation_error");
    // It has no memory.
    errorOf(await api.call("POST", `${path}/fork`, { json: { memory: true } }), "conflict");
    const { json } = await api.call("GET", "/v1/sandboxes?name=child-3");
    expect(json).toEqual([]);
  });
});

test.each([
  [{ memory: true, count: 17 }, "count"],
  [{ memory: true, signal: "NOPE" }, "signal"],
  [{ signal: "USR1" }, "signal"],
  [{ memory: "yes" }, "memory"],
])("a fork with a wrong field is refused: %j", async (json, field) => {
  const id = await openSandbox(api);
  const answer = await api.call("POST", `/v1/sandboxes/${id}/fork`, { json });
  expect(errorOf(answer, "validation_error").details).toMatchObject({ field });
});

heldTest("a fork with memory is refused where machines cannot be copied, and the sandbox continues", async () => {
  const id = await openSandbox(api);
  const path = `/v1/sandboxes/${id}`;
  await using running = await runSandbox(api, id);
  const answer = await api.call("POST", `${path}/fork`, { json: { memory: true } });
  expect(errorOf(answer, "conflict").details).toEqual({ reason: "not_supported" });
  expect((await api.call("GET", path)).json.state).toBe("running");
  expect(running.instance.isRunning).toBe(true);
  const reader = await api.issue("alice", ["instances:exec"]);
  errorOf(await api.call("POST", `${path}/fork`, { json: { memory: true }, token: reader }), "forbidden");
});

interface Listed {
  readonly uuid: string;
  readonly state: string;
  readonly instance: string | null;
}

/** The sandbox with a name, once it exists. */
async function listed(name: string): Promise<Listed> {
  for (;;) {
    const [sandbox] = (await api.call("GET", `/v1/sandboxes?name=${name}`)).json as Listed[];
    if (sandbox !== undefined) return sandbox;
  }
}

async function becomes(id: string, holds: (sandbox: Listed) => boolean): Promise<void> {
  while (!holds((await api.call("GET", `/v1/sandboxes/${id}`)).json));
}

const reached = (id: string, state: string) => becomes(id, (sandbox) => sandbox.state === state);
