import type { Finding } from "../../src/cli/bench/row.ts";
import { captureRow } from "../../src/cli/bench/spawns.ts";
import { busyboxImage, type ImageSpec } from "../support/images/images.ts";
import type { BenchHost } from "./host.ts";

const MIB = 1_048_576;

/** busybox and files of 16 MiB, of bytes that compress well in transit and lie on the disk in full. */
export async function fatImage(sizeMib: number): Promise<ImageSpec> {
  const { layers } = await busyboxImage();
  const count = Math.max(1, Math.round(sizeMib / 16));
  const each = Math.round((sizeMib * MIB) / count);
  const files = Array.from({ length: count }, (_, index) => ({
    path: `data-${index}`,
    content: Buffer.alloc(each, crypto.getRandomValues(new Uint8Array(4096))),
  }));
  return { layers: [[...(layers[0] ?? []), ...files]] };
}

/** The same change on a large base and on a small one. */
export async function* captureRows(host: BenchHost): AsyncGenerator<Finding> {
  const sizeMib = host.quick ? 256 : 1024;
  const large = await host.importImage("large", await fatImage(sizeMib));
  const small = { name: "a base of 5 MiB", image: await host.importImage("small", await fatImage(3)) };
  yield await captureRow(host.target, { name: `capture above a base of ${sizeMib} MiB`, large, small });
}
