import { expect, test } from "bun:test";
import { mkdirSync, rmSync } from "node:fs";
import type { LayerId } from "../../../../src/domain/ids.ts";
import { silentLog } from "../../../../src/log.ts";
import { IndexMemory } from "../../../../src/storage/index/index-memory.ts";
import { LayerStore } from "../../../../src/storage/layers/layer-store.ts";
import { dataLayout } from "../../../../src/storage/layout.ts";
import { DiskGuard } from "../../../../src/supervisor/disk-guard.ts";
import type { ScratchDisks } from "../../../../src/supervisor/machines/scratch-disks.ts";
import { mergeLayers } from "../../../../src/supervisor/merging/merge-layers.ts";
import { Pool } from "../../../../src/vm/pool.ts";
import { TemplateStore } from "../../../../src/vm/templates.ts";
import { throwing } from "../../../support/failures.ts";
import { FakeVmm } from "../../../support/guests/fake-vmm.ts";
import { testDirectory } from "../../../support/images/layer-files.ts";

const SHAPE = { vcpus: 1, memoryBytes: 256 * 1_048_576 };
const never = new AbortController().signal;

test("a merge whose machine is killed is repeated once in another one; the end of that one is reported", async () => {
  const directory = testDirectory("merge");
  using _directory = { [Symbol.dispose]: () => rmSync(directory, { recursive: true }) };
  const layout = dataLayout(directory);
  mkdirSync(layout.tmp, { recursive: true });
  const vmm = new FakeVmm();
  await using templates = new TemplateStore({ vmm, log: silentLog });
  await using pool = new Pool({ vmm, templates, shape: SHAPE, size: 0, log: silentLog });
  const weighed: number[] = [];
  const machines = {
    take: pool.take.bind(pool),
    takeUnpooled: pool.takeUnpooled.bind(pool),
    launcher: async () => "/launch",
  };
  const scratchDisks = { create: async () => undefined } as unknown as ScratchDisks;
  vmm.killedAt.push("attach", "mount");
  using layers = new LayerStore({ layout, chainOf: () => [] });
  using held = layers.hold(["a" as LayerId]);
  const job = {
    layers: held,
    size: { sizeBytes: 1, entryCount: 1 },
    diskBytes: 1,
    onMachine: () => void weighed.push(vmm.live.size),
  };
  using diskGuard = new DiskGuard({ directory, reserveBytes: 0, log: silentLog });
  const tools = {
    layout,
    layers,
    machines,
    scratchDisks,
    diskGuard,
    indexMemory: new IndexMemory(),
    shape: SHAPE,
    log: silentLog,
  };
  const merge = mergeLayers(tools, job, never);
  expect(await throwing(merge)).toThrow(
    "the virtual machine monitor ended before the layers were merged (QEMU, killed by signal 9)",
  );
  expect(weighed).toEqual([1, 1]);
  expect([vmm.killedAt, vmm.live.size]).toEqual([[], 0]);
});
