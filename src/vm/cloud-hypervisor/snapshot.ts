import { chmod, chown, lstat, mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { CommandError, run } from "../../system/exec.ts";
import { takeOverFile } from "../disk-copy.ts";
import { VmmError } from "../machine-end.ts";
import type { Machine } from "../vmm.ts";
import { SNAPSHOT_FILES } from "./config.ts";
import { placeFile } from "./files.ts";

/** Limit for the configuration of a machine and for the state of its devices, each, in `bytes`; 0.3 MiB were measured. */
export const STATE_BYTES_MAX = 67_108_864;

/** Time limit for making holes. It reads all of the memory; a GiB takes a second. */
const HOLES_TIMEOUT_MS = 120_000;

type SnapshotFile = (typeof SNAPSHOT_FILES)[number];

/** The directory of a machine, and the user of its VMM. */
export type MachinePlace = Pick<Machine, "directory" | "uid">;

/** Makes a directory in which a machine's VMM can write a snapshot. */
export async function makeSnapshotDirectory(path: string, uid: number): Promise<void> {
  await mkdir(path, { mode: 0o700 });
  await chown(path, uid, uid);
}

/** Removes the directory of a snapshot, in which a VMM may still write. */
export async function removeSnapshot(path: string): Promise<void> {
  await chown(path, 0, 0).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOENT") throw error;
  });
  await rm(path, { recursive: true, force: true });
}

/**
 * Takes a snapshot from the VMM that wrote it, which can change nothing of it afterwards.
 * @throws VmmError when a file is missing, not a plain file, or larger than it can be
 */
export async function takeSnapshot(path: string, memoryBytes: number): Promise<void> {
  const limits: Readonly<Record<SnapshotFile, number>> = {
    "config.json": STATE_BYTES_MAX,
    "state.json": STATE_BYTES_MAX,
    "memory-ranges": memoryBytes,
  };
  await chown(path, 0, 0);
  for (const name of SNAPSHOT_FILES) {
    const file = join(path, name);
    const status = await lstat(file);
    // Links would give the daemon ownership of another file of the host.
    if (!status.isFile()) throw new VmmError(`the snapshot's ${name} is not a file`);
    if (status.nlink !== 1) throw new VmmError(`the snapshot's ${name} has another name`);
    if (status.size > limits[name]) throw new VmmError(`the snapshot's ${name} has ${status.size} bytes`);
    await takeOverFile(file);
    // The VMM may have written to it until now.
    if ((await lstat(file)).size > limits[name]) throw new VmmError(`the snapshot's ${name} grew`);
    await chmod(file, 0o444);
  }
}

/**
 * Makes holes of the zeros in the memory of a snapshot that was taken. The VMM writes private memory completely, zeros
 * included (vmm/src/memory_manager.rs), and a restore leaves holes out. So they save room on the disk, and each restored
 * machine memory and time.
 */
export async function makeHoles(path: string): Promise<void> {
  try {
    const memory = join(path, "memory-ranges");
    await run({ argv: ["/usr/bin/fallocate", "--dig-holes", memory], timeoutMs: HOLES_TIMEOUT_MS });
  } catch (error) {
    // On a file system without holes the snapshot works as well, but takes more room.
    if (!(error instanceof CommandError)) throw error;
  }
}

/** Links a snapshot into the directory of a machine's VMM, as /vm/snapshot. It stays readable when `path` is removed. */
export async function placeSnapshot(path: string, machine: MachinePlace): Promise<void> {
  const directory = snapshotDirectory(machine.directory);
  await mkdir(directory, { mode: 0o710 });
  await chown(directory, 0, machine.uid);
  await chmod(directory, 0o710);
  for (const name of SNAPSHOT_FILES) await placeFile(join(path, name), join(directory, name));
}

/** The directory of a machine that its VMM sees as /vm/snapshot. */
export function snapshotDirectory(directory: string): string {
  return join(directory, "snapshot");
}
