import { chmod, chown, lstat, mkdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Log } from "../../log.ts";
import { CommandError, run } from "../../system/exec.ts";
import type { MachineShape, Template } from "../vmm.ts";
import { SNAPSHOT_FILES } from "./config.ts";
import type { CloudHypervisorMachine } from "./machine.ts";
import { placeFile } from "./start.ts";

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
    const directory = snapshotDirectory(machine.directory);
    await mkdir(directory, { mode: 0o700 });
    await chown(directory, machine.uid, machine.uid);
  }

  /** Takes over the snapshot of a machine whose VMM is gone. @throws Error when a file is missing or not a plain file */
  static async take(machine: CloudHypervisorMachine, directory: string, log: Log): Promise<CloudHypervisorTemplate> {
    const snapshot = snapshotDirectory(machine.directory);
    await chown(snapshot, 0, 0);
    for (const name of SNAPSHOT_FILES) {
      const path = join(snapshot, name);
      const { nlink } = await regularFile(path);
      if (nlink !== 1) throw new Error(`the snapshot's ${name} has another name`);
      await chown(path, 0, 0);
      await chmod(path, 0o444);
    }
    await makeHoles(join(snapshot, "memory-ranges"), log);
    await rename(snapshot, directory);
    return new CloudHypervisorTemplate(machine.shape, directory);
  }

  /** Links the snapshot into the directory of a machine's VMM. It stays readable after the template is disposed of. */
  async placeIn(machine: CloudHypervisorMachine): Promise<void> {
    const directory = snapshotDirectory(machine.directory);
    await mkdir(directory, { mode: 0o710 });
    await chown(directory, 0, machine.uid);
    await chmod(directory, 0o710);
    for (const name of SNAPSHOT_FILES) await placeFile(join(this.#directory, name), join(directory, name));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.#directory, { recursive: true, force: true });
  }
}

function snapshotDirectory(directory: string): string {
  return join(directory, "snapshot");
}

/** Refuses links, which would give the daemon ownership of another file of the host. */
async function regularFile(path: string) {
  const file = await lstat(path);
  if (!file.isFile()) throw new Error(`${path} of a snapshot is not a file`);
  return file;
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
