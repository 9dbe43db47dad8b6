import { expect, test } from "bun:test";
import { createMetrics } from "../../../src/metrics.ts";
import { type GaugeSources, registerGauges } from "../../../src/supervisor/gauges.ts";
import { parseExposition } from "../../support/exposition.ts";
import { Merging } from "../../support/merging.ts";

test("a scrape during the reading of the sums gets the same sums", async () => {
  await using merging = await Merging.start();
  merging.chain(3);
  const metrics = createMetrics();
  const { db, layout, scheduler, compactor } = merging;
  const idle = { counts: () => ({ waiting: 0, ready: 0, inUse: 0 }) } as GaugeSources["machines"];
  const none = { counts: () => [] as ReturnType<GaugeSources["operations"]["counts"]> } as GaugeSources["operations"];
  const sources = { db, layout, scheduler, compactor, machines: idle, operations: none };
  using _watch = registerGauges(metrics, { ...sources, poolSize: 0, diskReserveBytes: 0, version: "", revision: "" });
  const texts = await Promise.all([1, 2, 3].map(() => metrics.registry.render()));
  const counts = texts.map((text) => parseExposition(text).value("coppice_storage_objects", { class: "layers" }));
  expect(counts).toEqual([4, 4, 4]);
});
