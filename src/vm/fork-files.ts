import { createHash } from "node:crypto";
import { readSync } from "node:fs";
import { type FileHandle, open, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { type Static, type TSchema, Type } from "@sinclair/typebox";
import { Value } from "@sinclair/typebox/value";
import { publishFile, syncPath } from "../system/scratch.ts";
import { DamagedMemoryError, NotResumableError } from "./machine-end.ts";
import type { VmmName } from "./vmm.ts";

/*
 * The files of a saved fork point, which are the same for every VMM: memory, which may be compressed, the state of the devices,
 * and a description with everything that must be equal where it is loaded.
 */

/** Changes with the meaning of the files. */
const FORMAT_NUMBER = 1;
const MANIFEST = "fork.json";
const MANIFEST_BYTES_MAX = 1_048_576;
const MEMORY = "memory";
const COMPRESSED = "memory.zst";
const STATE = "state";
/** Size of one step, in `bytes`; the event loop runs in between. */
const STEP_BYTES = 1_048_576;
const MODE = 0o600;
/** Memory compresses well, and the fastest level writes less than a disk would have to. */
const COMPRESSION_LEVEL_NUMBER = 1;
const ZEROS = Buffer.alloc(STEP_BYTES);
const NAMES: Readonly<Record<VmmName, string>> = { qemu: "QEMU", "cloud-hypervisor": "Cloud Hypervisor" };

const savedFile = Type.Object({
  sizeBytes: Type.Integer({ minimum: 1 }),
  /** of the file before compression, in hexadecimal */
  sha256: Type.String({ pattern: "^[0-9a-f]{64}$" }),
});
/** Size and hash of a file. */
export type SavedFile = Static<typeof savedFile>;

/** Fields that the descriptions of all VMMs have. */
export const forkManifest = Type.Object({
  shape: Type.Object({
    vcpus: Type.Integer({ minimum: 1 }),
    memoryBytes: Type.Integer({ minimum: 4096, maximum: 2 ** 44 }),
  }),
  memory: savedFile,
  state: savedFile,
});

const manifestHead = Type.Object({
  format: Type.Literal(FORMAT_NUMBER),
  vmm: Type.Union([Type.Literal("qemu"), Type.Literal("cloud-hypervisor")]),
});

/** An open file. */
export interface OpenFile {
  readonly fd: number;
  readonly sizeBytes: number;
}

/**
 * Writes the files of a fork point to a directory, where they stay after a power failure. The last one is the description.
 * @param more fields of the VMM's own description
 */
export async function writeForkFiles(
  directory: string,
  vmm: VmmName,
  {
    memory,
    state,
    ...more
  }: { readonly memory: OpenFile; readonly state: OpenFile } & Readonly<Record<string, unknown>>,
): Promise<void> {
  const saved = {
    ...{ format: FORMAT_NUMBER, vmm, ...more },
    memory: await writeFile(memory, join(directory, MEMORY)),
    state: await writeFile(state, join(directory, STATE)),
  };
  await using file = await open(join(directory, MANIFEST), "wx", MODE);
  await file.writeFile(`${JSON.stringify(saved)}\n`);
  await file.sync();
  await syncPath(directory);
}

/** Zeros become holes. */
async function writeFile({ fd, sizeBytes }: OpenFile, path: string): Promise<SavedFile> {
  await using file = await open(path, "wx", MODE);
  const hash = createHash("sha256");
  const step = Buffer.alloc(STEP_BYTES);
  for (let offset = 0; offset < sizeBytes; offset += STEP_BYTES) {
    const part = step.subarray(0, readSync(fd, step, 0, Math.min(STEP_BYTES, sizeBytes - offset), offset));
    hash.update(part);
    if (isZero(part)) await new Promise(setImmediate);
    else await file.write(part, 0, part.byteLength, offset);
  }
  await file.truncate(sizeBytes);
  await file.sync();
  return { sizeBytes, sha256: hash.digest("hex") };
}

/** Whether all of at most a MiB of bytes are zero. Longer pieces are never called zero. */
export function isZero(bytes: Uint8Array): boolean {
  return bytes.byteLength <= ZEROS.byteLength && ZEROS.subarray(0, bytes.byteLength).equals(bytes);
}

/** Reads the description of a fork point. @throws NotResumableError when another VMM saved it; DamagedMemoryError */
export async function readForkManifest<T extends TSchema>(
  directory: string,
  vmm: VmmName,
  schema: T,
): Promise<Static<T>> {
  try {
    const text = await readFile(join(directory, MANIFEST), "utf8");
    const document: unknown = text.length > MANIFEST_BYTES_MAX ? null : JSON.parse(text);
    if (Value.Check(manifestHead, document) && document.vmm !== vmm) {
      throw new NotResumableError(`${NAMES[document.vmm]} saved its memory, and machines run with ${NAMES[vmm]} now`);
    }
    if (Value.Check(manifestHead, document) && Value.Check(schema, document)) return document;
  } catch (error) {
    if (!(error instanceof SyntaxError) && (error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
  throw new DamagedMemoryError("the description of its memory is missing or damaged");
}

/**
 * Reads a file of a fork point in steps, and compares its size and hash.
 * @param take gets the content in order
 * @throws DamagedMemoryError; what `take` throws
 */
export async function readForkFile(
  directory: string,
  file: "memory" | "state",
  { saved: { sizeBytes, sha256 }, bytesMax }: { readonly saved: SavedFile; readonly bytesMax: number },
  take: (chunk: Uint8Array, offset: number) => void,
): Promise<void> {
  const damaged = (cause?: unknown) => new DamagedMemoryError(`the file ${file} of its memory is damaged`, { cause });
  if (sizeBytes > bytesMax) throw damaged();
  const hash = createHash("sha256");
  let offset = 0;
  const takeAll = async (chunks: AsyncIterable<Uint8Array>): Promise<void> => {
    for await (const chunk of chunks) {
      if (offset + chunk.byteLength > sizeBytes) throw damaged();
      hash.update(chunk);
      take(chunk, offset);
      offset += chunk.byteLength;
    }
  };
  try {
    await readThrough(directory, file === "memory" ? [MEMORY, COMPRESSED] : [STATE], takeAll);
  } catch (error) {
    // The errors of the decompression have codes of their own.
    throw ["EIO", "EACCES", "EMFILE", "ENFILE", "ENOSPC"].includes((error as NodeJS.ErrnoException).code ?? "")
      ? error
      : damaged(error);
  }
  if (offset !== sizeBytes || hash.digest("hex") !== sha256) throw damaged();
}

async function readThrough(
  directory: string,
  names: readonly string[],
  take: (chunks: AsyncIterable<Uint8Array>) => Promise<void>,
): Promise<void> {
  const [name = "", ...others] = names;
  let file: FileHandle;
  try {
    file = await open(join(directory, name), "r");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT" || others.length === 0) throw error;
    return await readThrough(directory, others, take);
  }
  await using _file = file;
  const content = file.createReadStream({ highWaterMark: STEP_BYTES, autoClose: false });
  const { pipeline } = await import("node:stream/promises");
  if (name !== COMPRESSED) return await pipeline(content, take);
  const { createZstdDecompress } = await import("node:zlib");
  await pipeline(content, createZstdDecompress(), take);
}

/**
 * Compresses the memory of a saved fork point, which can be loaded at any time meanwhile.
 * @throws the reason of `signal`, before anything has changed
 */
export async function compressFork(directory: string, signal: AbortSignal): Promise<void> {
  const [plain, compressed] = [join(directory, MEMORY), join(directory, COMPRESSED)];
  const temporary = `${compressed}.new`;
  await using _temporary = { [Symbol.asyncDispose]: () => rm(temporary, { force: true }) };
  // Loaded only here: few processes save memory.
  const [{ createZstdCompress, constants }, { pipeline }, { createReadStream, createWriteStream }] = await Promise.all([
    import("node:zlib"),
    import("node:stream/promises"),
    import("node:fs"),
  ]);
  await pipeline(
    createReadStream(plain, { highWaterMark: STEP_BYTES }),
    createZstdCompress({ params: { [constants.ZSTD_c_compressionLevel]: COMPRESSION_LEVEL_NUMBER } }),
    createWriteStream(temporary, { mode: MODE }),
    { signal },
  );
  await publishFile(temporary, compressed);
  await rm(plain);
}
