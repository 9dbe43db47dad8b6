import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { AccountId, OperationId } from "../../../src/domain/ids.ts";
import { NETWORK_VERDICTS, type NetworkAudit } from "../../../src/domain/network.ts";
import { silentLog } from "../../../src/log.ts";
import { endReaders, OperationChanges } from "../../../src/supervisor/operations/changes.ts";
import { Api, errorOf, LIMITS } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { queuedInstance, runningInstance } from "../../support/api/running.ts";

// The first test with an instance may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
let withoutNetworks: Api;
beforeAll(async () => {
  api = await Api.start();
  withoutNetworks = await Api.start({ limits: { ...LIMITS, network: { allow: [], record: false } } });
  for (const each of [api, withoutNetworks]) await each.addImage([[]], { tag: "base" });
});
afterAll(async () => {
  await api[Symbol.asyncDispose]();
  await withoutNetworks[Symbol.asyncDispose]();
});

const spawn = (network: unknown, to: Api = api, token?: string) =>
  to.call("POST", "/v1/instances", {
    json: { image: "tag:base", command: "true", network },
    ...(token === undefined ? {} : { token }),
  });

/** The network of the queued instance, as it was checked. */
async function queued(network: unknown) {
  expect((await spawn(network)).status).toBe(201);
  return api.operations.instances.at(-1)?.network;
}

describe("the network of a request", () => {
  heldTest("is none by default, and on request", async () => {
    expect(await queued(undefined)).toBeNull();
    expect(await queued("none")).toBeNull();
  });

  heldTest("is stored in one spelling, with the defaults", async () => {
    const allow = [{ host: "Pypi.EXAMPLE.org" }, { host: "*.a.example.org", ports: [443, 80, 443] }];
    expect(await queued({ allow })).toEqual({
      allow: [
        { host: "pypi.example.org", ports: [80, 443] },
        { host: "*.a.example.org", ports: [80, 443] },
      ],
      tls: "sni",
      record: false,
    });
    const database = { host: "::ffff:10.0.7.9", ports: [5432] };
    expect(await queued({ allow: [database], tls: "any" })).toEqual({
      allow: [{ host: "10.0.7.9", ports: [5432] }],
      tls: "any",
      record: false,
    });
    expect(await queued({ record: true })).toEqual({ allow: [], tls: "sni", record: true });
    expect(
      await queued({ default: "allow", deny: ["::ffff:10.0.0.0/104"], allow: [{ host: "10.0.7.9", ports: [5432] }] }),
    ).toEqual({
      ...{ allow: [{ host: "10.0.7.9", ports: [5432] }], deny: ["10.0.0.0/8"], tls: "sni", record: false },
    });
  });

  const rule = { host: "a.example.org" };
  test.each([
    [null, "network"],
    [true, "network"],
    ["all", "network"],
    ["", "network"],
    [[], "network"],
    [{}, "network.allow"],
    [{ allow: [] }, "network.allow"],
    [{ allow: rule }, "network.allow"],
    [{ default: "all" }, "network.default"],
    [{ default: "allow", record: true }, "network.default"],
    [{ allow: [rule], deny: ["10.0.0.0/8"] }, "network.deny"],
    [{ default: "allow", deny: "10.0.0.0/8" }, "network.deny"],
    [{ default: "allow", deny: Array(257).fill("10.0.0.0/8") }, "network.deny"],
    [{ default: "allow", deny: ["10.0.0.0/8", "a.example.org"] }, "network.deny.1"],
    [{ allow: null }, "network.allow"],
    [{ allow: ["a.example.org"] }, "network.allow.0"],
    [{ allow: Array.from({ length: 257 }, () => rule) }, "network.allow"],
    [{ allow: [rule, {}] }, "network.allow.1.host"],
    [{ allow: [rule, { host: 1 }] }, "network.allow.1.host"],
    [{ allow: [rule, { host: "" }] }, "network.allow.1.host"],
    [{ allow: [{ host: "a.example.org:443" }] }, "network.allow.0.host"],
    [{ allow: [{ host: "10.0.7.5/24" }] }, "network.allow.0.host"],
    [{ allow: [{ host: "127.1" }] }, "network.allow.0.host"],
    [{ allow: [{ host: "a.example.org\n" }] }, "network.allow.0.host"],
    [{ allow: [{ ...rule, ports: [] }] }, "network.allow.0.ports"],
    [{ allow: [{ ...rule, ports: "443" }] }, "network.allow.0.ports"],
    [{ allow: [{ ...rule, ports: 443 }] }, "network.allow.0.ports"],
    [{ allow: [{ ...rule, ports: [443, 0] }] }, "network.allow.0.ports.1"],
    [{ allow: [{ ...rule, ports: [65_536] }] }, "network.allow.0.ports.0"],
    [{ allow: [{ ...rule, ports: [44.3] }] }, "network.allow.0.ports.0"],
    [{ allow: [{ ...rule, ports: ["443"] }] }, "network.allow.0.ports.0"],
    [{ allow: [{ ...rule, ports: Array.from({ length: 257 }, (_, index) => index + 1) }] }, "network.allow.0.ports"],
    [{ allow: [rule], tls: "off" }, "network.tls"],
    [{ allow: [rule], record: "yes" }, "network.record"],
    [{ allow: [rule], record: true }, "network.allow"],
  ])("%j is a mistake in %s", async (network, field) => {
    const { message, details } = errorOf(await spawn(network), "validation_error");
    expect(details["field"]).toBe(field);
    expect(message).toStartWith(field);
  });

  test.each([
    ["example.org", undefined, "example.org:80,443"],
    ["b.example.net", undefined, "b.example.net:80,443"],
    ["a.example.org", [22], "a.example.org:22"],
    ["a.example.org", "*", "a.example.org:*"],
    ["*", [443], "*:443"],
    ["10.0.7.0/24", [80], "10.0.7.0/24:80"],
    ["10.0.0.0/16", [5432], "10.0.0.0/16:5432"],
    ["fd00::/8", [5432], "[fd00::/8]:5432"],
  ])("%s with %p is beyond the ceiling, which the answer says", async (host, ports, text) => {
    const allow = [{ host: "a.example.org" }, { host, ports }];
    const { message, details } = errorOf(await spawn({ allow }), "forbidden");
    expect(message).toBe(`network.allow.1: the operator does not allow ${text}`);
    expect(details).toEqual({ field: "network.allow.1", rule: { host, ports: ports ?? [80, 443] } });
  });

  test("is none without a ceiling", async () => {
    expect((await spawn("none", withoutNetworks)).status).toBe(201);
    const network = { allow: [{ host: "a.example.org" }] };
    const { message, details } = errorOf(await spawn(network, withoutNetworks), "forbidden");
    expect(message).toBe("network: the operator does not allow any (network.allow is empty)");
    expect(details).toEqual({ field: "network", rule: { host: "a.example.org", ports: [80, 443] } });
    errorOf(await spawn({ record: true }, withoutNetworks), "forbidden");
  });

  test("of a recorded run needs the operator's permission", async () => {
    const limits = { ...LIMITS, network: { ...LIMITS.network, record: false } };
    await using strict = await Api.start({ limits });
    await strict.addImage([[]], { tag: "base" });
    expect(errorOf(await spawn({ record: true }, strict), "forbidden").details["field"]).toBe("network.record");
    expect((await spawn({ allow: [{ host: "a.example.org" }] }, strict)).status).toBe(201);
  });

  test("needs a scope of its own, which * has", async () => {
    const network = { allow: [{ host: "a.example.org" }] };
    const without = await api.issue("alice", ["instances:spawn"]);
    for (const each of [network, { record: true }]) {
      const { message, details } = errorOf(await spawn(each, api, without), "forbidden");
      expect(message).toBe("the token does not allow instances:network");
      expect(details).toEqual({ scope: "instances:network" });
    }
    expect((await spawn("none", api, without)).status).toBe(201);
    expect((await spawn(undefined, api, without)).status).toBe(201);
    const enough = await api.issue("alice", ["instances:spawn", "instances:network"]);
    expect((await spawn(network, api, enough)).status).toBe(201);
    expect((await spawn(network)).status).toBe(201);
  });
});

describe("the network record of an instance", () => {
  const AT = "2026-11-22T10:00:00.000Z";
  const AUDIT: NetworkAudit = {
    entries: NETWORK_VERDICTS.map((verdict, index) => ({
      host: verdict === "denied" ? "10.0.7.9" : "a.example.org",
      port: verdict === "no_such_name" ? null : 443,
      verdict,
      connections: index + 1,
      bytes_sent: index,
      bytes_received: 5_000_000_000,
      first_at: AT,
      last_at: AT,
      addresses: verdict === "allowed" ? ["192.0.2.1", "2001:db8::1"] : [],
    })),
    truncated: true,
    policy: [{ host: "a.example.org", ports: [443] }],
  };
  const RESULT = {
    ...{ exit_code: 0, cpu_time_ms: 1, memory_bytes: 1, timed_out: false, isolation: "vm" },
    stdout: { truncated: false, bytes: 0 },
    stderr: { truncated: false, bytes: 0 },
  };
  const begin = (): OperationId => {
    const { id } = api.operations.insert("alice" as AccountId, "instance");
    api.operations.start(id);
    return id;
  };
  const get = async (id: OperationId) => (await api.call("GET", `/v1/operations/${id}`)).json;
  const listed = async (id: OperationId) =>
    (await api.call("GET", "/v1/operations?limit=1000")).json.find((each: { id: string }) => each.id === id);

  test("is in the result of SUCCESS, and in no listing", async () => {
    const id = begin();
    api.operations.succeed(id, RESULT, AUDIT);
    const { result, ...operation } = await get(id);
    expect(result.network).toEqual(AUDIT);
    expect(Object.keys(operation)).not.toContain("network");
    const inList = await listed(id);
    expect(inList.result.exit_code).toBe(0);
    expect(JSON.stringify(inList)).not.toContain("network");
  });

  test("is next to the error of a FAILED or CANCELLED operation", async () => {
    const failed = begin();
    const { policy: _policy, ...audit } = AUDIT;
    api.operations.fail(failed, { error: "unavailable", message: "the VM died", details: {} }, audit);
    expect(await get(failed)).toMatchObject({ status: "FAILED", error: { error: "unavailable" }, network: audit });
    expect(Object.keys(await listed(failed))).not.toContain("network");
    const cancelled = begin();
    api.operations.cancel("alice" as AccountId, cancelled);
    api.operations.fail(cancelled, { error: "conflict", message: "cancelled", details: {} }, audit);
    expect(await get(cancelled)).toMatchObject({ status: "CANCELLED", network: audit });
  });

  test("is absent when there was no network", async () => {
    const [succeeded, failed] = [begin(), begin()];
    api.operations.succeed(succeeded, RESULT);
    api.operations.fail(failed, { error: "unavailable", message: "the VM died", details: {} });
    for (const id of [succeeded, failed]) expect(JSON.stringify(await get(id))).not.toContain("network");
  });

  test("is an event for each outcome, as it happens", async () => {
    const notices = new OperationChanges(silentLog);
    using _listening = endReaders(notices, api.parts.eventLogs);
    const id = begin();
    const log = api.parts.eventLogs.open(id);
    log.append(0, "network", { host: "a.example.org", port: 443, verdict: "allowed" });
    log.append(0, "network", { host: "b.example.org", port: null, verdict: "denied" });
    await log.end();
    api.operations.succeed(id, RESULT);
    const operation = { id, accountId: "alice" as AccountId, kind: "instance" as const };
    notices.emit({ type: "ended", operation, status: "SUCCESS", error: null, phases: [] });
    log[Symbol.dispose]();
    const { json } = await api.call("GET", `/v1/operations/${id}/events`, { headers: { accept: "application/json" } });
    expect(json.slice(0, 2)).toMatchObject([
      { spid: 0, type: "network", data: { host: "a.example.org", port: 443, verdict: "allowed" } },
      { spid: 0, type: "network", data: { host: "b.example.org", port: null, verdict: "denied" } },
    ]);
  });

  test("stays in the lineage of its image, and is not in that of others", async () => {
    const base = await api.addImage([[]]);
    const online = await api.addRun(base, [], { origin: { command: ["true"], exitCode: 0, network: true } });
    const offline = await api.addRun(online, [], { origin: { command: ["true"], exitCode: 0, network: false } });
    const steps = (await api.call("GET", `/v1/images/${offline}/lineage`)).json;
    expect(steps.map((step: Record<string, unknown>) => step["network"])).toEqual([undefined, true, undefined]);
    const [child] = (await api.call("GET", `/v1/images/${base}/children`)).json;
    expect(child).toMatchObject({ uuid: online, network: true });
  });
});

describe("PATCH of the network of a running instance", () => {
  const allow = [{ host: "a.example.org", ports: [443] }];
  const set = (path: string, network: unknown, token = api.token) =>
    api.call("PATCH", path, { json: { network }, token });

  heldTest("gives it one, replaces it and takes it away; the answer has the one that it has now", async () => {
    await using running = await runningInstance(api, "sleep 60");
    const { network, path, id: uuid } = running;
    const given = await set(path, { allow: [{ host: "A.example.org", ports: [443] }] });
    expect([given.status, given.json]).toEqual([200, { uuid, network: { allow, tls: "sni" } }]);
    expect(network.policy).toEqual({ allow, tls: "sni", record: false });
    const both = await api.call("PATCH", path, { json: { timeout: 90, network: { record: true, tls: "any" } } });
    expect(both.json).toEqual({ uuid, timeout: 90, network: { record: true, tls: "any" } });
    expect((await set(path, "none")).json).toEqual({ uuid, network: "none" });
    expect(network.policy).toBeNull();
    const policies = ["none", { allow, tls: "sni" }, { record: true, tls: "any" }, "none"];
    expect(network.audit()?.policies).toMatchObject(policies.map((policy) => ({ network: policy })));
  });

  heldTest("holds to the ceiling, and changes nothing when a part is wrong", async () => {
    const first = { allow, tls: "sni", record: false } as const;
    await using running = await runningInstance(api, "sleep 60", { network: first });
    const { network, path } = running;
    const beyond = errorOf(await set(path, { allow: [...allow, { host: "example.com" }] }), "forbidden");
    expect(beyond.details).toMatchObject({ field: "network.allow.1" });
    expect(errorOf(await set(path, { allow: [] }), "validation_error").details["field"]).toBe("network.allow");
    errorOf(await set(path, null), "validation_error");
    errorOf(await api.call("PATCH", path, { json: { timeout: 1, network: "none" } }), "conflict");
    errorOf(await api.call("PATCH", path, { json: { timeout: 999_999, network: "none" } }), "validation_error");
    expect([network.policy, network.audit()?.policies]).toEqual([first, undefined]);
  });

  heldTest("needs the scope, the owner and a running instance", async () => {
    await using running = await runningInstance(api, "sleep 60");
    const without = await api.issue("alice", ["instances:exec"]);
    expect(errorOf(await set(running.path, "none", without), "forbidden").details).toEqual({
      scope: "instances:network",
    });
    const enough = await api.issue("alice", ["instances:exec", "instances:network"]);
    expect((await set(running.path, { allow }, enough)).status).toBe(200);
    errorOf(await set(running.path, "none", api.foreignToken), "not_found");
    expect(running.network.policy).toMatchObject({ allow });
    running.command.signal(9);
    await running.command.exit;
    errorOf(await set(running.path, "none"), "conflict");
    errorOf(await set(`/v1/instances/${await queuedInstance(api)}`, { allow }), "conflict");
  });
});
