import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { pause, until } from "../../support/waiting.ts";

const WRITTEN_MIB = 200;
/** Several runs under emulation in one test. */
const RUNS_MS_MAX = 180_000;
const KEPT_BYTES_MAX = 8_388_608;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let base = "";

beforeAll(async () => {
  ({ appliance, image: base } = owned.use(
    await BusyboxAppliance.start({ flags: ["--images-untagged-ttl", "1s"], tag: "busybox" }),
  ));
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

const imageOf = (operation: { result?: unknown }) => (operation.result as { image: string }).image;
const details = async (image: string) =>
  (await (await appliance.fetch(`/images/${image}`)).json()) as { parent?: string; size_bytes: number };
const layerFiles = () => readdir(join(appliance.dataDir, "layers"));
const layers = async () => (await layerFiles()).length / 2;
const remove = async (image: string) => (await appliance.fetch(`/images/${image}`, { method: "DELETE" })).status;

describe("the layer of a run", () => {
  test(
    "contains the files at its end, not those that were written and deleted",
    async () => {
      const write = (count: number) => `dd if=/dev/zero of=/root/big bs=1M count=${count} 2>/dev/null; sync`;
      const operation = await appliance.run(base, `${write(WRITTEN_MIB)}; rm /root/big; echo left > /root/small`);
      expect(operation.result).toMatchObject({ exit_code: 0 });
      const { size_bytes: bytes, parent } = await details(imageOf(operation));
      expect(parent).toBe(base);
      expect(bytes).toBeLessThan(KEPT_BYTES_MAX);
      // Bytes that stay count, zeros included.
      const kept = await appliance.run(base, write(16));
      expect((await details(imageOf(kept))).size_bytes).toBeGreaterThan(2 * KEPT_BYTES_MAX);
      expect(await remove(imageOf(kept))).toBe(204);
    },
    RUNS_MS_MAX,
  );
});

describe("an image", () => {
  test(
    "has a history with the command that made it, and its changes",
    async () => {
      const operation = await appliance.run(base, "echo secret > /root/made; rm /etc/passwd; exit 4", {
        env: { PASSWORD: "hunter2" },
        stdin: "typed",
      });
      const image = imageOf(operation);
      const lineage = await (await appliance.fetch(`/images/${image}/lineage`)).text();
      expect(JSON.parse(lineage)).toMatchObject([
        {
          uuid: image,
          operation: operation.id,
          command: ["/bin/sh", "-c", "echo secret > /root/made; rm /etc/passwd; exit 4"],
          exit_code: 4,
        },
        { uuid: base, kind: "image_import", source: expect.stringContaining("busybox:1") },
      ]);
      expect(lineage).not.toMatch(/hunter2|typed/);
      const diff = (await (await appliance.fetch(`/images/${image}/diff`)).json()) as { items: object[] };
      expect(diff.items).toEqual([
        { change: "removed", path: "/etc/passwd", type: "file", previous_size_bytes: expect.any(Number) },
        { change: "added", path: "/root/made", type: "file", size_bytes: 7 },
      ]);
    },
    RUNS_MS_MAX,
  );

  test(
    "cannot be deleted while an instance runs on it; its layer stays below the images made from it",
    async () => {
      const before = await layers();
      const parent = imageOf(await appliance.run(base, "echo 1 > /root/x"));
      const child = imageOf(await appliance.run(parent, "echo 2 > /root/y"));
      const running = await appliance.spawn({ image: parent, command: "sleep 3", shell: true, disposable: true });
      expect(await remove(parent)).toBe(409);
      await appliance.finished(running);
      expect(await remove(parent)).toBe(204);
      expect(await layers()).toBe(before + 2);
      const seen = await appliance.run(child, "cat /root/x /root/y", { disposable: true });
      expect(seen.result).toMatchObject({ stdout: { content: "1\n2\n" } });
      expect(await remove(child)).toBe(204);
      expect(await layers()).toBe(before);
    },
    RUNS_MS_MAX,
  );

  test(
    "is packed and searched after many runs as the guest left it",
    async () => {
      let image = base;
      for (let step = 0; step < 5; step++) {
        image = imageOf(
          await appliance.run(image, `mkdir -p /srv; echo step ${step} > /srv/${step}; rm -f /srv/${step - 2}`),
        );
      }
      const archive = await appliance.fetch(`/inspect/${image}/archive?path=/srv`);
      const list = Bun.spawn(["tar", "-t"], { stdin: await archive.bytes(), stdout: "pipe" });
      expect((await new Response(list.stdout).text()).split("\n").sort()).toEqual(["", "./", "./3", "./4"]);
      const matches = await (await appliance.fetch(`/inspect/${image}/grep?pattern=^step&path=/srv`)).json();
      expect(matches).toMatchObject({ matches: [{ path: "/srv/3" }, { path: "/srv/4" }], truncated: false });
    },
    RUNS_MS_MAX,
  );
});

test(
  "coppice gc frees what its dry run reported, while the appliance runs",
  async () => {
    await appliance.run(base, "head -c 1000000 /dev/urandom > /root/untagged");
    await pause("the image is older than untagged ones may be", 1500);
    const flags = ["--data-dir", appliance.dataDir, "--json"];
    const foresee = async () =>
      JSON.parse((await appliance.command(["gc", "--dry-run", ...flags])).stdout) as { images: number };
    let foreseen = await foresee();
    // Layers that are still read are not among them.
    await until("no more layers become free", async () => {
      const before = foreseen;
      foreseen = await foresee();
      return Bun.deepEquals(before, foreseen);
    });
    expect(foreseen).toMatchObject({ dry_run: true });
    expect(foreseen.images).toBeGreaterThan(0);
    const before = new Set(await layerFiles());
    const done = JSON.parse((await appliance.command(["gc", ...flags])).stdout);
    expect(done).toEqual({ ...foreseen, dry_run: false });
    // The service may have merged layers in the meantime, so that there are new ones.
    const gone = before.difference(new Set(await layerFiles()));
    expect(gone.size).toBe(2 * done.layers);
    expect((await appliance.fetch(`/images/${base}`)).status).toBe(200);
  },
  RUNS_MS_MAX,
);
