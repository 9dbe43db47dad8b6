import { rename, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Log } from "../../log.ts";
import { CommandError, run } from "../../system/exec.ts";
import type { MachineShape, Template } from "../vmm.ts";
import type { CloudHypervisorMachine } from "./machine.ts";
import { makeSnapshotDirectory, placeSnapshot, snapshotDirectory, takeSnapshot } from "./snapshot.ts";

/** Time limit for making holes. It reads all of the memory; a GiB takes a second. */
const HOLES_TIMEOUT_MS = 120_000;

/** A snapshot in a directory of its own, whose files no longer change. */
export class CloudHypervisorTemplate implements Template {
  readonly shape: MachineShape;
  readonly createdAt = Date.now();
  /** The memory lies on the disk, and pages that a clone touches belong to the clone (docs/snapshot_restore.md). */
  readonly memoryBytes = 0;
  readonly isInUse = false;
  readonly #directory: string;

  private constructor(shape: MachineShape, directory: string) {
    this.shape = shape;
    this.#directory = directory;
  }

  /** Makes the directory in which the machine's VMM can write a snapshot. */
  static async prepare(machine: CloudHypervisorMachine): Promise<void> {
    await makeSnapshotDirectory(snapshotDirectory(machine.directory), machine.uid);
  }

  /** Takes over the snapshot of a machine whose VMM is gone. @throws VmmError as `takeSnapshot` does */
  static async take(machine: CloudHypervisorMachine, directory: string, log: Log): Promise<CloudHypervisorTemplate> {
    const snapshot = snapshotDirectory(machine.directory);
    await takeSnapshot(snapshot, machine.shape.memoryBytes);
    await makeHoles(join(snapshot, "memory-ranges"), log);
    await rename(snapshot, directory);
    return new CloudHypervisorTemplate(machine.shape, directory);
  }

  /** Links the snapshot into the directory of a machine's VMM. It stays readable after the template is disposed of. */
  async placeIn(machine: CloudHypervisorMachine): Promise<void> {
    await placeSnapshot(this.#directory, machine);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.#directory, { recursive: true, force: true });
  }
}

/**
 * The VMM writes private memory completely, zeros included (vmm/src/memory_manager.rs). Holes save room on the disk, and
 * time when clones copy all memory.
 */
async function makeHoles(path: string, log: Log): Promise<void> {
  try {
    await run({ argv: ["/usr/bin/fallocate", "--dig-holes", path], timeoutMs: HOLES_TIMEOUT_MS });
  } catch (error) {
    // On a file system without holes the template works as well, but takes more room.
    if (!(error instanceof CommandError)) throw error;
    log.debug("a template keeps its zeros", { error });
  }
}
