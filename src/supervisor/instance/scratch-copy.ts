import { constants } from "node:os";
import { ApiError } from "../../domain/errors.ts";
import { sleepUnlessAborted } from "../../system/waiting.ts";
import { type Agent, AgentError, type Quiesced } from "../../vm/agent/agent.ts";
import { QUIESCE_MS_MAX } from "../../vm/agent/protocol.ts";
import { DiskCopyLateError } from "../../vm/disk-copy.ts";
import { flushMs } from "./guest-budgets.ts";
import { GuestTime } from "./guest-time.ts";
import { type Guest, SCRATCH_SERIAL } from "./steps.ts";

/** The agent refuses to stop the writes while something else is being asked of it, such as the start of a process. */
const BUSY_ATTEMPTS_COUNT = 50;
const BUSY_PAUSE_MS = 20;
const { EBUSY, ETIMEDOUT, ECANCELED, EINVAL } = constants.errno;

/** Why a scratch did not stand still until it was thawed, by the errors of `Quiesced.thaw`. */
const THAWED_TEXT: ReadonlyMap<number, string> = new Map([
  [ETIMEDOUT, "it took longer than the writes of an instance may be held up"],
  [ECANCELED, "a process of the instance had to be killed meanwhile"],
  [EINVAL, "the instance went on writing meanwhile"],
]);

export interface ScratchCopyOptions {
  /** where the disk goes: no such file may be there, and the caller removes it */
  readonly path: string;
  /** how long writes of the instance may be held up, in `milliseconds` */
  readonly pauseMsMax: number;
  /** ends the copy where it has not been made yet; writes that are held up go on */
  readonly signal: AbortSignal;
}

export interface ScratchCopy {
  /** how long the instance could not write, in `milliseconds`: from the request to stop until all went on */
  readonly pauseMs: number;
}

/**
 * Copies the scratch of a guest whose commands run on. Every write that had returned when they were stopped is in the copy,
 * and none that began after that. Nothing but this process can change the file afterwards.
 * @throws ApiError `conflict` when the pause would be, or became, too long; what the machine and its agent throw; the
 *   reason of the signal
 */
export async function copyScratch(guest: Guest, options: ScratchCopyOptions): Promise<ScratchCopy> {
  try {
    return await copy(guest, options);
  } catch (error) {
    if (error instanceof DiskCopyLateError) throw tooLong(error);
    throw error;
  }
}

async function copy({ machine, agent }: Guest, options: ScratchCopyOptions): Promise<ScratchCopy> {
  const { path, pauseMsMax, signal } = options;
  const time = new GuestTime({ allowedMs: () => flushMs(machine.shape.memoryBytes) });
  await using disk = await machine.copyDisk({ serial: SCRATCH_SERIAL, path, pauseMsMax, signal });
  // What is written out now need not be while everybody waits.
  await time.wait("writing out the files of the instance", agent.flush());
  const limitMs = Math.min(QUIESCE_MS_MAX, Math.max(1, Math.ceil(pauseMsMax)));
  const { still, startedAt } = await time.wait("stopping the writes", standStill(agent, limitMs, signal));
  await finish(still, () => disk.finish());
  const pauseMs = performance.now() - startedAt;
  await disk.seal();
  return { pauseMs };
}

/** Does the copying while the scratch stands still. @throws ApiError `conflict` when it did not do so to the end */
async function finish(still: Quiesced, work: () => Promise<void>): Promise<void> {
  await using _thawed = still;
  await work();
  try {
    await still.thaw();
  } catch (error) {
    const why = error instanceof AgentError ? THAWED_TEXT.get(error.errno) : undefined;
    if (why === undefined) throw error;
    throw new ApiError("conflict", `the files of the instance were not copied: ${why}`, {}, { cause: error });
  }
}

async function standStill(
  agent: Agent,
  limitMs: number,
  signal: AbortSignal,
): Promise<{ readonly still: Quiesced; readonly startedAt: number }> {
  for (let attempt = 1; ; attempt++) {
    signal.throwIfAborted();
    const startedAt = performance.now();
    try {
      return { still: await agent.quiesce(limitMs), startedAt };
    } catch (error) {
      if (!(error instanceof AgentError) || error.errno !== EBUSY || attempt === BUSY_ATTEMPTS_COUNT) throw error;
    }
    await sleepUnlessAborted(BUSY_PAUSE_MS, signal);
  }
}

function tooLong(error: DiskCopyLateError): ApiError {
  const { bytes, neededMs, allowedMs } = error;
  const message = `the files of the instance were not copied: ${error.message} (checkpoint.pause_max)`;
  return new ApiError("conflict", message, { bytes, needed_ms: neededMs, allowed_ms: allowedMs }, { cause: error });
}
