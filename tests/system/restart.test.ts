import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { type Appliance, processesWith, text } from "../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { type Body, operationOf, running } from "../support/runs.ts";
import { until } from "../support/waiting.ts";

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let base: string;

beforeAll(async () => {
  // Two CPUs of budget: the third instance of a test has to wait.
  ({ appliance, image: base } = owned.use(
    await BusyboxAppliance.start({ flags: ["--vm-cpu-budget", "2"], tag: "busybox" }),
  ));
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

/** Remains of the previous process on the host, by the data directory in the arguments of its machines. */
async function remains(): Promise<string[]> {
  const processes = await processesWith(appliance.dataDir);
  return [...processes.map(({ argv }) => argv), ...(await appliance.leftovers())];
}

/** Waits until the log of an operation has an event of a type. */
async function logged(id: string, type: "spawn" | "exit"): Promise<void> {
  await until(`its log has ${type}`, async () => {
    const events = await appliance.fetch(`/operations/${id}/events`, { headers: { accept: "application/json" } });
    return ((await events.json()) as { readonly type: string }[]).some((event) => event.type === type);
  });
}

describe.each(["SIGTERM", "SIGKILL"] as const)("a daemon ended by %s", (signal) => {
  test("loses nothing acknowledged, ends or continues running operations, and runs waiting ones", async () => {
    const kept = await appliance.run(base, "echo kept > /root/kept");
    const keptImage = String((kept.result as unknown as Body)["image"]);
    const slow = await appliance.spawn({ image: base, command: "sleep 300", shell: true });
    const cancelled = await appliance.spawn({ image: base, command: "sleep 300", shell: true });
    await logged(slow, "spawn");
    await running(appliance, cancelled);
    // It has no room until the service ends, because the first one still runs.
    const waiting = await appliance.spawn({
      ...{ image: keptImage, command: "cat /root/kept", shell: true },
      resources: { vcpus: 2 },
    });
    expect((await operationOf(appliance, waiting))["status"]).toBe("PENDING");
    // The cancel is accepted, and the service ends before the work can react: SIGKILL follows at once.
    expect((await appliance.fetch(`/operations/${cancelled}`, { method: "DELETE" })).status).toBe(202);
    await appliance.down(signal);
    await appliance.up();

    if (signal === "SIGTERM") {
      expect(await operationOf(appliance, slow)).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    } else {
      // Its machine has outlived the daemon, and its place in the budget is still taken.
      expect((await operationOf(appliance, slow))["status"]).toBe("EXECUTING");
      expect((await operationOf(appliance, waiting))["status"]).toBe("PENDING");
      expect((await appliance.fetch(`/operations/${slow}`, { method: "DELETE" })).status).toBe(202);
    }
    expect((await operationOf(appliance, cancelled))["status"]).toBe("CANCELLED");
    const late = await appliance.finished(waiting);
    expect(late.status).toBe("SUCCESS");
    expect(text((late.result as unknown as Body)["stdout"])).toBe("kept\n");
    const response = await appliance.fetch(`/inspect/${keptImage}/download?path=/root/kept`);
    expect(await response.text()).toBe("kept\n");
    expect((await operationOf(appliance, kept.id))["status"]).toBe("SUCCESS");
  }, 120_000);

  test("between the command and the image: the tag names the image of the run, if there is one", async () => {
    const older = await appliance.run(base, "echo older > /root/step", { tag: "step" });
    const command = "head -c 67108864 /dev/urandom > /root/step";
    const id = await appliance.spawn({ image: base, command, shell: true, tag: "step" });
    await logged(id, "exit");
    await appliance.down(signal);
    await appliance.up();
    const { status, result } = (await operationOf(appliance, id)) as { status: string; result?: { image: string } };
    const { image } = (status === "SUCCESS" ? result : older.result) as { readonly image: string };
    const tagged = (await (await appliance.fetch("/images?tag=step")).json()) as { readonly uuid: string }[];
    expect({ status, tagged: tagged.map(({ uuid }) => uuid) }).toEqual({ status, tagged: [image] });
  }, 120_000);

  test("leaves no machine, directory or incomplete layer", async () => {
    const slow = await appliance.spawn({ image: base, command: "echo x > /root/x; sleep 300", shell: true });
    await logged(slow, "spawn");
    const layers = (await readdir(join(appliance.dataDir, "layers"))).length;
    await appliance.down(signal);
    if (signal === "SIGTERM") {
      expect(await appliance.machinePids()).toEqual([]);
      expect(await remains()).toEqual([]);
    } else {
      // Only the machine of the instance outlives the daemon, with its launcher.
      await until("the others are gone", async () => (await appliance.machinePids()).length === 2);
    }
    await appliance.up();
    const kept = async () => (await readdir(join(appliance.dataDir, "layers"))).length;
    await until("what was half-made is swept", async () => (await kept()) === layers);
    if (signal === "SIGKILL") await appliance.fetch(`/operations/${slow}`, { method: "DELETE" });
    expect((await appliance.finished(slow)).status).toBe(signal === "SIGKILL" ? "CANCELLED" : "FAILED");
  }, 120_000);
});

test("a second daemon on the same data directory is refused", async () => {
  const { code, stderr } = await appliance.command(["serve", "--data-dir", appliance.dataDir, "--listen-port", "0"]);
  expect(code).not.toBe(0);
  expect(stderr).toContain("in use");
}, 30_000);
