import { closeSync, writeSync } from "node:fs";
import { type Static, Type } from "@sinclair/typebox";
import { createMemfd, sealMemfd } from "../descriptors.ts";
import { forkManifest, readForkFile, readForkManifest, type SavedFile, writeForkFiles } from "../fork-files.ts";
import { NotResumableError } from "../machine-end.ts";
import type { MachineShape } from "../vmm.ts";
import { FORK_STATE_BYTES_MAX } from "./device-state.ts";
import { difference, type ForkOrigin, forkOrigin } from "./fork-origin.ts";
import type { SealedFile } from "./memory-file.ts";

/** Room for the table of a memory file, in addition to all of the guest's memory, in `bytes`. */
const TABLE_BYTES_MAX = 1_048_576;

const manifest = Type.Composite([
  forkManifest,
  Type.Object({
    origin: forkOrigin,
    disks: Type.Array(
      Type.Object({ serial: Type.String({ maxLength: 20 }), node: Type.String({ pattern: "^disk[0-9]{1,5}$" }) }),
      { maxItems: 1024 },
    ),
  }),
]);

type Manifest = Static<typeof manifest>;

export interface ForkFiles {
  readonly origin: ForkOrigin;
  readonly shape: MachineShape;
  readonly disks: readonly Manifest["disks"][number][];
  /** memfds */
  readonly memory: SealedFile;
  readonly state: SealedFile;
}

/** Writes the files of a fork point to a directory, where they stay after a power failure. */
export async function writeFork({ origin, shape, disks, memory, state }: ForkFiles, directory: string): Promise<void> {
  await writeForkFiles(directory, "qemu", { origin, shape, disks, memory, state });
}

/**
 * Reads the files of a fork point, after a comparison of their origin with `here`. The caller closes both memfds.
 * @throws NotResumableError when they differ, or the files are damaged
 */
export async function readFork(directory: string, here: (shape: MachineShape) => ForkOrigin): Promise<ForkFiles> {
  const saved = await checkFork(directory, here);
  const { shape, disks } = saved;
  using undo = new DisposableStack();
  const memory = await loadFile(directory, "memory", saved.memory, shape.memoryBytes + TABLE_BYTES_MAX);
  undo.defer(() => closeSync(memory.fd));
  const state = await loadFile(directory, "state", saved.state, FORK_STATE_BYTES_MAX);
  undo.move();
  return { origin: saved.origin, shape, disks, memory, state };
}

/** Compares the origin of a fork point with `here`, without reading its memory. @throws as `readFork` does */
export async function checkFork(directory: string, here: (shape: MachineShape) => ForkOrigin): Promise<Manifest> {
  const saved = await readForkManifest(directory, "qemu", manifest);
  const reason = difference(saved.origin, here(saved.shape));
  if (reason !== null) throw new NotResumableError(reason);
  return saved;
}

/** Copies a file to a sealed memfd. */
async function loadFile(
  directory: string,
  file: "memory" | "state",
  saved: SavedFile,
  bytesMax: number,
): Promise<SealedFile> {
  const { sizeBytes } = saved;
  using undo = new DisposableStack();
  // A file of this size would be refused later.
  const fd = createMemfd(`fork-${file}`, Math.min(sizeBytes, bytesMax));
  undo.defer(() => closeSync(fd));
  await readForkFile(directory, file, { saved, bytesMax }, (chunk, offset) => {
    writeSync(fd, chunk, 0, chunk.byteLength, offset);
  });
  await sealMemfd(fd);
  undo.move();
  return { fd, sizeBytes };
}
