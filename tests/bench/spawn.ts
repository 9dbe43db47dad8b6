import { coldRun } from "../../src/cli/bench/cold-boot.ts";
import { interleaved, rowOf } from "../../src/cli/bench/figures.ts";
import { asset, type BenchHost } from "./host.ts";
import type { Finding } from "./part.ts";

const MEMORY_BYTES = 536_870_912;

const REQUEST = "POST /v1/instances, sent";
const SUCCESS = "GET /v1/operations/{id}?wait, SUCCESS read";

/** A warm spawn of `true`, kept and not, against a cold boot of bare QEMU. */
export async function* spawnRows(host: BenchHost): AsyncGenerator<Finding> {
  const machine = {
    kernel: asset("vmlinux"),
    initramfs: asset("initramfs.cpio"),
    layers: [host.newestLayerDisk()],
    scratchTemplate: host.scratchTemplate(),
    memoryBytes: MEMORY_BYTES,
    acceleration: await host.acceleration(),
  };
  const values = await interleaved(host.rounds(25, 7), {
    cold: () => coldRun(machine, ["/bin/sh", "-c", "true"]),
    disposable: () => host.spawn(host.base, "true", { disposable: true }),
    kept: () => host.spawn(host.base, "echo changed > /root/file"),
  });
  const against = { name: "cold boot of bare QEMU, same kernel, disks and command", values: values.cold };
  const common = { from: REQUEST, to: SUCCESS, unit: "ms", against };
  yield rowOf({ ...common, name: "warm spawn of true, disposable", values: values.disposable, atMost: 0.15 });
  yield rowOf({ ...common, name: "warm spawn that changes a file, captured", values: values.kept, atMost: 0.25 });
}
