/** Requests to an instance while its command runs; its processes are real, on this host. */

import { heapStats } from "bun:jsc";
import { afterAll, beforeAll, describe, expect, setDefaultTimeout } from "bun:test";
import type { OperationId } from "../../../src/domain/ids.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { runningInstance } from "../../support/api/running.ts";
import { until } from "../../support/waiting.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

const pending = async () =>
  (await api.call("POST", "/v1/instances", { json: { image: "tag:base", command: "true" } })).json.uuid as string;

describe("PATCH /instances/{uuid}", () => {
  const extend = (id: string, timeout: unknown, token = api.token) =>
    api.call("PATCH", `/v1/instances/${id}`, { json: { timeout }, token });

  heldTest("gives the command more time, counted from its start", async () => {
    await using running = await runningInstance(api, "sleep 4; exit 3", { timeoutMs: 3000 });
    const answer = await extend(running.id, 60);
    expect([answer.status, answer.json]).toEqual([200, { uuid: running.id, timeout: 60 }]);
    expect(await running.command.exit).toMatchObject({ exitCode: 3, timedOut: false });
  });

  heldTest("409 for less time, and when the command does not run; 400 beyond the operator's limit; 404", async () => {
    await using running = await runningInstance(api, "sleep 60");
    const refused = errorOf(await extend(running.id, 59), "conflict");
    expect(refused.details).toEqual({ timeout: 60 });
    expect((await extend(running.id, 60)).status).toBe(200);
    for (const timeout of [3601, 0, "60", undefined]) {
      expect(errorOf(await extend(running.id, timeout), "validation_error").details["field"]).toBe("timeout");
    }
    errorOf(await extend(running.id, 60, api.foreignToken), "not_found");
    errorOf(await extend(await pending(), 600), "conflict");
    running.command.signal(9);
    await running.command.exit;
    errorOf(await extend(running.id, 600), "conflict");
  });

  heldTest("needs its own scope", async () => {
    errorOf(await extend(await pending(), 600, await api.issue("alice", ["instances:spawn"])), "forbidden");
    errorOf(await extend(await pending(), 600, await api.issue("alice", ["instances:exec"])), "conflict");
  });
});

heldTest("input that a process does not read uses no room of other requests", async () => {
  await using running = await runningInstance(api, "sleep 100", { spec: { stdin: "open" } });
  const leave = new AbortController();
  const path = `${api.url}${running.path}/processes/1/stdin`;
  const headers = { authorization: `Bearer ${api.token}`, "content-type": "application/json" };
  const body = JSON.stringify({ content: "x".repeat(1_000_000) });
  // More than the share of an account of the room for bodies of this size.
  const blocked = Array.from({ length: 12 }, () =>
    fetch(path, { method: "POST", headers, body, signal: leave.signal }).catch(() => null),
  );
  await until("all of them wait", () => api.parts.instances.clients().inputsCount === 11);
  const json = { image: "tag:base", command: "true", stdin: "x".repeat(900_000) };
  expect((await api.call("POST", "/v1/instances", { json })).status).toBe(201);
  leave.abort();
  await Promise.all(blocked);
  await until("those who left wait no more", () => api.parts.instances.clients().inputsCount === 0);
});

heldTest("the events of each process are found where they begin", async () => {
  await using running = await runningInstance(api, "sleep 100");
  for (let count = 0; count < 3; count++) {
    const json = { command: "/bin/echo", args: [`${count}`] };
    const { spid } = (await api.call("POST", `${running.path}/processes`, { json })).json as { spid: number };
    await running.instance.process(spid)?.exit;
  }
  const read = async (query: string) => {
    const path = `/v1/operations/${running.id}/events${query}`;
    return (await api.call("GET", path, { headers: { accept: "application/json" } })).json as Record<string, unknown>[];
  };
  await until("the last one's end is logged", async () => (await read("")).length === 10);
  const all = await read("");
  for (const spid of [1, 2, 3, 4]) {
    const own = all.filter((event) => event["spid"] === spid);
    expect(own).toHaveLength(spid === 1 ? 1 : 3);
    expect(await read(`?spid=${spid}`)).toEqual(own);
    expect(await read(`?spid=${spid}&since=${own[0]?.["id"]}`)).toEqual(own.slice(1));
    expect(api.parts.instances.firstEventOf(running.id as OperationId, spid)).toBe(Number(own[0]?.["id"]));
  }
});

heldTest("the request of a process is not held in memory while it runs", async () => {
  await using running = await runningInstance(api, "sleep 100");
  const count = 20;
  const before = heldBytes();
  // 15 variables of 120 kB each.
  const env = Object.fromEntries(Array.from({ length: 15 }, (_, index) => [`V${index}`, "v".repeat(120_000)]));
  for (let started = 0; started < count; started++) {
    const json = { command: "/bin/sleep", args: ["100"], env };
    const answer = await api.call("POST", `${running.path}/processes`, { json });
    expect(answer.status).toBe(201);
  }
  expect(running.instance.processes).toHaveLength(1 + count);
  expect(heldBytes() - before).toBeLessThan(9_000_000);
});

function heldBytes(): number {
  Bun.gc(true);
  return heapStats().heapSize;
}
