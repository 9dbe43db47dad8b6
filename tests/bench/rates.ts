import { interleaved } from "../../src/cli/bench/measure.ts";
import {
  answerRate,
  latencyUnderLoad,
  OPERATION_RATE,
  operationLoad,
  operationRate,
  rateMs,
  warmUp,
} from "../../src/cli/bench/requests.ts";
import { type Finding, rowOf } from "../../src/cli/bench/row.ts";
import type { BenchHost } from "./host.ts";
import { startPeer } from "./peers/peer.ts";

/** GET of an operation, against a bare route, and during machines that compute. */
export async function* rateRows({ target, appliance }: BenchHost): AsyncGenerator<Finding> {
  const { load, operation } = await operationLoad(target);
  await using peer = await startPeer({ kind: "operation", dataDir: appliance.dataDir, operation });
  const bare = { ...load, url: new URL(new URL(load.url).pathname, peer.url).href };
  for (const each of [load, bare]) await warmUp(each);
  await target.poolFull();
  const ours = operationRate(target, load);
  const values = await interleaved(target.rounds(7, 3), {
    ours: () => ours.measure(),
    theirs: () => answerRate(bare, rateMs(target)),
  });
  const against = { name: "bare Elysia route, same tokens and schema", values: values.theirs };
  yield rowOf({ ...OPERATION_RATE, values: values.ours, against, atLeast: 0.75, note: ours.note });
  yield await latencyUnderLoad(target, load);
}
