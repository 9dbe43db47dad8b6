import { askToHold } from "../../api/operator/control.ts";
import type { Config } from "../../config/config.ts";
import { instancesIn, type Loss, lossesOfRestart, type RunningWork } from "../../domain/operator/restart.ts";
import { type DataLayout, dataLayout } from "../../storage/layout.ts";
import { CliError } from "../command.ts";
import { recordedMachines } from "../host/records.ts";
import { counted, countedRunning, type Running, runningOf, shownOperation } from "../host/running.ts";
import type { Io } from "../io.ts";
import { interruptible, showProgress } from "../wait.ts";

const POLL_MS = 500;
/** Operations that a list names. */
const LISTED_COUNT_MAX = 50;

/** The wait for instances that the upgrade would end. */
export interface Drain {
  /** null: as long as it takes */
  readonly timeoutMs: number | null;
}

/**
 * Prints what the restart of a running appliance would end, because this version cannot take it over. With `drain`, waits
 * until that has ended, while no other work begins.
 * @returns disposed after the restart
 * @throws CliError when it takes too long; nothing has changed then
 */
export async function prepareRestart(
  { dataDir }: Pick<Config, "dataDir">,
  io: Io,
  drain: Drain | null,
): Promise<DisposableStack> {
  const layout = dataLayout(dataDir);
  const running = await runningOf(layout);
  using stack = new DisposableStack();
  if (typeof running === "string") {
    sayUnknown(running, io, drain);
    return stack.move();
  }
  const losses = lossesOfRestart(running, await recordedMachines(layout));
  say(running, losses, io);
  if (drain !== null && losses.length > 0) stack.use(await drained(layout, io, drain));
  return stack.move();
}

function sayUnknown(running: "none" | "older", io: Io, drain: Drain | null): void {
  if (running === "none") return;
  const ends = "the running appliance is of an older version: its instances end when it stops";
  if (drain === null) io.stderr(`${ends}\n`);
  else throw new CliError(`${ends}, and it cannot tell when none is left; coppice ps shows what runs`);
}

/** Prints how many instances continue, and which operations end. */
function say(running: RunningWork, losses: readonly Loss[], io: Io): void {
  const lost = new Set(losses.map(({ operation }) => operation.id));
  const keptCount = instancesIn(running).filter(({ id }) => !lost.has(id)).length;
  if (keptCount > 0) io.stderr(`${countedRunning(keptCount)} on during the restart\n`);
  if (losses.length === 0) return;
  io.stderr(`the restart ends ${counted(losses.length, "operation")}:\n`);
  for (const { operation, reason } of losses.slice(0, LISTED_COUNT_MAX)) {
    io.stderr(`  ${shownOperation(operation)}: ${reason}\n`);
  }
  if (losses.length > LISTED_COUNT_MAX) io.stderr(`  and ${losses.length - LISTED_COUNT_MAX} more\n`);
}

/** Waits until a restart ends nothing. No work begins before the disposal of the result. */
async function drained(layout: DataLayout, io: Io, { timeoutMs }: Drain): Promise<Disposable> {
  using stack = new DisposableStack();
  stack.use(await askToHold(layout.control));
  using progress = showProgress(io, "waiting for their end");
  await interruptible(io, async (signal) => {
    const deadline = performance.now() + (timeoutMs ?? Number.POSITIVE_INFINITY);
    for (;;) {
      const running: Running = await runningOf(layout);
      if (typeof running === "string") return;
      const losses = lossesOfRestart(running, await recordedMachines(layout));
      if (losses.length === 0) return;
      progress.note(counted(losses.length, "operation"));
      if (performance.now() > deadline) {
        const left = counted(losses.length, "operation");
        throw new CliError(`${left} did not end in time: nothing is installed, and work begins again`);
      }
      await Bun.sleep(POLL_MS);
      signal.throwIfAborted();
    }
  });
  return stack.move();
}
