import { timed } from "../../src/cli/bench/measure.ts";
import type { Finding } from "../../src/cli/bench/row.ts";
import { text } from "../support/appliance/appliance.ts";
import type { BenchHost } from "./host.ts";

const COMMAND = "echo $((6 * 7))";

/** Many spawns submitted at once, against as many as fit the same time one after the other. */
export async function* densityRemarks({ quick, base, target }: BenchHost): AsyncGenerator<Finding> {
  const together = quick ? 40 : 200;
  const apart = quick ? 10 : 40;
  const spawn = () => target.run(base, COMMAND, { disposable: true });
  const apartMs = await timed(async () => {
    for (let n = 0; n < apart; n++) await spawn();
  });
  const togetherMs = await timed(async () => {
    const results = await Promise.all(Array.from({ length: together }, spawn));
    const wrong = results.filter(({ stdout }) => text(stdout) !== "42\n");
    if (wrong.length > 0) throw new Error(`${wrong.length} of ${together} runs ended wrong`);
  });
  const rate = (count: number, ms: number) => (count / ms) * 1000;
  const [atOnce, oneByOne] = [rate(together, togetherMs), rate(apart, apartMs)];
  yield {
    name: `${together} spawns at once`,
    text: `all ended right, ${atOnce.toFixed(2)}/s; one after the other ${oneByOne.toFixed(2)}/s; ratio ${(atOnce / oneByOne).toFixed(2)}`,
  };
}
