import { timed } from "../../src/cli/bench/measure.ts";
import { type Finding, rowOf } from "../../src/cli/bench/row.ts";
import type { BenchHost } from "./host.ts";
import { treeImage } from "./import.ts";

const FILES_COUNT = 2000;
const WARM_UP_COUNT = 20;

/** Looking into an image without a machine. */
export async function* inspectRows(host: BenchHost): AsyncGenerator<Finding> {
  const image = await host.importImage("inspected", await treeImage(FILES_COUNT, -1));
  const count = host.target.rounds(500, 100);
  const ends = { from: "request sent", to: "answer read", unit: "ms", atMost: 1 };
  const list = await requests(host, count, (n) => `/inspect/${image}/list?path=/data/${n % 40}`);
  yield rowOf({ ...ends, name: "list a directory of 50 in an image", values: list });
  const stat = await requests(host, count, (n) => `/inspect/${image}/?path=/data/${n % 40}/file-${n % 40}`, "HEAD");
  yield rowOf({ ...ends, name: "stat a path in an image", values: stat });
}

async function requests(
  host: BenchHost,
  count: number,
  path: (n: number) => string,
  method = "GET",
): Promise<number[]> {
  const values: number[] = [];
  for (let n = -WARM_UP_COUNT; n < count; n++) {
    const durationMs = await timed(async () => {
      const response = await host.appliance.fetch(path(n + WARM_UP_COUNT), { method });
      if (response.status !== 200) throw new Error(`${path(n)} answered ${response.status}`);
      await response.arrayBuffer();
    });
    if (n >= 0) values.push(durationMs);
  }
  return values;
}
