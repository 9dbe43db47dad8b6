import { createHash } from "node:crypto";
import { closeSync, readSync, writeSync } from "node:fs";
import { type FileHandle, open, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { type Static, Type } from "@sinclair/typebox";
import { Value } from "@sinclair/typebox/value";
import { publishFile, syncPath } from "../../system/scratch.ts";
import { createMemfd, sealMemfd } from "../descriptors.ts";
import { NotResumableError } from "../machine-end.ts";
import type { MachineShape } from "../vmm.ts";
import { STATE_BYTES_MAX } from "./device-state.ts";
import { difference, type ForkOrigin, forkOrigin } from "./fork-origin.ts";
import type { SealedFile } from "./memory-file.ts";

/** Changes with the meaning of the files. */
const FORMAT_NUMBER = 1;
const MANIFEST = "fork.json";
const MANIFEST_BYTES_MAX = 65_536;
const MEMORY = "memory";
const COMPRESSED = "memory.zst";
const STATE = "state";
/** Size of one step, in `bytes`; the event loop runs in between. */
const STEP_BYTES = 1_048_576;
/** Room for the table of a memory file, in addition to all of the guest's memory, in `bytes`. */
const TABLE_BYTES_MAX = 1_048_576;
const MODE = 0o600;
/** Memory compresses well, and the fastest level writes less than a disk would have to. */
const COMPRESSION_LEVEL_NUMBER = 1;

const sealedFile = Type.Object({
  sizeBytes: Type.Integer({ minimum: 1 }),
  /** of the file before compression, in hexadecimal */
  sha256: Type.String({ pattern: "^[0-9a-f]{64}$" }),
});
type SavedFile = Static<typeof sealedFile>;

const manifest = Type.Object({
  format: Type.Literal(FORMAT_NUMBER),
  origin: forkOrigin,
  shape: Type.Object({
    vcpus: Type.Integer({ minimum: 1 }),
    memoryBytes: Type.Integer({ minimum: 4096, maximum: 2 ** 44 }),
  }),
  disks: Type.Array(
    Type.Object({ serial: Type.String({ maxLength: 20 }), node: Type.String({ pattern: "^disk[0-9]{1,5}$" }) }),
    { maxItems: 1024 },
  ),
  memory: sealedFile,
  state: sealedFile,
});
type Manifest = Static<typeof manifest>;

export interface ForkFiles {
  readonly origin: ForkOrigin;
  readonly shape: MachineShape;
  readonly disks: readonly Manifest["disks"][number][];
  /** memfds */
  readonly memory: SealedFile;
  readonly state: SealedFile;
}

/** Writes the files of a fork point to a directory, where they stay after a power failure. The last one is the manifest. */
export async function writeFork({ memory, state, ...parts }: ForkFiles, directory: string): Promise<void> {
  const saved: Manifest = {
    ...{ format: FORMAT_NUMBER, ...parts, disks: [...parts.disks] },
    memory: await writeFile(memory, join(directory, MEMORY)),
    state: await writeFile(state, join(directory, STATE)),
  };
  await using file = await open(join(directory, MANIFEST), "wx", MODE);
  await file.writeFile(`${JSON.stringify(saved)}\n`);
  await file.sync();
  await syncPath(directory);
}

async function writeFile({ fd, sizeBytes }: SealedFile, path: string): Promise<SavedFile> {
  await using file = await open(path, "wx", MODE);
  const hash = createHash("sha256");
  const step = Buffer.alloc(STEP_BYTES);
  for (let offset = 0; offset < sizeBytes; offset += STEP_BYTES) {
    const part = step.subarray(0, readSync(fd, step, 0, Math.min(STEP_BYTES, sizeBytes - offset), offset));
    hash.update(part);
    await file.writeFile(part);
  }
  await file.sync();
  return { sizeBytes, sha256: hash.digest("hex") };
}

/**
 * Reads the files of a fork point, after a comparison of their origin with `here`. The caller closes both memfds.
 * @throws NotResumableError when they differ, or the files are damaged
 */
export async function readFork(directory: string, here: (shape: MachineShape) => ForkOrigin): Promise<ForkFiles> {
  const saved = await readManifest(directory);
  const reason = difference(saved.origin, here(saved.shape));
  if (reason !== null) throw new NotResumableError(reason);
  const { shape, disks } = saved;
  using undo = new DisposableStack();
  const memory = await loadFile(directory, [MEMORY, COMPRESSED], saved.memory, shape.memoryBytes + TABLE_BYTES_MAX);
  undo.defer(() => closeSync(memory.fd));
  const state = await loadFile(directory, [STATE], saved.state, STATE_BYTES_MAX);
  undo.move();
  return { origin: saved.origin, shape, disks, memory, state };
}

/** Copies the first file that exists to a sealed memfd. */
async function loadFile(
  directory: string,
  names: readonly string[],
  { sizeBytes, sha256 }: SavedFile,
  bytesMax: number,
): Promise<SealedFile> {
  const damaged = (cause?: unknown) =>
    new NotResumableError(`the file ${names[0]} of its memory is damaged`, { cause });
  if (sizeBytes > bytesMax) throw damaged();
  using undo = new DisposableStack();
  const fd = createMemfd(`fork-${names[0]}`, sizeBytes);
  undo.defer(() => closeSync(fd));
  const hash = createHash("sha256");
  let offset = 0;
  const take = async (chunks: AsyncIterable<Uint8Array>): Promise<void> => {
    for await (const chunk of chunks) {
      if (offset + chunk.byteLength > sizeBytes) throw damaged();
      hash.update(chunk);
      writeSync(fd, chunk, 0, chunk.byteLength, offset);
      offset += chunk.byteLength;
    }
  };
  try {
    await readThrough(directory, names, take);
  } catch (error) {
    // The errors of the decompression have codes of their own.
    throw ["EIO", "EACCES", "EMFILE", "ENFILE"].includes((error as NodeJS.ErrnoException).code ?? "")
      ? error
      : damaged(error);
  }
  if (offset !== sizeBytes || hash.digest("hex") !== sha256) throw damaged();
  await sealMemfd(fd);
  undo.move();
  return { fd, sizeBytes };
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

async function readManifest(directory: string): Promise<Manifest> {
  try {
    const text = await readFile(join(directory, MANIFEST), "utf8");
    const document: unknown = text.length > MANIFEST_BYTES_MAX ? null : JSON.parse(text);
    if (Value.Check(manifest, document)) return document;
  } catch (error) {
    if (!(error instanceof SyntaxError) && (error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
  throw new NotResumableError("the description of its memory is missing or damaged");
}
