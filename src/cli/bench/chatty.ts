import { answerOf } from "../../client/client.ts";
import { startCrowd } from "./crowd-thread.ts";
import { interleaved, timed } from "./measure.ts";
import { type Finding, missing, rowOf } from "./row.ts";
import type { BenchTarget } from "./target.ts";
import { watched } from "./transfers.ts";

/** 2,400 times what the command writes at once. */
const OUTPUT_BYTES = 9_984_000;
const CROWD_COUNT = 200;
const INSTANCE_SECONDS = 600;
/** Waits for a line, so that all followers are connected before it writes. */
const CHATTER = `
read -r go
text="a line of sixty-four characters, as the tests of a program print
"
for doubling in 1 2 3 4 5 6; do text=$text$text; done
count=0
while [ $count -lt ${OUTPUT_BYTES / 4160} ]; do printf %s "$text"; count=$((count + 1)); done`;

/**
 * A run that writes much, with as many followers as an operation may have, against the same run with one follower.
 * @param history earlier work of the daemon, for the row of its memory
 */
export async function* followersPart(
  target: BenchTarget,
  history = "as the appliance was before",
): AsyncGenerator<Finding> {
  const name = `run that writes 10 MB, with ${CROWD_COUNT} followers`;
  if (!target.client.target("").url.startsWith("http://")) {
    return void (yield missing(name, "followers are measured over plain HTTP only"));
  }
  const resident: number[] = [];
  const late: number[] = [];
  const values = await interleaved(target.rounds(7, 3), {
    many: () => watched(target, resident, () => chattyRun(target, CROWD_COUNT, late)),
    one: () => chattyRun(target, 1, []),
  });
  yield rowOf({
    name,
    from: "a line for the standard input of the command, sent",
    to: "GET /v1/operations/{id}?wait, SUCCESS read",
    values: values.many,
    unit: "ms",
    against: { name: "the same with one follower", values: values.one },
    atMost: 1.2,
    note: `the last follower had all ${Math.round(Math.max(...late))} ms after that`,
  });
  if (resident.length === 0) {
    return void (yield missing("daemon's memory with these followers", "the appliance does not show /metrics"));
  }
  yield rowOf({
    name: "daemon's memory with these followers",
    from: "the first of them follows",
    to: "the last of them has all",
    values: [Math.max(...resident)],
    unit: "MiB RSS",
    atMost: 150,
    note: `the most that /metrics showed; ${history}`,
  });
}

/** Time of the run, in `milliseconds`; puts into `late` how much longer the followers read. */
async function chattyRun(target: BenchTarget, count: number, late: number[]): Promise<number> {
  const { client, image, options } = target;
  await target.poolFull();
  const more = { stdin_open: true, disposable: true, truncate_output_at: OUTPUT_BYTES, timeout: INSTANCE_SECONDS };
  const id = await target.start(image, CHATTER, more);
  const events = client.target(`/operations/${id}/events?follow=true`);
  using crowd = await startCrowd({ target: events, count });
  const durationMs = await timed(async () => {
    const input = client.v1.instances({ uuid: id }).processes({ spid: 1 }).stdin;
    await answerOf(input.post({ content: "go\n" }, { fetch: { signal: options.signal } }));
    await target.succeeded(id, image);
  });
  late.push(
    await timed(async () => {
      for (const bytes of await crowd.receivedBytes) {
        if (bytes < OUTPUT_BYTES) throw new Error(`a follower got ${bytes} bytes of ${OUTPUT_BYTES}`);
      }
    }),
  );
  return durationMs;
}
