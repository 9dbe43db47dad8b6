import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { homePaths } from "../../src/vm/jail/jailed-vmm.ts";
import { type Appliance, processesWith, text } from "../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { type Body, operationOf } from "../support/runs.ts";
import { until } from "../support/waiting.ts";

const SLEEP = "echo begun; sleep 300";
const TICKS = "while :; do echo tick; sleep 0.2; done";
const LINES_COUNT = 400;
/** Numbered lines, then the input to its end. */
const TALK = `i=0; while [ $i -lt ${LINES_COUNT} ]; do i=$((i+1)); echo line $i; sleep 0.02; done`;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let base: string;

beforeAll(async () => {
  ({ appliance, image: base } = owned.use(
    await BusyboxAppliance.start({ flags: ["--leave-instances"], tag: "busybox", poolSize: 0 }),
  ));
}, 120_000);

afterAll(async () => {
  // It would leave what a failed test has not ended.
  await appliance?.down();
  await stop("--all");
  await owned.disposeAsync();
}, 60_000);

const stop = (...options: string[]) => appliance.command(["stop", "--config", appliance.configFile, ...options]);
const start = (command: string) => appliance.spawn({ image: base, command, shell: true, disposable: true });
const monitors = async () => (await appliance.monitorPids()).sort();
const expectedLines = Array.from({ length: LINES_COUNT }, (_, index) => `line ${index + 1}\n`).join("");

async function doctor(): Promise<Body | undefined> {
  const { stdout } = await appliance.command(["doctor", "--json", "--no-boot", "--config", appliance.configFile]);
  const { findings } = JSON.parse(stdout) as { readonly findings: Body[] };
  return findings.find(({ name }) => name === "restart");
}

async function eventTypes(id: string): Promise<string[]> {
  const response = await appliance.fetch(`/operations/${id}/events`, { headers: { accept: "application/json" } });
  return ((await response.json()) as { readonly type: string }[]).map(({ type }) => type);
}

/** Waits until the command has written: its instance has begun. */
async function talks(id: string): Promise<void> {
  await until(`${id} has written`, async () => (await eventTypes(id)).includes("stdout"));
}

/** The records of all machines that outlive the service. */
async function records(): Promise<string[]> {
  const names = await readdir(join(appliance.dataDir, "vms"), { recursive: true });
  return names.filter((name) => name.endsWith("machine.json"));
}

/** Replaces a field in the records of all machines. */
async function changeRecords(field: string, value: unknown): Promise<void> {
  const vms = join(appliance.dataDir, "vms");
  for (const id of await readdir(vms)) {
    const path = homePaths(join(vms, id)).record;
    const record = JSON.parse(await readFile(path, "utf8"));
    await writeFile(path, JSON.stringify({ ...record, [field]: value }));
  }
}

describe("an appliance that leaves its instances", () => {
  test.each([
    ["SIGTERM", () => appliance.down("SIGTERM")],
    [
      "coppice stop",
      async () => {
        const { code, stdout } = await stop();
        expect(stdout).toBe("stopped; 1 instance runs on until the next start takes over\n");
        await appliance.down();
        return code;
      },
    ],
  ])(
    "continues them after a stop by %s: every line is there once",
    async (_how, end) => {
      const id = await start(TALK);
      await talks(id);
      expect(await doctor()).toMatchObject({ state: "ok", summary: "1 instance runs; a restart leaves them" });
      const before = await monitors();
      expect(await end()).toBe(0);
      expect(appliance.log).toContain('"instances":1');
      expect(await monitors()).toEqual(before);
      expect(await doctor()).toMatchObject({ state: "note", summary: "1 instance runs without an appliance" });
      expect((await stop()).stdout).toContain("no appliance runs; 1 instance runs on");
      await appliance.up();
      const ended = await appliance.finished(id);
      expect({ status: ended.status, error: ended.error }).toEqual({ status: "SUCCESS", error: undefined });
      expect(text((ended.result as unknown as Body)["stdout"])).toBe(expectedLines);
      expect(await eventTypes(id)).toContain("adopted");
    },
    120_000,
  );

  test("ends them by coppice stop --all, also when only they are left", async () => {
    const id = await start(SLEEP);
    await talks(id);
    await appliance.down();
    expect(await monitors()).toHaveLength(1);
    expect(await stop("--all")).toMatchObject({ code: 0, stdout: "ended 1 instance that an appliance had left\n" });
    expect(await monitors()).toEqual([]);
    await appliance.up();
    const { status, error } = (await operationOf(appliance, id)) as { status: string; error: Body };
    expect({ status, error: error["error"] }).toEqual({ status: "FAILED", error: "unavailable" });
    expect(String(error["message"])).toContain("could not continue it");

    const other = await start(SLEEP);
    await talks(other);
    expect(await stop("--all")).toMatchObject({ code: 0, stdout: "stopped, with everything that ran\n" });
    await appliance.down();
    expect(await processesWith(appliance.dataDir)).toEqual([]);
    expect(await appliance.leftovers()).toEqual([]);
    await appliance.up();
    expect(await operationOf(appliance, other)).toMatchObject({
      status: "FAILED",
      error: { message: "the operator stopped the service with everything that ran" },
    });
  }, 120_000);

  test("continues an instance and its fork with memory", async () => {
    const id = await start(TICKS);
    await talks(id);
    const response = await appliance.post(`/instances/${id}/fork`, { count: 1 });
    expect(response.status).toBe(201);
    const { instances } = (await response.json()) as { readonly instances: readonly [{ readonly uuid: string }] };
    const fork = instances[0].uuid;
    await talks(fork);
    await until("both can outlive the daemon", async () => (await records()).length === 2);
    expect(await stop()).toMatchObject({ stdout: "stopped; 2 instances run on until the next start takes over\n" });
    await appliance.down();
    expect(await monitors()).toHaveLength(2);
    await appliance.up();
    for (const each of [id, fork]) {
      await until("it is continued", async () => (await eventTypes(each)).includes("adopted"));
      expect((await appliance.fetch(`/operations/${each}`, { method: "DELETE" })).status).toBe(202);
      expect(await appliance.finished(each)).toMatchObject({ status: "CANCELLED" });
    }
  }, 120_000);

  test.each([
    ["an agent of a protocol that is not spoken", "protocol", 3, "speaks protocol version 3"],
    ["a record of another format", "format", 77, "another format"],
    ["another boot of the host", "bootId", "5a5e7000-0000-4000-8000-000000000000", "another boot of the host"],
  ])(
    "ends one with %s, with that reason, and leaves nothing",
    async (_what, field, value, reason) => {
      const id = await start(SLEEP);
      await talks(id);
      await appliance.down();
      await changeRecords(field, value);
      await appliance.up();
      const { status, error } = (await operationOf(appliance, id)) as { status: string; error: Body };
      expect(status).toBe("FAILED");
      expect(String(error["message"])).toContain(reason);
      await until("its machine is gone", async () => (await monitors()).length === 0);
      expect((await readdir(join(appliance.dataDir, "vms"))).length).toBe(0);
    },
    120_000,
  );
});
