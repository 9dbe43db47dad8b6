import { expect, test } from "bun:test";
import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import type { LayerId } from "../../../src/domain/ids.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { layerPath } from "../../../src/storage/layers/layers.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { throwing } from "../../support/failures.ts";
import { testDirectory } from "../../support/images/layer-files.ts";

/** The beginning of an ext4 disk whose UUID has this byte sixteen times. */
function disk(byte: number): Buffer {
  const bytes = Buffer.alloc(4096);
  bytes.writeUInt16LE(0xef53, 1024 + 0x38);
  bytes.fill(byte, 1024 + 0x68, 1024 + 0x78);
  return bytes;
}

test("a layer is refused on a chain that has a disk with its UUID, as the scratch of a fork with memory would", async () => {
  const directory = testDirectory("layer-uuid");
  using _directory = { [Symbol.dispose]: () => rmSync(directory, { recursive: true }) };
  const layout = dataLayout(directory);
  mkdirSync(layout.layers, { recursive: true });
  const [below, base] = ["below" as LayerId, "base" as LayerId];
  using layers = new LayerStore({ layout, chainOf: () => [base, below] });
  await Bun.write(layerPath(layout, base), "no ext4");
  await Bun.write(layerPath(layout, below), disk(1));
  const files = { diskPath: join(directory, "disk"), indexPath: join(directory, "index") };
  const publish = async (byte: number) => {
    await Bun.write(files.diskPath, disk(byte));
    await Bun.write(files.indexPath, "index");
    return await layers.publish(files, { entryCount: 1 } as Parameters<LayerStore["publish"]>[1], below);
  };
  expect(await throwing(publish(1))).toThrow("the disk has the identity of a layer below it");
  expect(await Bun.file(files.diskPath).exists()).toBe(true);
  await using _other = await publish(2);
});
