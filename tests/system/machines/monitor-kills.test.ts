import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { PROBE_MEMO_NAME } from "../../../src/vm/probe.ts";
import { type Appliance, type Finished, killAll } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { pushImage } from "../../support/images/images.ts";
import type { Registry } from "../../support/images/registry.ts";
import { operationOf, running, upload } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(180_000);

const RUNS = 6;
/** Placing it takes much longer than finding the machine that it is placed in. */
const LARGE_FILE_BYTES = 192 * 1_048_576;

/** Files of an image whose listing takes as long. */
const LISTED_COUNT = 20_000;

const owned = new AsyncDisposableStack();
let registry: Registry;
let appliance: Appliance;
let base: string;

beforeAll(async () => {
  ({ registry, appliance, image: base } = owned.use(await BusyboxAppliance.start()));
});

afterAll(async () => {
  await owned.disposeAsync();
});

/** Kills this many monitors as they appear. */
async function killMonitors(count: number): Promise<void> {
  const killed = new Set<number>();
  await until(`${count} monitors are killed`, async () => {
    for (const pid of await appliance.monitorPids()) {
      if (killed.size === count || killed.has(pid)) continue;
      killed.add(pid);
      killAll([pid]);
    }
    return killed.size === count;
  });
}

const spawnMany = () =>
  Promise.all(
    Array.from({ length: RUNS }, (_, index) =>
      appliance.spawn({ image: base, command: `echo ${index}`, shell: true, disposable: true }),
    ),
  );

async function expectSuccess(ids: readonly string[]): Promise<void> {
  const ended = await Promise.all(ids.map((id) => appliance.finished(id)));
  const failed = ended.filter(({ status }) => status !== "SUCCESS").map(({ error }) => error);
  expect(failed).toEqual([]);
}

const isReady = async (): Promise<boolean> => (await fetch(`${appliance.url}/readyz`)).status === 200;
const failure = (operation: Finished) => (operation as unknown as { error: Record<string, unknown> }).error;

describe("runs succeed when a monitor is killed", () => {
  test("in the first probe, which does not remember the failure", async () => {
    await appliance.down();
    const memo = join(appliance.dataDir, PROBE_MEMO_NAME);
    await rm(memo);
    await appliance.up();
    const ids = await spawnMany();
    await killMonitors(2);
    await expectSuccess(ids);
    expect(appliance.log).toContain("a signal interrupted the trial of a way to run machines");
    const reasons = (JSON.parse(await Bun.file(memo).text()) as { reason: string }[]).map(({ reason }) => reason);
    expect(reasons.filter((reason) => reason.includes("signal 9"))).toEqual([]);
  });

  test("while the template boots, and in the cold boot that replaces it", async () => {
    await appliance.down();
    await appliance.up();
    const ids = await spawnMany();
    await killMonitors(3);
    await expectSuccess(ids);
    await until("its template is built", isReady);
  });

  test("in the pool, which is refilled", async () => {
    await until("a machine waits", () => hasMachines("waiting"));
    await Promise.all([killMonitors(1), spawnMany().then(expectSuccess)]);
    await until("a machine waits again", () => hasMachines("waiting"));
  });
});

async function hasMachines(state: "waiting" | "in_use"): Promise<boolean> {
  const text = await (await fetch(`${appliance.url}/metrics`)).text();
  return new RegExp(`^coppice_vms\\{state="${state}"\\} [1-9]`, "m").test(text);
}

describe("a machine that is killed before its command begins", () => {
  const spawnSlowly = async (): Promise<string> => {
    const file = await upload(appliance, new Uint8Array(LARGE_FILE_BYTES));
    const files = { "/root/large": { uuid: file } };
    return await appliance.spawn({ image: base, command: "wc -c < /root/large", shell: true, files, disposable: true });
  };
  const killEach = async (): Promise<void> => killAll(await appliance.monitorPids());
  const lossesCount = () => appliance.log.split("a machine was lost before its work began").length - 1;

  test("is replaced, and the command runs there", async () => {
    const id = await spawnSlowly();
    await running(appliance, id);
    const before = lossesCount();
    await killEach();
    const operation = await appliance.finished(id);
    expect(operation).toMatchObject({ status: "SUCCESS", result: { exit_code: 0 } });
    expect(lossesCount()).toBe(before + 1);
  });

  test("is replaced once; the error of the second names the end of its monitor", async () => {
    const id = await spawnSlowly();
    await running(appliance, id);
    const before = lossesCount();
    await killEach();
    await until("it was replaced", () => lossesCount() > before);
    await running(appliance, id);
    await killEach();
    const { error, message, details } = failure(await appliance.finished(id));
    expect(error).toBe("unavailable");
    expect(message).toBe("the virtual machine monitor ended before the command began (QEMU, killed by signal 9)");
    expect(details).toMatchObject({ reason: "vmm_died" });
  });

  test("is replaced in an import, too, whose disk another machine lists", async () => {
    const entries = Array.from({ length: LISTED_COUNT }, (_, index) => ({ path: `file${index}`, content: "x" }));
    const reference = await pushImage(registry, "many:1", { layers: [entries] });
    await until("a machine waits", () => hasMachines("waiting"));
    const id = await appliance.submitImport(reference);
    await until("a machine lists it", () => hasMachines("in_use"));
    const before = lossesCount();
    await killEach();
    expect((await appliance.finished(id)).status).toBe("SUCCESS");
    expect(lossesCount()).toBe(before + 1);
  });
});

describe("while no way to run machines works", () => {
  /** Too short for a trial on any host. */
  const HOPELESS = ["--vm-probe-timeout", "1ms"];
  const restart = async (flags: readonly string[]): Promise<void> => {
    await appliance.down();
    await rm(join(appliance.dataDir, PROBE_MEMO_NAME), { force: true });
    appliance.flags = flags;
    await appliance.up();
  };
  const statusOf = async (id: string) => (await operationOf(appliance, id))["status"];
  const spawn = () => appliance.spawn({ image: base, command: "true", disposable: true });

  test("runs wait PENDING, can be cancelled, survive a restart, and succeed once one works", async () => {
    await restart(HOPELESS);
    const [first, second] = [await spawn(), await spawn()];
    await until("it is known", async () => (await (await fetch(`${appliance.url}/readyz`)).text()).includes("1 s"));
    expect([await statusOf(first), await statusOf(second)]).toEqual(["PENDING", "PENDING"]);
    expect((await appliance.fetch(`/operations/${first}`, { method: "DELETE" })).status).toBe(202);
    expect(await statusOf(first)).toBe("CANCELLED");
    await restart([]);
    expect((await appliance.finished(second)).status).toBe("SUCCESS");
  });

  test("runs end FAILED after vm.probe_give_up with the reason, and later ones at once", async () => {
    await restart([...HOPELESS, "--vm-probe-give-up", "1s"]);
    for (let round = 0; round < 2; round++) {
      const operation = await appliance.finished(await spawn());
      expect(operation).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
      expect(operation).not.toHaveProperty("started_at");
      expect(failure(operation)["message"]).toContain("vm.probe_timeout");
    }
    await restart([]);
    expect((await appliance.finished(await spawn())).status).toBe("SUCCESS");
  });
});

test("these tests leave nothing behind", async () => {
  await until("a machine waits", () => hasMachines("waiting"));
  await until("one machine is left", async () => {
    const left = await appliance.leftovers();
    return left.length <= 2 && left.every((name) => name.startsWith("vms/"));
  });
});
