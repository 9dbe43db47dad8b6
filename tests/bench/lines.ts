import { LINE_ENDS, LINE_NAME, Lines, lineOf, PAUSE_MS } from "../../src/cli/bench/lines.ts";
import { interleaved } from "../../src/cli/bench/measure.ts";
import { type Finding, rowOf } from "../../src/cli/bench/row.ts";
import { pause } from "../support/waiting.ts";
import type { BenchHost } from "./host.ts";
import { openBareEcho } from "./peers/bare-machines.ts";

/** A line from the guest to a follower, against the same by the virtio-serial of bare QEMU, which is half of a way and back. */
export async function* lineRows(host: BenchHost): AsyncGenerator<Finding> {
  await using bare = await openBareEcho(host);
  await using lines = await Lines.start(host.target);
  let count = 0;
  const values = await interleaved(host.target.rounds(400, 100), {
    ours: () => lines.measure(),
    theirs: async () => {
      const durationMs = (await bare.roundTrip(lineOf(++count))) / 2;
      await pause("each line is to find everything asleep", PAUSE_MS);
      return durationMs;
    },
  });
  const against = { name: "the same line by virtio-serial of bare QEMU", values: values.theirs };
  yield rowOf({ ...LINE_ENDS, name: LINE_NAME, values: values.ours, unit: "ms", against, atMost: 2.5 });
  yield lines.attachment;
}
