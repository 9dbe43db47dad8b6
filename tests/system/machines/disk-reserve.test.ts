/** One guest writes as fast as it can to a disk that others need, too. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { SmallDisk } from "../../support/appliance/small-disk.ts";
import { pushImage } from "../../support/images/images.ts";
import { type Body, download, operationOf, resultOf } from "../../support/runs.ts";
import { pause, until } from "../../support/waiting.ts";

setDefaultTimeout(240_000);

const MIB = 1_048_576;
const DISK_BYTES = 900 * MIB;
const DISK_FILES = 40_000;
const RESERVE_BYTES = 128 * MIB;
const POLL_MS = 10;

const owned = new AsyncDisposableStack();
let disk: SmallDisk;
let appliance: Appliance;
let base: string;
let zeros: string;

beforeAll(async () => {
  disk = owned.use(await SmallDisk.make(DISK_BYTES, DISK_FILES));
  const flags = ["--limits-disk-reserve-bytes", String(RESERVE_BYTES)];
  const setup = await BusyboxAppliance.start({ parent: disk.path, poolSize: 2, flags });
  ({ appliance, image: base } = owned.use(setup));
  zeros = await pushImage(setup.registry, "zeros:1", { layers: [[{ path: "zeros", content: Buffer.alloc(MIB) }]] });
});

afterAll(async () => {
  await owned.disposeAsync();
});

/** Measures the minimum of the free space from now on. */
function leastRoom(): AsyncDisposable & { readonly bytes: () => number } {
  let bytes = Number.POSITIVE_INFINITY;
  let watching = true;
  const watch = (async () => {
    while (watching) {
      bytes = Math.min(bytes, await disk.freeBytes());
      await pause("the next look", POLL_MS);
    }
  })();
  return {
    bytes: () => bytes,
    [Symbol.asyncDispose]: async () => {
      watching = false;
      await watch;
    },
  };
}

test("a run that fills the disk is ended at the reserve; other runs, imports and uploads continue", async () => {
  await using room = leastRoom();
  const write = "echo begun > /root/state; until [ -e /never ]; do dd if=/dev/zero of=/root/$n bs=1M count=40; done";
  const hog = await appliance.spawn({
    image: base,
    command: write.replace("; do", "; do n=$((n+1));"),
    shell: true,
    resources: { disk_bytes: 8 * DISK_BYTES },
  });
  const bystander = await appliance.spawn({
    image: base,
    command: "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do head -c 1000000 /dev/urandom > /root/$i; sync; sleep 1; done",
    shell: true,
  });
  await until("the disk is half full", async () => (await disk.freeBytes()) < DISK_BYTES / 2, 120_000);
  const upload = appliance.fetch("/files", { method: "POST", body: new Uint8Array(48 * MIB) });
  const importing = appliance.importImage(zeros);
  const ended = (await appliance.finished(hog)) as unknown as { status: string; error: { details: Body } };
  expect(ended).toMatchObject({
    status: "FAILED",
    error: { error: "insufficient_storage", details: { reserve_bytes: RESERVE_BYTES } },
  });
  expect(Number(ended.error.details["used_bytes"])).toBeGreaterThan(200 * MIB);
  expect(Number(ended.error.details["cpu_time_ms"])).toBeGreaterThan(0);
  // Its space is free by the time its end is reported.
  expect(await disk.freeBytes()).toBeGreaterThan(2 * RESERVE_BYTES);
  expect((await upload).status).toBe(201);
  await importing;
  const { image = "" } = resultOf(await appliance.finished(bystander));
  expect((await (await download(appliance, image, "/root/12")).bytes()).length).toBe(1_000_000);
  expect(room.bytes()).toBeGreaterThan(RESERVE_BYTES / 2);
});

test("two such runs are ended one after the other, and new work runs at once", async () => {
  await using room = leastRoom();
  const command = "dd if=/dev/zero of=/root/big bs=1M; sleep 300";
  const resources = { disk_bytes: 8 * DISK_BYTES };
  const hogs = await Promise.all(
    [1, 2].map(() => appliance.spawn({ image: base, command, shell: true, resources, disposable: true })),
  );
  const ends = await Promise.all(hogs.map((id) => appliance.finished(id)));
  for (const end of ends) expect(end).toMatchObject({ status: "FAILED", error: { error: "insufficient_storage" } });
  expect(room.bytes()).toBeGreaterThan(0);
  const operation = await appliance.run(base, "echo well > /root/state");
  expect(await (await download(appliance, resultOf(operation).image ?? "", "/root/state")).text()).toBe("well\n");
  await until("nothing is left", async () => (await appliance.unfinished()).length === 0);
});

test("a checkpoint that would need the reserve fails, and its run continues", async () => {
  const checkpointOf = async (mebibytes: number) => {
    const command = `dd if=/dev/zero of=/root/data bs=1M count=${mebibytes} 2>/dev/null; sync; echo there; sleep 200`;
    const id = await appliance.spawn({ image: base, command, shell: true, timeout: 240 });
    await until(`${mebibytes} MiB are written`, async () => {
      const events = await appliance.fetch(`/operations/${id}/events?spid=1`, {
        headers: { accept: "application/json" },
      });
      return (await events.text()).includes("there\\n");
    });
    const response = await appliance.post(`/instances/${id}/checkpoint`, {});
    const checkpoint = await appliance.finished(((await response.json()) as { uuid: string }).uuid);
    const { status } = await operationOf(appliance, id);
    await appliance.fetch(`/operations/${id}`, { method: "DELETE" });
    await appliance.finished(id);
    return { checkpoint, status };
  };
  const large = await checkpointOf(420);
  expect(large.checkpoint).toMatchObject({ status: "FAILED", error: { error: "insufficient_storage" } });
  expect(large.status).toBe("EXECUTING");
  const small = await checkpointOf(40);
  expect(small.checkpoint).toMatchObject({ status: "SUCCESS" });
  expect(Number((small.checkpoint.result as unknown as Body)["size_bytes"])).toBeLessThan(60 * MIB);
});
