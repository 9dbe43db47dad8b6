import { interleaved, median, rowOf, timed } from "../../src/cli/bench/figures.ts";
import { pause } from "../support/waiting.ts";
import type { BenchHost } from "./host.ts";
import type { Finding } from "./part.ts";

const SETTLE_MS_MAX = 300_000;
const BURST_TAIL_COUNT = 10;

/** A chain of runs, each on the image of the one before. */
export async function* chainRows(host: BenchHost): AsyncGenerator<Finding> {
  const depth = host.quick ? 40 : 200;
  let image = host.base;
  let first = "";
  const burst: number[] = [];
  for (let step = 1; step <= depth; step++) {
    burst.push(
      await timed(async () => {
        image = (await host.run(image, `echo ${step} > /root/step-${step}`)).image ?? "";
      }),
    );
    if (step === 1) first = image;
  }
  // At once, before the merging of layers can catch up.
  const shallow = await interleaved(BURST_TAIL_COUNT, { run: () => timed(() => host.run(first, "echo x > /root/x")) });
  const ends = { from: "POST /v1/instances, sent", to: "GET /v1/operations/{id}?wait, SUCCESS read", unit: "ms" };
  yield rowOf({
    ...ends,
    name: `spawn at the end of a chain of ${depth}, in the burst`,
    values: burst.slice(-BURST_TAIL_COUNT),
    against: { name: "at depth 1, as fast after each other", values: shallow.run },
    atMost: 3,
    note: `the first ten took ${median(burst.slice(0, BURST_TAIL_COUNT)).toFixed(0)} ms`,
  });
  await settled(host);
  const command = "echo x > /root/x";
  const values = await interleaved(host.rounds(15, 5), {
    deep: () => host.spawn(image, command),
    shallow: () => host.spawn(first, command),
  });
  yield rowOf({
    ...ends,
    name: `spawn at the end of a chain of ${depth}, settled`,
    values: values.deep,
    against: { name: "at depth 1", values: values.shallow },
    atMost: 1.5,
  });
}

/** Waits until no machine computes in the background. */
async function settled(host: BenchHost): Promise<void> {
  const deadline = Date.now() + SETTLE_MS_MAX;
  for (let quiet = 0; quiet < 6 && Date.now() < deadline; ) {
    const { value } = await host.metrics();
    quiet = value('coppice_vms{state="in_use"}') === 0 ? quiet + 1 : 0;
    await pause("before the next look", 500);
  }
}
