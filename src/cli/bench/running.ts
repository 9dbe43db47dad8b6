import { answerOf } from "../../client/client.ts";
import { eventsBelow, pathOfOperation } from "../../client/operation-events.ts";
import { type Place, pathOfPlace, placeOfInstance } from "../../client/place.ts";
import { startProcess } from "../../client/processes.ts";
import type { CheckpointResult } from "../../client/types.ts";
import { figureOf, interleaved, timed } from "./measure.ts";
import { remarkOf } from "./report.ts";
import { type Finding, rowOf } from "./row.ts";
import { ENDS } from "./spawns.ts";
import type { BenchTarget } from "./target.ts";
import { makeLarge } from "./transfers.ts";

/** A command that only waits. */
const WAIT = "sleep 1800";
const INSTANCE_SECONDS = 1800;
/** Writes 1 MiB of random bytes, which no disk can leave out. */
const WRITE_MIB = "dd if=/dev/urandom of=/root/coppice-bench.written bs=65536 count=16";

/** An additional process in a running instance, against a new instance. */
export async function* execPart(target: BenchTarget): AsyncGenerator<Finding> {
  const id = await target.start(target.image, WAIT, { disposable: true, timeout: INSTANCE_SECONDS });
  await target.untilRunning(id);
  await exec(target, id, "true");
  const values = await interleaved(target.rounds(25, 7), {
    ours: async () => {
      await target.poolFull();
      return await timed(() => exec(target, id, "true"));
    },
    theirs: () => target.spawn(target.image, "true", { disposable: true }),
  });
  await target.stop(id);
  yield rowOf({
    name: "true by exec into a running instance",
    from: "POST /v1/instances/{uuid}/processes, sent",
    to: "its end read from GET /v1/operations/{id}/events",
    values: values.ours,
    unit: "ms",
    against: { name: "a warm disposable spawn of true", values: values.theirs },
    atMost: 0.15,
  });
}

/** A checkpoint of a running instance on a large image, against a captured run. */
export async function* checkpointPart(target: BenchTarget): AsyncGenerator<Finding> {
  const { client, image, options } = target;
  const large = await makeLarge(target);
  const id = await target.start(large.image, WAIT, { disposable: true, timeout: INSTANCE_SECONDS });
  await target.untilRunning(id);
  const pauses: number[] = [];
  const checkpoint = async (): Promise<void> => {
    const request = client.v1.instances({ uuid: id }).checkpoint.post({}, { fetch: { signal: options.signal } });
    const { uuid } = await answerOf(request);
    const { pause_ms } = (await target.succeeded(uuid, large.image)) as CheckpointResult;
    pauses.push(pause_ms);
  };
  const values = await interleaved(target.rounds(15, 5), {
    ours: async () => {
      await exec(target, id, WRITE_MIB);
      await target.poolFull();
      return await timed(checkpoint);
    },
    theirs: () => target.spawn(image, WRITE_MIB),
  });
  await target.stop(id);
  yield rowOf({
    name: `checkpoint of a running instance that wrote 1 MiB, above ${large.sizeMib} MiB more`,
    from: "POST /v1/instances/{uuid}/checkpoint, sent",
    to: ENDS.to,
    values: values.ours,
    unit: "ms",
    against: { name: "a captured run that writes 1 MiB", values: values.theirs },
    atMost: 0.8,
  });
  yield remarkOf("time without writes of these checkpoints", figureOf(pauses, "ms"), "as their results have it");
  await target.deleteMade();
}

/** Runs an additional command in an instance or a sandbox, until its end. @throws Error when it fails */
export async function exec({ client, options }: BenchTarget, place: Place | string, command: string): Promise<void> {
  const { signal } = options;
  const { spid } = await startProcess(client, place, { command, shell: true });
  const at = placeOfInstance(place);
  const parent = at.sandbox === undefined ? pathOfOperation(at.instance) : pathOfPlace(at);
  for await (const { type, data } of eventsBelow(client, parent, { follow: true, spid, signal })) {
    if (type !== "exit") continue;
    const { exit_code } = data as { readonly exit_code: number };
    if (exit_code === 0) return;
    throw new Error(`${command} ended with ${exit_code}`);
  }
  throw new Error(`the events of ${parent} have no end of ${command}`);
}
