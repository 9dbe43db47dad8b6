import { rename, rm } from "node:fs/promises";
import type { MachineShape, Template } from "../vmm.ts";
import type { CloudHypervisorMachine } from "./machine.ts";
import { makeHoles, makeSnapshotDirectory, placeSnapshot, snapshotDirectory, takeSnapshot } from "./snapshot.ts";

/** A snapshot in a directory of its own, whose files no longer change. */
export class CloudHypervisorTemplate implements Template {
  readonly shape: MachineShape;
  readonly createdAt = Date.now();
  /** The memory lies on the disk, and each clone has a copy of its own. */
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
  static async take(machine: CloudHypervisorMachine, directory: string): Promise<CloudHypervisorTemplate> {
    const snapshot = snapshotDirectory(machine.directory);
    await takeSnapshot(snapshot, machine.shape.memoryBytes);
    await makeHoles(snapshot);
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
