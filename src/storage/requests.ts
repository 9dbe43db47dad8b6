import { createReadStream } from "node:fs";
import { rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type OperationId, parseUuid } from "../domain/ids.ts";
import { publishFile, scratchDirectory } from "../system/scratch.ts";
import { type DataLayout, nameBatches } from "./layout.ts";

/** Size of a chunk of standard input, in `bytes`. */
const READ_CHUNK_BYTES = 65_536;

function stdinPath(layout: DataLayout, id: OperationId): string {
  return join(layout.requests, id);
}

/** Stores the standard input of a waiting operation, and syncs it to the disk. */
export async function writeStdin(layout: DataLayout, id: OperationId, bytes: Uint8Array): Promise<void> {
  await using directory = await scratchDirectory(layout.tmp, "request-");
  const temporary = join(directory.path, "stdin");
  await writeFile(temporary, bytes, { mode: 0o600 });
  await publishFile(temporary, stdinPath(layout, id));
}

/** Size of a stored standard input, in `bytes`; null when there is none. */
export async function stdinBytes(layout: DataLayout, id: OperationId): Promise<number | null> {
  try {
    return (await stat(stdinPath(layout, id))).size;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  }
}

/** The stored standard input in chunks. The file is opened when the first chunk is requested. */
export async function* readStdin(layout: DataLayout, id: OperationId): AsyncGenerator<Uint8Array, void, undefined> {
  yield* createReadStream(stdinPath(layout, id), { highWaterMark: READ_CHUNK_BYTES });
}

export async function removeStdin(layout: DataLayout, id: OperationId): Promise<void> {
  await rm(stdinPath(layout, id), { force: true });
}

/** Removes the standard input of operations that `live` does not return. Nothing may be stored meanwhile. */
export async function sweepStdin(
  layout: DataLayout,
  live: (ids: readonly OperationId[]) => ReadonlySet<OperationId>,
): Promise<void> {
  for await (const names of nameBatches(layout.requests)) {
    const kept = live(names.map((name) => parseUuid<OperationId>(name)).filter((id) => id !== null));
    const garbage = names.filter((name) => !(kept as ReadonlySet<string>).has(name));
    for (const name of garbage) await rm(join(layout.requests, name), { recursive: true, force: true });
  }
}
