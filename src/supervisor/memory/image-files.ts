import { createHash } from "node:crypto";
import { chmod, link, lstat, mkdir, open, readFile, rename, rm, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type Static, Type } from "@sinclair/typebox";
import { Value } from "@sinclair/typebox/value";
import { syncPath } from "../../system/scratch.ts";
import { allocatedBytes } from "../../system/sparse.ts";
import { DamagedMemoryError } from "../../vm/machine-end.ts";
import type { Disk, ForkPoint } from "../../vm/vmm.ts";
import type { ResumableInstance } from "../instance/running-instances.ts";
import { layerSerial, SCRATCH_SERIAL } from "../machines/steps.ts";

/** Changes with the meaning of the files. */
const FORMAT_NUMBER = 1;
const MANIFEST = "instance.json";
const SCRATCH = "scratch";
/** The name of the scratch while a machine is made from it. */
const SCRATCH_IN_USE = "scratch.use";
/** It has no output and no data of connections: 64 processes and 256 connections take a tenth of this. */
const MANIFEST_BYTES_MAX = 4 * 1_048_576;
const FILE_MODE = 0o600;
const DIRECTORY_MODE = 0o700;

const manifest = Type.Object({
  format: Type.Literal(FORMAT_NUMBER),
  /** of the serialised record, in hexadecimal */
  sha256: Type.String(),
  /** the host's side of the instance, as JSON */
  record: Type.String(),
  /** sizes of the disks in `bytes`, by their serials */
  disks: Type.Array(Type.Object({ serial: Type.String({ pattern: "^(S|L[0-9]{2,3})$" }), sizeBytes: Type.Integer() })),
});
type Manifest = Static<typeof manifest>;

export interface WrittenImage {
  readonly point: Pick<ForkPoint, "save">;
  readonly record: ResumableInstance;
  /** host path of the scratch's copy, which is moved */
  readonly scratchPath: string;
  /** host path of the machine's directory, which has the layers */
  readonly machineDirectory: string;
}

/**
 * Writes an image of a sandbox's memory to a directory of root's that does not exist. A power failure leaves all of it there or
 * nothing. The layers are hard links: they stay when their images are deleted or their chain is merged. Returns the space
 * that the rest takes, in `bytes`; when it throws, the caller removes `unfinishedPath`.
 */
export async function writeImage(
  directory: string,
  { point, record, scratchPath, machineDirectory }: WrittenImage,
): Promise<number> {
  const unfinished = unfinishedPath(directory);
  await mkdir(unfinished, { mode: DIRECTORY_MODE });
  await point.save(unfinished);
  const scratch = join(unfinished, SCRATCH);
  await rename(scratchPath, scratch);
  await chmod(scratch, FILE_MODE);
  await syncPath(scratch);
  const disks = [{ serial: SCRATCH_SERIAL, sizeBytes: (await stat(scratch)).size }];
  for (const serial of layerSerials(record)) {
    const path = join(unfinished, serial);
    await link(join(machineDirectory, serial), path);
    const layer = await lstat(path);
    if (!layer.isFile() || layer.uid !== process.getuid?.()) throw new Error("a layer of a machine is not a layer");
    disks.push({ serial, sizeBytes: layer.size });
  }
  const text = JSON.stringify(record);
  const saved: Manifest = { format: FORMAT_NUMBER, sha256: hashOf(text), record: text, disks };
  const document = Buffer.from(`${JSON.stringify(saved)}\n`);
  if (document.byteLength > MANIFEST_BYTES_MAX) throw new Error("the description of the processes is too large");
  await using file = await open(join(unfinished, MANIFEST), "wx", FILE_MODE);
  await file.writeFile(document);
  await file.sync();
  const sizeBytes = await imageBytes(unfinished);
  await syncPath(unfinished);
  await rename(unfinished, directory);
  await syncPath(dirname(directory));
  return sizeBytes;
}

export function unfinishedPath(directory: string): string {
  return `${directory}.new`;
}

/** Space that an image takes besides its layers, in `bytes`. */
export async function imageBytes(directory: string): Promise<number> {
  let bytes = 0;
  for (const name of [MANIFEST, SCRATCH, "memory", "memory.zst", "state", "fork.json"]) {
    // Expected: an image has its memory under one of two names.
    bytes += await allocatedBytes(join(directory, name)).catch(() => 0);
  }
  return bytes;
}

/** The host's side of the instance in an image. @throws DamagedMemoryError when files are damaged or missing */
export async function readImage(directory: string): Promise<ResumableInstance> {
  const { record, sha256, disks } = await readManifest(directory);
  if (hashOf(record) !== sha256) throw new DamagedMemoryError("the description of its processes is damaged");
  for (const { serial, sizeBytes } of disks) {
    const file = await stat(diskPath(directory, serial)).catch(() => null);
    if (file?.size !== sizeBytes) throw new DamagedMemoryError("one of its disks is damaged or missing");
  }
  return JSON.parse(record) as ResumableInstance;
}

/**
 * The disks of an image for one machine, which gets the scratch. The image stays whole until the machine runs: nothing writes to
 * the scratch before that.
 */
export async function disksOf(directory: string, record: ResumableInstance): Promise<Disk[]> {
  const inUse = join(directory, SCRATCH_IN_USE);
  await rm(inUse, { force: true });
  await link(join(directory, SCRATCH), inUse);
  return [
    ...layerSerials(record).map((serial) => ({ serial, path: diskPath(directory, serial), readOnly: true })),
    { serial: SCRATCH_SERIAL, path: inUse, readOnly: false },
  ];
}

/** The serials of the layers, in the order of the record, which are also the names of their files. */
export function layerSerials({ instance }: ResumableInstance): string[] {
  return (instance.disks?.layers ?? []).map((_, index) => layerSerial(index));
}

function diskPath(directory: string, serial: string): string {
  return join(directory, serial === SCRATCH_SERIAL ? SCRATCH : serial);
}

function hashOf(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}

async function readManifest(directory: string): Promise<Manifest> {
  const path = join(directory, MANIFEST);
  const size = (await stat(path).catch(() => null))?.size ?? 0;
  try {
    const document: unknown = size === 0 || size > MANIFEST_BYTES_MAX ? null : JSON.parse(await readFile(path, "utf8"));
    if (Value.Check(manifest, document)) return document;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  throw new DamagedMemoryError("the description of its processes is missing or damaged");
}
