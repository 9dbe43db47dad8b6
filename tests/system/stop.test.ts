import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { type Appliance, processesWith } from "../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { type Body, operationOf, running } from "../support/runs.ts";
import { until } from "../support/waiting.ts";

const REASON = { error: "unavailable", message: "the operator stopped the service with everything that ran" };

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let base: string;

beforeAll(async () => {
  ({ appliance, image: base } = owned.use(await BusyboxAppliance.start({ tag: "busybox" })));
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

const stop = (...options: string[]) => appliance.command(["stop", "--config", appliance.configFile, ...options]);
const slow = () => appliance.spawn({ image: base, command: "echo begun; sleep 300", shell: true });

async function sandbox(name: string): Promise<Body> {
  const response = await appliance.post("/sandboxes", { image: "tag:busybox", name });
  return (await response.json()) as Body;
}
const sandboxOf = async (id: unknown) => (await (await appliance.fetch(`/sandboxes/${id}`)).json()) as Body;

/** Processes and directories of a stopped appliance. */
async function remains(): Promise<string[]> {
  const processes = await processesWith(appliance.dataDir);
  return [...processes.map(({ argv }) => argv), ...(await appliance.leftovers())];
}

describe("coppice stop --all", () => {
  test("ends what runs with the reason, keeps heads and waiting work, and leaves nothing", async () => {
    const id = await slow();
    await running(appliance, id);
    const { uuid } = await sandbox("dev");
    await until("the sandbox runs", async () => (await sandboxOf(uuid))["state"] === "running");
    const { code, stdout, stderr } = await stop("--all");
    expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: "stopped, with everything that ran\n", stderr: "" });
    expect(await remains()).toEqual([]);
    await appliance.down();
    await appliance.up();
    expect(await operationOf(appliance, id)).toMatchObject({ status: "FAILED", error: REASON });
    const failed = await sandboxOf(uuid);
    expect(failed).toMatchObject({ state: "failed", error: REASON });
    expect((await appliance.post(`/sandboxes/${uuid}/resume`, {})).status).toBeLessThan(300);
  }, 180_000);

  test("asked twice at once, both see the end", async () => {
    const both = await Promise.all([stop("--all"), stop("--all")]);
    expect(both.map(({ code }) => code)).toEqual([0, 0]);
    await appliance.down();
    await appliance.up();
  }, 120_000);
});

test("coppice stop without an appliance says so", async () => {
  await appliance.down();
  const { code, stdout } = await stop();
  expect([code, stdout]).toEqual([0, "no appliance runs\n"]);
  const nowhere = await appliance.command(["stop", "--data-dir", "/nonexistent/data"]);
  expect([nowhere.code, nowhere.stderr]).toEqual([
    1,
    "coppice stop: there is no appliance's data in /nonexistent/data\n",
  ]);
  const wrong = await stop("--timeout", "soon");
  expect([wrong.code, wrong.stderr]).toEqual([2, expect.stringContaining("--timeout must be a duration")]);
}, 60_000);
