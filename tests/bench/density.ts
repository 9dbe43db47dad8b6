import { timed } from "../../src/cli/bench/figures.ts";
import { phaseMeans } from "../../src/cli/bench/report.ts";
import type { BenchHost } from "./host.ts";
import type { Finding } from "./part.ts";

const COMMAND = "echo $((6 * 7))";

/** Many spawns submitted at once, against as many as fit the same time one after the other. */
export async function* densityRemarks(host: BenchHost): AsyncGenerator<Finding> {
  const together = host.quick ? 40 : 200;
  const apart = host.quick ? 10 : 40;
  const request = { disposable: true };
  const apartMs = await timed(async () => {
    for (let n = 0; n < apart; n++) await host.run(host.base, COMMAND, request);
  });
  const togetherMs = await timed(async () => {
    const outputs = await Promise.all(Array.from({ length: together }, () => host.run(host.base, COMMAND, request)));
    const wrong = outputs.filter(({ out }) => out !== "42\n");
    if (wrong.length > 0) throw new Error(`${wrong.length} of ${together} runs ended wrong`);
  });
  const rate = (count: number, ms: number) => (count / ms) * 1000;
  const [atOnce, oneByOne] = [rate(together, togetherMs), rate(apart, apartMs)];
  yield {
    name: `${together} spawns at once`,
    text: `all ended right, ${atOnce.toFixed(2)}/s; one after the other ${oneByOne.toFixed(2)}/s; ratio ${(atOnce / oneByOne).toFixed(2)}`,
  };
}

/** Means of each step, from what /metrics serves. */
export async function* phaseRemarks(host: BenchHost): AsyncGenerator<Finding> {
  const before = await host.metrics();
  for (let n = 0; n < host.rounds(20, 5); n++) await host.spawn(host.base, "echo changed > /root/file");
  const after = await host.metrics();
  yield { name: "steps of a captured spawn, mean ms", text: phaseMeans(before.text, after.text) };
}
