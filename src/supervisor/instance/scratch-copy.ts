import { constants } from "node:os";
import { ApiError } from "../../domain/errors.ts";
import { sleepUnlessAborted } from "../../system/waiting.ts";
import { type Agent, AgentError, type Quiesced } from "../../vm/agent/agent.ts";
import { QUIESCE_MS_MAX } from "../../vm/agent/protocol.ts";
import { DiskCopyLateError } from "../../vm/disk-copy.ts";
import { flushMs } from "../machines/guest-budgets.ts";
import { GuestTime } from "../machines/guest-time.ts";
import { type Guest, SCRATCH_SERIAL } from "../machines/steps.ts";

/** The agent refuses to stop the writes (EBUSY) while it handles another request, such as the start of a process. */
const BUSY_ATTEMPTS_COUNT = 50;
const BUSY_PAUSE_MS = 20;
const { EBUSY, ETIMEDOUT, ECANCELED, EINVAL } = constants.errno;

/** Reasons why the scratch changed before the thaw, by the errors of `Quiesced.thaw`. */
const THAWED_TEXT: ReadonlyMap<number, string> = new Map([
  [ETIMEDOUT, "it took longer than the writes of an instance may be stopped"],
  [ECANCELED, "a process of the instance had to be killed meanwhile"],
  [EINVAL, "the instance wrote meanwhile"],
]);

export interface ScratchCopyOptions {
  /** path of the copy; the file must not exist, and the caller removes it */
  readonly path: string;
  /** longest time without writes of the instance, in `milliseconds` */
  readonly pauseMsMax: number;
  /** aborts an unfinished copy, and allows the writes again */
  readonly signal: AbortSignal;
}

export interface ScratchCopy {
  /** time without writes of the instance, in `milliseconds`: from the request to stop them until they were allowed */
  readonly pauseMs: number;
}

/**
 * Copies the scratch of a guest while its commands run. For a moment their writes are stopped: the copy has every write
 * that returned before, and no write that began later. Afterwards only this process can change the copy.
 * @throws ApiError `conflict` when that moment is, or would be, longer than allowed; the errors of the machine and of its
 *   agent; the reason of `signal`
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
  // Flushing now leaves less to flush while the writes are stopped.
  await time.wait("writing out the files of the instance", agent.flush());
  const limitMs = Math.min(QUIESCE_MS_MAX, Math.max(1, Math.ceil(pauseMsMax)));
  const { quiesced, startedAt } = await time.wait("stopping the writes", stopWrites(agent, limitMs, signal));
  await finish(quiesced, () => disk.finish());
  const pauseMs = performance.now() - startedAt;
  await disk.seal();
  return { pauseMs };
}

/** Does `work`, and then allows the writes. @throws ApiError `conflict` when they were allowed earlier */
async function finish(quiesced: Quiesced, work: () => Promise<void>): Promise<void> {
  await using _thawed = quiesced;
  await work();
  try {
    await quiesced.thaw();
  } catch (error) {
    const reason = error instanceof AgentError ? THAWED_TEXT.get(error.errno) : undefined;
    if (reason === undefined) throw error;
    throw new ApiError("conflict", `the files of the instance were not copied: ${reason}`, {}, { cause: error });
  }
}

async function stopWrites(
  agent: Agent,
  limitMs: number,
  signal: AbortSignal,
): Promise<{ readonly quiesced: Quiesced; readonly startedAt: number }> {
  for (let attempt = 1; ; attempt++) {
    signal.throwIfAborted();
    const startedAt = performance.now();
    try {
      return { quiesced: await agent.quiesce(limitMs), startedAt };
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
