import { statfs } from "node:fs/promises";
import { join } from "node:path";
import { withinTime } from "../../system/waiting.ts";
import { VmmError, withExitReason } from "../machine-end.ts";
import type { DiskCopy, ForkOptions, Machine, MachineRecord, PreparedFork } from "../vmm.ts";
import { type CloudHypervisorApi, CloudHypervisorApiError } from "./api.ts";
import { FORK_URL } from "./config.ts";
import { CloudHypervisorForkPoint } from "./fork-point.ts";
import { makeSnapshotDirectory, removeSnapshot, STATE_BYTES_MAX } from "./snapshot.ts";

const SCRATCH_SERIAL = "S";
/** Limit of the copy of the scratch during the pause. */
const PAUSE_MS_MAX = 20_000;
/** Limit of the continuation of the machine. */
const CONTINUE_MS_MAX = 5000;
/** Time for the exit of a VMM that does not answer. */
const EXIT_MS_MAX = 500;

/** The parts of a machine that a fork needs. */
export interface ForkContext {
  readonly machine: Machine & { readonly api: CloudHypervisorApi };
  readonly record: Pick<MachineRecord, "version" | "disks" | "nextLun">;
  /** parent of the directories of fork points, on the file system of the machine's directory */
  readonly vmsDirectory: string;
  /** Ends the machine, which cannot continue. */
  readonly end: (description: string) => Promise<void>;
}

/**
 * A fork of a running machine by a snapshot. The VMM writes all of the guest's memory to a file during the pause, so the pause
 * grows with the memory, not with what the guest has changed.
 */
export class CloudHypervisorFork implements PreparedFork {
  readonly #context: ForkContext;
  readonly #scratch: DiskCopy;
  readonly #owned: AsyncDisposableStack;

  private constructor(context: ForkContext, scratch: DiskCopy, owned: AsyncDisposableStack) {
    this.#context = context;
    this.#scratch = scratch;
    this.#owned = owned;
  }

  /** @throws VmmError when the disk has no room for the memory, or the scratch cannot be copied; the reason of `signal` */
  static async prepare(context: ForkContext, { scratchPath, signal }: ForkOptions): Promise<CloudHypervisorFork> {
    signal.throwIfAborted();
    const { machine, vmsDirectory } = context;
    await requireRoom(vmsDirectory, machine.shape.memoryBytes + 2 * STATE_BYTES_MAX);
    await using stack = new AsyncDisposableStack();
    const disk = { serial: SCRATCH_SERIAL, path: scratchPath, pauseMsMax: PAUSE_MS_MAX, signal };
    const scratch = stack.use(await machine.copyDisk(disk));
    return new CloudHypervisorFork(context, scratch, stack.move());
  }

  async take(): Promise<CloudHypervisorForkPoint> {
    const { machine, record, vmsDirectory } = this.#context;
    const { shape } = machine;
    const directory = forkDirectory(machine.directory);
    await using undo = new AsyncDisposableStack();
    await makeSnapshotDirectory(directory, machine.uid);
    undo.defer(() => removeSnapshot(directory));
    const startedAt = performance.now();
    await withExitReason(machine, () => this.#copyPaused());
    const pausedMs = performance.now() - startedAt;
    await this.#scratch.seal();
    const point = await CloudHypervisorForkPoint.take({ directory, vmsDirectory, shape, record, pausedMs });
    await this[Symbol.asyncDispose]();
    return point;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }

  async #copyPaused(): Promise<void> {
    const { machine } = this.#context;
    await using continued = new AsyncDisposableStack();
    continued.defer(() => this.#continue());
    await machine.pause().catch((error: Error) => {
      // It runs, so it would refuse to resume. A guest that does not run in spite of that does not answer the SYNC.
      if (error instanceof CloudHypervisorApiError) continued.move();
      throw error;
    });
    const copies = [machine.api.snapshot(FORK_URL, machine.shape.memoryBytes), this.#scratch.finish()];
    // One that failed is not the end of the other, which must not write to files that are being removed.
    for (const copy of await Promise.allSettled(copies)) if (copy.status === "rejected") throw copy.reason;
  }

  /** Continues the machine, or ends it with a reason. */
  async #continue(): Promise<void> {
    const { machine, end } = this.#context;
    try {
      await withinTime(machine.resume(), CONTINUE_MS_MAX, () => {
        throw new VmmError(`it did not continue within ${CONTINUE_MS_MAX} ms`);
      });
    } catch (error) {
      // A VMM that has died tells a better reason.
      if ((await withinTime(machine.exited, EXIT_MS_MAX, () => null)) !== null) return;
      await end(`the machine could not continue after a fork: ${(error as Error).message}`);
    }
  }
}

/** The directory of a machine in which its VMM writes a fork. @param directory private directory of the machine */
export function forkDirectory(directory: string): string {
  return join(directory, "fork");
}

/** @throws VmmError that names the room which is needed and that which is left */
async function requireRoom(directory: string, bytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(directory);
  if (bavail * bsize >= bytes) return;
  throw new VmmError(
    `a fork writes all memory of the machine to the disk, which needs ${bytes} bytes: ${bavail * bsize} are free`,
  );
}
