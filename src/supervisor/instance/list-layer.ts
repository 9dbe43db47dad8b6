import { rm } from "node:fs/promises";
import type { Phase } from "../../domain/operation.ts";
import type { Log } from "../../log.ts";
import { type Indexing, indexDisk, type LayerParts, type ListedDisk } from "../../storage/layers/staged-layer.ts";
import type { MachineShape } from "../../vm/vmm.ts";
import { GuestTime } from "../machines/guest-time.ts";
import { inMachine, type MachineSource, withReplacement } from "../machines/machine-source.ts";
import { attachDisks } from "../machines/steps.ts";

export interface ListTools extends Indexing {
  readonly machines: Pick<MachineSource, "take">;
  /** shape of the machine that lists */
  readonly shape: MachineShape;
  readonly log: Log;
  readonly laps: { lap(phase: Phase): void };
}

export interface ListJob extends LayerParts {
  /** name of the disk's content in messages, such as `the image` */
  readonly name: string;
  /** time for all work of the guest, in `milliseconds`, when it has sent so many bytes of the listing */
  readonly allowedMs: (listedBytes: number) => number;
}

/**
 * Lists the files of a disk in a separate machine, and writes the index. A machine that is lost is replaced once. The machine
 * is gone when this returns or throws.
 * @throws ApiError with the cause; the reason of the signal
 */
export function listLayer(tools: ListTools, job: ListJob): Promise<ListedDisk> {
  return withReplacement(() => listOnce(tools, job), { goal: `${job.name} was listed`, log: tools.log });
}

async function listOnce({ laps, ...tools }: ListTools, { name, allowedMs, ...files }: ListJob): Promise<ListedDisk> {
  // A machine that was lost may have left a partial index.
  await rm(files.indexPath, { force: true });
  await using ready = await tools.machines.take(tools.shape, tools.signal);
  laps.lap("clone");
  const listed = await inMachine(ready, tools.signal, async () => {
    const time = new GuestTime({ allowedMs });
    const { attached, mounted } = attachDisks(ready, { layers: [files.diskPath], scratch: null });
    await time.wait(`attaching ${name}`, attached);
    await time.wait(`mounting ${name}`, mounted);
    laps.lap("mount");
    return await indexDisk(time.stream(`listing ${name}`, ready.agent.index(0)), files, tools);
  });
  laps.lap("index");
  return listed;
}
