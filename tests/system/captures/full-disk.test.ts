/** The disk of the data directory fills up at every point where something is written. */

import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { copyFile, readdir, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openDatabase } from "../../../src/db/database.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import type { Appliance, Finished } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { SmallDisk } from "../../support/appliance/small-disk.ts";
import { pushImage } from "../../support/images/images.ts";
import type { Registry } from "../../support/images/registry.ts";
import type { TarEntry } from "../../support/images/tar.ts";
import { pause, until } from "../../support/waiting.ts";

const MIB = 1_048_576;
const DISK_BYTES = 400 * MIB;
const RESERVE_BYTES = 16 * MIB;
/** A twentieth of them is reserved. */
const DISK_FILES = 40_000;
/** A scratch that has not grown for this long contains all writes of the run. */
const QUIET_MS = 2000;

const owned = new AsyncDisposableStack();
let registry: Registry;
let disk: SmallDisk;
let appliance: Appliance;
let reference: string;
let base: string;

beforeAll(async () => {
  disk = owned.use(await SmallDisk.make(DISK_BYTES, DISK_FILES));
  const flags = ["--limits-disk-reserve-bytes", String(RESERVE_BYTES)];
  const setup = await BusyboxAppliance.start({ parent: disk.path, flags });
  ({ registry, appliance, reference, image: base } = owned.use(setup));
}, 120_000);

afterEach(async () => {
  await disk.release();
});

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

const FULL = { status: "FAILED", error: { error: "insufficient_storage" } };

/** Checks that a run works, and that its capture can be read. */
async function expectService(): Promise<void> {
  const operation = await appliance.run(base, "echo well > /root/state");
  expect(operation.status).toBe("SUCCESS");
  const image = (operation.result as unknown as { image: string }).image;
  const file = await appliance.fetch(`/inspect/${image}/download?path=/root/state`);
  expect(await file.text()).toBe("well\n");
}

const layers = async () => (await readdir(join(appliance.dataDir, "layers"))).sort();

/** Checks that failed work has left nothing behind, and has removed nothing. */
async function expectOnly(before: readonly string[]): Promise<void> {
  expect(await layers()).toEqual([...before]);
  await until("nothing is left", async () => (await appliance.unfinished()).length === 0);
}

/** Waits until the only running instance has written all of its files. */
async function written(leastBytes: number): Promise<void> {
  let last = { bytes: 0, since: Date.now() };
  await until("the run has written its files", async () => {
    const bytes = Math.max(0, ...(await scratchSizes()));
    if (bytes !== last.bytes) last = { bytes, since: Date.now() };
    return last.bytes >= leastBytes && Date.now() - last.since >= QUIET_MS;
  });
}

async function scratchSizes(): Promise<number[]> {
  const directory = join(appliance.dataDir, "vms");
  const sizes: number[] = [];
  for (const name of await readdir(directory)) {
    // A waiting clone has no scratch, and a machine may end meanwhile.
    const scratch = await stat(join(directory, name, "vm", "S")).catch(() => null);
    if (scratch !== null) sizes.push(scratch.blocks * 512);
  }
  return sizes;
}

async function importFails(name: string, entries: readonly TarEntry[], leftBytes: number): Promise<Finished> {
  const image = await pushImage(registry, name, { layers: [[{ path: "./", type: "directory" }, ...entries]] });
  await disk.fill(leftBytes);
  return await appliance.finished(await appliance.submitImport(image));
}

describe("a disk that fills up", () => {
  test("in the guest fails the run at once, and frees its space", async () => {
    const before = await layers();
    const operation = await appliance.run(base, "dd if=/dev/zero of=/root/big bs=1M count=2000; sleep 200");
    expect(operation).toMatchObject(FULL);
    await expectOnly(before);
    expect(await disk.freeBytes()).toBeGreaterThan(RESERVE_BYTES);
    await expectService();
  }, 120_000);

  test("while the guest delays its writes fails the capture: no incomplete image is published", async () => {
    const before = await layers();
    // Less than the guest's page cache: the command itself sees no error.
    await disk.fill(64 * MIB);
    const operation = await appliance.run(base, "dd if=/dev/zero of=/root/big bs=1M count=120");
    expect(operation).toMatchObject(FULL);
    await expectOnly(before);
    await disk.release();
    await expectService();
  }, 120_000);

  test("while the files of a run are listed fails the capture", async () => {
    const before = await layers();
    const many =
      "mkdir /root/d; cd /root/d; i=0; while [ $i -lt 3000 ]; do : > name-$i; i=$((i+1)); done; sync; sleep 15";
    const id = await appliance.spawn({ image: base, command: many, shell: true });
    // Their inodes alone need more than this.
    await written(600 * 1024);
    await disk.fill(0);
    // Its end may be recorded only once there is space again.
    const recorded = await Promise.race([appliance.finished(id), pause("its end is recorded", 30_000)]);
    await disk.release();
    expect(recorded ?? (await appliance.finished(id))).toMatchObject(FULL);
    await expectOnly(before);
    await expectService();
  }, 120_000);

  test.each([
    ["pulled", "random", [{ path: "random", content: randomBytes(40 * MIB) }], 24 * MIB],
    ["unpacked", "zeros", [{ path: "zeros", content: Buffer.alloc(60 * MIB) }], 40 * MIB],
    ["made into a disk", "more-zeros", [{ path: "zeros", content: Buffer.alloc(61 * MIB) }], 90 * MIB],
  ] as [string, string, TarEntry[], number][])(
    "while an image is %s fails the import",
    async (_step, name, entries, leftBytes) => {
      const before = await layers();
      expect(await importFails(`${name}:1`, entries, leftBytes)).toMatchObject(FULL);
      await expectOnly(before);
      await disk.release();
      await expectService();
    },
    120_000,
  );

  test("in an upload answers 507", async () => {
    await disk.fill(40 * MIB);
    const response = await appliance.fetch("/files", { method: "POST", body: new Uint8Array(100 * MIB) });
    expect(response.status).toBe(507);
    expect(await response.json()).toMatchObject({ error: "insufficient_storage" });
    expect(await appliance.unfinished()).toEqual([]);
    expect(await disk.freeBytes()).toBeGreaterThan(32 * MIB);
    await disk.release();
    const again = await appliance.fetch("/files", { method: "POST", body: new Uint8Array(100 * MIB) });
    expect(again.status).toBe(201);
  }, 60_000);
});

describe("a disk with almost no free inodes", () => {
  const NO_INODES = {
    error: "insufficient_storage",
    message: "the disk of the service has almost no room for more files",
  };

  test("fails the import that needs them, and no new work is accepted", async () => {
    const before = await layers();
    const entries = Array.from({ length: 3000 }, (_, index) => ({ path: `file-${index}`, content: "" }));
    const many = await pushImage(registry, "many:1", { layers: [entries] });
    await disk.fillFiles(4000);
    expect(await appliance.finished(await appliance.submitImport(many))).toMatchObject({
      status: "FAILED",
      error: NO_INODES,
    });
    await expectOnly(before);
    await disk.fillFiles(1500);
    const refused = await appliance.post("/instances", { image: base, command: "true" });
    expect([refused.status, await refused.json()]).toEqual([507, expect.objectContaining(NO_INODES)]);
    await disk.release();
    await expectService();
  }, 120_000);
});

describe("a disk that is nearly full", () => {
  test("accepts no new work, says why, and serves existing images", async () => {
    await disk.fill(RESERVE_BYTES / 2);
    const refused = [
      await appliance.post("/instances", { image: base, command: "true" }),
      await appliance.post("/images/import", { registry: reference }),
      await appliance.fetch("/files", { method: "POST", body: "small" }),
    ];
    for (const response of refused) {
      expect(response.status).toBe(507);
      const body = (await response.json()) as { error: string; message: string };
      expect(body.error).toBe("insufficient_storage");
      expect(body.message).toContain("nearly full");
    }
    expect((await appliance.fetch(`/inspect/${base}/download?path=/etc/passwd`)).status).toBe(200);
    await disk.release();
    await expectService();
  }, 60_000);

  test("lets a running operation end", async () => {
    const id = await appliance.spawn({ image: base, command: "echo kept > /root/kept; sleep 6", shell: true });
    await written(1024);
    await disk.fill(RESERVE_BYTES / 2);
    expect((await appliance.finished(id)).status).toBe("SUCCESS");
  }, 60_000);
});

test("a service starts on a full disk, and serves existing images", async () => {
  await disk.fill(0);
  await appliance.down("SIGKILL");
  await appliance.up();
  expect((await appliance.fetch(`/inspect/${base}/download?path=/etc/passwd`)).status).toBe(200);
  expect((await appliance.post("/instances", { image: base, command: "true" })).status).toBe(507);
  await disk.release();
  await expectService();
}, 90_000);

test("these tests have damaged nothing that was acknowledged", async () => {
  const images = (await (await appliance.fetch("/images?limit=1000")).json()) as { uuid: string }[];
  expect(images.length).toBeGreaterThan(5);
  for (const { uuid } of images) {
    const file = await appliance.fetch(`/inspect/${uuid}/download?path=/bin/busybox`);
    expect(Bun.hash(await file.bytes())).toBe(Bun.hash(await Bun.file("/bin/busybox").bytes()));
  }
  await appliance.down();
  // A copy: an open database would keep the disk busy for longer than this test.
  await using copy = await scratchDirectory(tmpdir(), "full-disk-");
  await copyFile(join(appliance.dataDir, "coppice.db"), join(copy.path, "db"));
  using db = openDatabase(join(copy.path, "db"));
  expect(Object.values(db.orm.get("PRAGMA integrity_check") as object)[0]).toBe("ok");
  await disk.check();
}, 60_000);
