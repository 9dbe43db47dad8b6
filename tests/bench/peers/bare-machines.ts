import { join } from "node:path";
import { eq } from "drizzle-orm";
import { openDatabase } from "../../../src/db/database.ts";
import { layerChain } from "../../../src/db/images/layers.ts";
import { images } from "../../../src/db/schema.ts";
import type { ImageId } from "../../../src/domain/ids.ts";
import { layerPath } from "../../../src/storage/layers/layers.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { scratchBytes } from "../../../src/supervisor/machines/scratch-disks.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { resolveAssets } from "../../../src/vm/assets.ts";
import { templateShape } from "../../../src/vm/templates.ts";
import type { BenchHost } from "../host.ts";
import { type BareEcho, startBareEcho } from "./bare-echo.ts";
import { type BareMachine, coldRun } from "./cold-boot.ts";

/** Boots the disks of an image by bare QEMU, from its start to the exit of the command, in `milliseconds`. */
export interface ColdBoot extends AsyncDisposable {
  measure(argv: readonly string[]): Promise<number>;
}

/** Boots the host's image by bare QEMU, once for each measurement. */
export async function openColdBoot(host: BenchHost): Promise<ColdBoot> {
  await using stack = new AsyncDisposableStack();
  const machine = await bareMachine(host, stack);
  const owned = stack.move();
  return { measure: (argv) => coldRun(machine, argv), [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

/** Boots the image of the host by bare QEMU, for lines through a virtio-serial port. */
export async function openBareEcho(host: BenchHost): Promise<BareEcho> {
  await using stack = new AsyncDisposableStack();
  const echo = stack.use(await startBareEcho(await bareMachine(host, stack)));
  if (!(await echo.isReady)) throw new Error("the image lacks mknod or cat");
  const owned = stack.move();
  return { roundTrip: echo.roundTrip, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

async function bareMachine(host: BenchHost, stack: AsyncDisposableStack): Promise<BareMachine> {
  const { config, base } = host;
  const layout = dataLayout(config.dataDir);
  using db = openDatabase(layout.database);
  const row = db.orm
    .select({ layerId: images.layerId })
    .from(images)
    .where(eq(images.id, base as ImageId))
    .get();
  if (row === undefined) throw new Error(`there is no image ${base} in ${layout.root}`);
  // Not the files of the appliance, which may be of another version.
  const { path } = stack.use(await scratchDirectory("/tmp", "coppice-bench-"));
  const { kernel, initramfs } = await resolveAssets(path);
  const { vcpusDefault, memoryBytesDefault, diskBytesDefault } = config.vm;
  return {
    kernel,
    initramfs,
    layers: layerChain(db, row.layerId).map(({ id }) => layerPath(layout, id)),
    scratchTemplate: join(layout.scratch, `${scratchBytes(diskBytesDefault)}.ext4`),
    memoryBytes: templateShape({ vcpus: vcpusDefault, memoryBytes: memoryBytesDefault }).memoryBytes,
    acceleration: (await host.isolation()) === "vm" ? "kvm" : "tcg",
  };
}
