/** A kill of the daemon during a transition: it fails with a reason or is completed, and leaves nothing behind. */
import { afterAll, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { cgroupNamespace } from "../../../src/supervisor/machines/cgroups.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { eventsOf } from "../../support/event-client.ts";
import { operationOf } from "../../support/runs.ts";
import { SandboxClient } from "../../support/sandboxes/client.ts";
import { AddedProcess, replaceDaemon } from "../../support/survivors/client.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(180_000);

/** Changes that take a transition a while to copy, list and store. */
const FILES = "mkdir -p /root/many; i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i > /root/many/$i; done";
const DATA = "dd if=/dev/zero of=/root/data bs=1M count=24 2>/dev/null; sync";

const owned = new AsyncDisposableStack();
let appliance: Appliance;
beforeAll(async () => {
  ({ appliance } = owned.use(await BusyboxAppliance.start({ poolSize: 0, tag: "busybox" })));
});
afterAll(() => owned.disposeAsync());

/** Directories of machines, of unfinished work and of kept memory, control groups, and layers. */
async function remains(): Promise<{ readonly left: readonly string[]; readonly layers: number }> {
  await using cgroups = await openCgroupTree({ namespace: cgroupNamespace(appliance.dataDir), opensOnly: true });
  const groups = (await cgroups.list()).filter((name) => !name.startsWith("gate-"));
  const layers = (await readdir(join(appliance.dataDir, "layers"))).length;
  const memory = await readdir(join(appliance.dataDir, "memory-images"));
  return { left: [...(await appliance.leftovers()), ...groups, ...memory], layers };
}

describe("a kill during", () => {
  let box: SandboxClient;
  let name = 0;
  beforeEach(async () => {
    name += 1;
    box = await SandboxClient.open(appliance, { image: "tag:busybox", name: `box-${name}`, timeout: 900 });
    await box.run(`${FILES}; ${DATA}`);
  });

  /** A loop that writes to the disk, and prints numbers: it stops as long as the disk is frozen. */
  const writer = async (): Promise<AddedProcess> => {
    const command = "i=0; while true; do i=$((i+1)); echo $i > /root/number; echo $i; sleep 0.02; done";
    const process = await AddedProcess.start(appliance, `/sandboxes/${box.id}`, { command, shell: true });
    await process.prints("\n5\n");
    return process;
  };

  async function continues(process: AddedProcess): Promise<void> {
    await until(
      "the sandbox is continued",
      async () => (await box.post("processes", { command: "true" })).status === 201,
    );
    const { output } = await process.state();
    await process.prints(`\n${output.trimEnd().split("\n").length + 20}\n`);
    const lines = (await process.state()).output.trimEnd().split("\n");
    expect(lines).toEqual(lines.map((_, at) => String(at + 1)));
  }

  /** Ends the sandbox, and expects that nothing is left of it. */
  async function endsCleanly(layersBefore: number): Promise<void> {
    await box.end();
    await until("nothing is left", async () => (await remains()).left.length === 0);
    await until("no layer is left", async () => (await remains()).layers <= layersBefore);
  }

  test.each(["copying", "indexing"])(
    "a checkpoint, while it is %s: it fails, and the sandbox continues",
    async (step) => {
      const { layers } = await remains();
      const process = await writer();
      const { body } = await box.post("checkpoint", { tag: "never" });
      const { uuid } = body as { readonly uuid: string };
      await until(`it is ${step}`, async () => {
        return (await eventsOf(appliance, uuid)).some(({ type, data }) => type === "progress" && data.step === step);
      });
      await replaceDaemon(appliance);
      expect(await operationOf(appliance, uuid)).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
      await continues(process);
      // Another one is made from the same disk.
      const image = await box.checkpoint();
      expect((await appliance.fetch(`/inspect/${image}/download?path=/root/many/400`)).status).toBe(200);
      expect((await remains()).left.filter((path) => path.startsWith("tmp/"))).toEqual([]);
      await endsCleanly(layers + 2);
    },
  );

  test("a fork with memory: it fails or is made, and the sandbox continues", async () => {
    const { layers } = await remains();
    const process = await writer();
    const answer = box.post("fork", { count: 2, memory: true }).catch(() => null);
    await until("the machines of the forks are made", async () => (await remains()).left.length > 2);
    await replaceDaemon(appliance);
    await answer;
    await continues(process);
    const all = (await (await appliance.fetch("/sandboxes")).json()) as { readonly uuid: string }[];
    for (const { uuid } of all) {
      if (uuid !== box.id) await appliance.fetch(`/sandboxes/${uuid}`, { method: "DELETE" });
    }
    await endsCleanly(layers);
  });

  test("a rollback and an end that keep the files, with tags: they are completed with the next daemon", async () => {
    const { image } = await box.get();
    expect((await box.post("rollback", { image, keep: true, tag: "kept" })).status).toBe(200);
    await replaceDaemon(appliance);
    await until("it runs again", async () => (await box.get()).state === "running");
    expect((await box.events()).filter(({ type }) => type === "adopted")).toHaveLength(1);
    expect((await box.run("ls /root")).output).toBe("");
    const [tagged] = (await (await appliance.fetch("/images?tag=kept")).json()) as { readonly uuid: string }[];
    const listing = await appliance.fetch(`/inspect/${tagged?.uuid}/download?path=/root/many/400`);
    expect(await listing.text()).toBe("400\n");

    await box.run("echo last > /root/last");
    expect((await box.end("keep=true&tag=last")).status).toBe(202);
    await replaceDaemon(appliance);
    await until("it has ended", async () => (await box.get()).state === "ended");
    const [last] = (await (await appliance.fetch("/images?tag=last")).json()) as { readonly uuid: string }[];
    expect((await appliance.fetch(`/inspect/${last?.uuid}/download?path=/root/last`)).status).toBe(200);
    await until("nothing is left", async () => (await remains()).left.length === 0);
  });

  test("the capture at a pause: the sandbox is paused with its files, or has failed with the reason", async () => {
    const { instance } = await box.get();
    expect((await box.post("pause")).status).toBe(200);
    await until("its files are listed", async () =>
      (await appliance.unfinished()).some((path) => path.includes("capture-")),
    );
    await replaceDaemon(appliance);
    await until("it has settled", async () => ["paused", "failed"].includes((await box.get()).state));
    const { state, error } = await box.get();
    const { status } = await operationOf(appliance, String(instance));
    expect(status).toBe(state === "paused" ? "SUCCESS" : "FAILED");
    if (state === "failed") expect(error?.message).toContain("restarted");
    await until("its machine is gone", async () => (await remains()).left.length === 0);
    await box.becomes("running", "resume?wait=60");
    const { output } = await box.run("ls /root/many | wc -l");
    if (state === "paused") expect(output).toBe("400\n");
    await box.end();
    await until("nothing is left", async () => (await remains()).left.length === 0);
  });

  test("the capture at a pause with memory: the sandbox is paused with its files", async () => {
    const process = await writer();
    expect((await box.post("pause", { memory: true })).status).toBe(200);
    await until("its files are listed", async () =>
      (await appliance.unfinished()).some((path) => path.includes("capture-")),
    );
    await replaceDaemon(appliance);
    await until("it has settled", async () => ["paused", "failed"].includes((await box.get()).state));
    expect([(await box.get()).state, (await box.get()).error]).toEqual(["paused", undefined]);
    await until("its machine is gone", async () => (await remains()).left.length === 0);
    await box.becomes("running", "resume?wait=60");
    expect((await box.run("ls /root/many | wc -l")).output).toBe("400\n");
    expect(Number((await box.run("cat /root/number")).output)).toBeGreaterThanOrEqual(5);
    expect((await process.state()).output).toContain("\n5\n");
    await endsCleanly(Number.POSITIVE_INFINITY);
  });

  test("a pause with memory: the sandbox is paused or failed, and can be resumed", async () => {
    expect((await box.post("pause", { memory: true })).status).toBe(200);
    await replaceDaemon(appliance);
    await until("it has settled", async () => ["paused", "failed"].includes((await box.get()).state));
    await box.becomes("running", "resume?wait=60");
    await endsCleanly(Number.POSITIVE_INFINITY);
  });
});
