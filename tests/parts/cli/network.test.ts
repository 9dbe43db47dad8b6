import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { outputObject } from "../../../src/api/v1/schema/operations.ts";
import type { NetworkAudit, NetworkEntry } from "../../../src/domain/network.ts";
import { cli, ScriptedAppliance } from "../../support/cli/cli.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const KNOWN = { id: ID, kind: "instance", created_at: "2026-11-20T10:30:00.000Z" };
const output = outputObject(new Uint8Array(0), false);
const RESULT = {
  ...{ exit_code: 0, cpu_time_ms: 1, memory_bytes: 1, timed_out: false, isolation: "vm" },
  ...{ stdout: output, stderr: output },
};

const entry = (host: string, port: number | null, verdict: NetworkEntry["verdict"]): NetworkEntry => ({
  ...{ host, port, verdict, connections: 2, bytes_sent: 2048, bytes_received: 5_242_880 },
  ...{ first_at: "2026-11-20T10:30:00.000Z", last_at: "2026-11-20T10:30:01.000Z" },
  addresses: verdict === "allowed" ? ["192.0.2.1", "192.0.2.2"] : [],
});
const AUDIT: NetworkAudit = {
  entries: [entry("a.example", 443, "allowed"), entry("evil\x1b[2J", null, "denied"), entry("fd00::1", 22, "refused")],
  truncated: false,
};
const POLICY = [
  { host: "a.example", ports: [443] },
  { host: "10.0.7.5", ports: "*" as const },
];

let directory: string;
let appliance: ScriptedAppliance;
/** the operation that the appliance has */
let operation: object;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-network-"));
});
beforeEach(() => {
  operation = { ...KNOWN, status: "SUCCESS", result: RESULT };
  appliance = new ScriptedAppliance();
  appliance.answer = ({ path }) => {
    if (path === "/instances") return Response.json({ uuid: ID }, { status: 201 });
    return path.startsWith(`/operations/${ID}`) ? Response.json(operation) : undefined;
  };
});
afterEach(() => appliance[Symbol.asyncDispose]());
afterAll(() => rm(directory, { recursive: true }));

const coppice = (...argv: string[]) => cli(argv, { environment: appliance.environment });
const run = (...options: string[]) => coppice("run", "--image", "tag:x", "--disposable", ...options, "--", "job");

async function file(content: unknown): Promise<string> {
  const path = join(directory, `${Bun.randomUUIDv7()}.json`);
  await writeFile(path, typeof content === "string" ? content : JSON.stringify(content));
  return path;
}

/** The network of the request that a run with these options sends. */
async function sent(...options: string[]): Promise<unknown> {
  const { code, stderr } = await run(...options);
  expect([code, stderr]).toEqual([0, ""]);
  const [body] = appliance.bodies("POST", "/instances") as { readonly network?: unknown }[];
  return body?.network;
}

describe("--network", () => {
  test("is left out of the request when there is none", async () => {
    expect(await sent()).toBeUndefined();
    expect(await sent("--network", "none")).toBeUndefined();
  });

  test("records", async () => {
    expect(await sent("--network", "record")).toEqual({ record: true });
  });

  test("allows rules, one option after the other", async () => {
    const options = ["--network", "allow=*.Example.org:443+80,10.0.7.0/24:5432", "--network", "allow=[2001:db8::1]:*"];
    expect(await sent(...options, "--network-tls", "any")).toEqual({
      allow: [
        { host: "*.example.org", ports: [80, 443] },
        { host: "10.0.7.0/24", ports: [5432] },
        { host: "2001:db8::1", ports: "*" },
      ],
      tls: "any",
    });
  });

  test("takes the rules of a file, as a recorded run and as a request have them", async () => {
    expect(await sent("--network", `@${await file({ allow: POLICY, tls: "any" })}`)).toEqual({
      allow: POLICY,
      tls: "any",
    });
    expect(await sent("--network", `@${await file(POLICY)}`, "--network", "allow=b.example:1")).toBeDefined();
    expect(appliance.bodies("POST", "/instances").at(-1)).toMatchObject({
      network: { allow: [...POLICY, { host: "b.example", ports: [1] }] },
    });
  });

  test.each([
    [["--network", "all"], "must be none, record, allow=RULE[,RULE] or @FILE"],
    [["--network", "allow="], "the host"],
    [["--network", "allow=a.example:99999"], "the ports"],
    [["--network", "allow=2001:db8::1"], "brackets"],
    [["--network", "none", "--network", "allow=a.example"], "excludes any other"],
    [["--network", "record", "--network", "record"], "excludes any other"],
    [["--network-tls", "any"], "--network-tls is for"],
    [["--network", "record", "--network-tls", "off"], "must be sni or any"],
    [["--network", "@/nonexistent"], "cannot read /nonexistent: ENOENT"],
  ])("%j is refused, and nothing is sent", async (options, message) => {
    const { code, stderr } = await run(...options);
    expect(code).not.toBe(0);
    expect(stderr).toContain(message);
    expect(appliance.seen).toEqual([]);
  });

  test.each(["{", "{}", '"x"', "null", '{"allow": {}}'])("a file with %s is refused", async (content) => {
    const { code, stderr } = await run("--network", `@${await file(content)}`);
    expect([code === 0, appliance.seen.length]).toEqual([false, 0]);
    expect(stderr).toMatch(/is not JSON|must have an array of rules/);
  });
});

describe("the end of a run", () => {
  test("reports refusals, and nothing when every host was reached", async () => {
    operation = { ...KNOWN, status: "SUCCESS", result: { ...RESULT, network: AUDIT } };
    const { code, stderr } = await run();
    expect(code).toBe(0);
    expect(stderr).toBe(
      `coppice: not reached: evil\\033[2J (denied), [fd00::1]:22 (refused); coppice op network ${ID} shows all\n`,
    );
    const quiet = { entries: AUDIT.entries.slice(0, 1), truncated: false };
    operation = { ...KNOWN, status: "SUCCESS", result: { ...RESULT, network: quiet } };
    expect((await run()).stderr).toBe("");
  });

  test("names only some of many", async () => {
    const entries = Array.from({ length: 12 }, (_, index) => entry(`h${index}`, 1, "denied"));
    operation = { ...KNOWN, status: "SUCCESS", result: { ...RESULT, network: { entries, truncated: true } } };
    expect((await run()).stderr).toContain("h4:1 (denied), 7 more;");
  });

  test("reports the same for a failed run", async () => {
    const error = { error: "unavailable", message: "the VM died", details: {} };
    operation = { ...KNOWN, status: "FAILED", error, network: AUDIT };
    const { code, stderr } = await run();
    expect(code).toBe(125);
    expect(stderr).toContain("not reached: evil");
    expect(stderr).toContain("the VM died");
  });

  test("says where the rules of a recorded run are", async () => {
    const network = { entries: AUDIT.entries.slice(0, 1), truncated: false, policy: POLICY };
    operation = { ...KNOWN, status: "SUCCESS", result: { ...RESULT, network } };
    expect((await run("--network", "record")).stderr).toBe(
      `coppice: recorded 2 rules; coppice op network ${ID} --policy prints the policy\n`,
    );
  });
});

describe("op network", () => {
  const show = (...options: string[]) => coppice("op", "network", ID, ...options);

  test("prints a table", async () => {
    operation = { ...KNOWN, status: "SUCCESS", result: { ...RESULT, network: AUDIT } };
    const { code, stdout, stderr } = await show();
    expect([code, stderr]).toEqual([0, ""]);
    expect(stdout.toString().split("\n")).toEqual([
      "HOST         PORT  VERDICT  COUNT  SENT     RECEIVED  ADDRESSES",
      "a.example    443   allowed  2      2.0 KiB  5.0 MiB   192.0.2.1 192.0.2.2",
      "evil\\033[2J  -     denied   2      2.0 KiB  5.0 MiB",
      "fd00::1      22    refused  2      2.0 KiB  5.0 MiB",
      "",
    ]);
  });

  test("prints the audit of a failed run as JSON, and says when it is cut", async () => {
    operation = { ...KNOWN, status: "FAILED", network: { ...AUDIT, truncated: true } };
    const { code, stdout, stderr } = await show("--json");
    expect(code).toBe(0);
    expect(JSON.parse(stdout.toString())).toEqual({ ...AUDIT, truncated: true });
    expect(stderr).toBe("the appliance did not store all entries\n");
  });

  test("prints the policy of a recorded run, which --network @FILE takes", async () => {
    operation = { ...KNOWN, status: "SUCCESS", result: { ...RESULT, network: { ...AUDIT, policy: POLICY } } };
    const { code, stdout } = await show("--policy");
    expect(code).toBe(0);
    operation = { ...KNOWN, status: "SUCCESS", result: RESULT };
    expect(await sent("--network", `@${await file(stdout.toString())}`)).toEqual({ allow: POLICY });
  });

  test("prints a policy without rules", async () => {
    operation = { ...KNOWN, status: "SUCCESS", result: { ...RESULT, network: { ...AUDIT, policy: [] } } };
    expect(JSON.parse((await show("--policy")).stdout.toString())).toEqual({ allow: [] });
  });

  test.each([
    [{ ...KNOWN, status: "SUCCESS", result: RESULT }, [], "had no network"],
    [{ ...KNOWN, status: "EXECUTING" }, [], "has not ended (EXECUTING)"],
    [{ ...KNOWN, status: "SUCCESS", result: { ...RESULT, network: AUDIT } }, ["--policy"], "was not recorded"],
  ])("%j %j: %s", async (stored, options, message) => {
    operation = stored;
    const { code, stdout, stderr } = await show(...options);
    expect([code, stdout.length]).toEqual([1, 0]);
    expect(stderr).toContain(message);
  });

  test("and op show says it in short", async () => {
    operation = { ...KNOWN, status: "SUCCESS", result: { ...RESULT, network: AUDIT } };
    const { stdout } = await coppice("op", "show", ID);
    expect(stdout.toString()).toContain("NETWORK    reached 1\n");
    expect(stdout.toString()).toContain("REFUSED    evil\\033[2J (denied), [fd00::1]:22 (refused)\n");
    operation = { ...KNOWN, status: "SUCCESS", result: RESULT };
    expect((await coppice("op", "show", ID)).stdout.toString()).not.toContain("NETWORK");
  });
});
