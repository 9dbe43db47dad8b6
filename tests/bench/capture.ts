import { interleaved, rowOf } from "../../src/cli/bench/figures.ts";
import { busyboxImage, type ImageSpec } from "../support/images.ts";
import type { BenchHost } from "./host.ts";
import type { Finding } from "./part.ts";

const MIB = 1_048_576;
const CHANGE = "echo changed > /root/file";

/** busybox and files of 16 MiB beside it, of bytes that compress well in transit and lie on the disk in full. */
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
  const small = await host.importImage("small", await fatImage(3));
  const values = await interleaved(host.rounds(15, 7), {
    large: () => host.spawn(large, CHANGE),
    small: () => host.spawn(small, CHANGE),
  });
  yield rowOf({
    name: `capture above a base of ${sizeMib} MiB`,
    from: "POST /v1/instances, sent",
    to: "GET /v1/operations/{id}?wait, SUCCESS read",
    values: values.large,
    unit: "ms",
    against: { name: "the same above a base of 5 MiB", values: values.small },
    atMost: 1.2,
  });
}
