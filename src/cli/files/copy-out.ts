import { chmod, lstat, mkdir, open, rename, rm, symlink, utimes } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { ResponseError } from "../../client/errors.ts";
import type { ListingItem } from "../../client/types.ts";
import { CliError } from "../command.ts";
import { SparseWriter } from "./sparse-writer.ts";

/** Files that are downloaded at the same time. */
const PARALLEL_COUNT = 8;
/** Bits of a mode that a copy keeps, without setuid and setgid. */
const MODE_KEPT = 0o777;

/** The part of an entry that a copy uses. */
export type SourceItem = Pick<
  ListingItem,
  | "name"
  | "name_base64"
  | "mode"
  | "is_dir"
  | "is_symlink"
  | "is_regular"
  | "symlink_to"
  | "symlink_to_base64"
  | "modified_at"
>;

/** The files of an image, or of what runs. Paths are absolute. */
export interface CopySource {
  /** @throws ResponseError `invalid_path` for a directory */
  read(path: string | Uint8Array, signal: AbortSignal): Promise<Response>;
  /** The entries of a directory, without itself. */
  list(path: string | Uint8Array, signal: AbortSignal): Promise<readonly SourceItem[]>;
}

export interface CopyOptions {
  readonly source: CopySource;
  /** absolute */
  readonly path: string;
  /** path of the copy, or of an existing directory for it */
  readonly local: string;
  readonly signal: AbortSignal;
}

/**
 * Copies a file or a tree; the copy gets its name when it is complete. Owners are not kept, and special files are left out;
 * `specials` counts them. Blocks of zeros become holes.
 * @throws CliError, ResponseError
 */
export async function copyOut(options: CopyOptions): Promise<{ readonly specials: number }> {
  const { source, path, local, signal } = options;
  const name = basename(path);
  const isInside = (await kindOf(local)) === "directory";
  if (isInside && name === "") throw new CliError(`name a new directory: ${local} exists`);
  const target = resolve(isInside ? join(local, name) : local);
  const temporary = join(dirname(target), `.${basename(target)}.${process.pid}`);
  await using undo = new AsyncDisposableStack();
  undo.defer(() => rm(temporary, { recursive: true, force: true }));
  const response = await source.read(path, signal).catch((error: unknown) => {
    // The path may be a directory; the listing fails if it is not.
    if (error instanceof ResponseError && error.code === "invalid_path") return null;
    throw error;
  });
  if (response !== null) {
    if ((await kindOf(target)) === "directory") throw new CliError(`${target} is a directory`);
    await write(Buffer.from(temporary), response);
    await rename(temporary, target);
    return { specials: 0 };
  }
  const items = await source.list(path, signal);
  if ((await kindOf(target)) !== null) throw new CliError(`${target} exists`);
  const specials = await copyTree(options, temporary, items);
  await rename(temporary, target);
  return { specials };
}

interface Directory {
  readonly from: Buffer;
  readonly to: Buffer;
  readonly mode: number;
  /** its entries, if they were listed already */
  readonly items?: readonly SourceItem[];
}

async function copyTree(options: CopyOptions, temporary: string, items: readonly SourceItem[]): Promise<number> {
  let specials = 0;
  const directories: Directory[] = [];
  const pending: Directory[] = [
    { from: Buffer.from(options.path), to: Buffer.from(temporary), mode: MODE_KEPT & ~process.umask(), items },
  ];
  for (let next = pending.pop(); next !== undefined; next = pending.pop()) {
    const { from, to } = next;
    options.signal.throwIfAborted();
    // With this mode no other user can plant a link; the final mode is set when the directory is complete.
    await mkdir(to, { mode: 0o700 });
    directories.push(next);
    const files: FileCopy[] = [];
    for (const item of next.items ?? (await options.source.list(from, options.signal))) {
      const name = nameOf(item);
      const [source, target] = [joined(from, name), joined(to, name)];
      const mode = Number.parseInt(item.mode, 8) & MODE_KEPT;
      if (item.is_dir) pending.push({ from: source, to: target, mode });
      else if (item.is_symlink) await symlink(bytesOf(item.symlink_to ?? "", item.symlink_to_base64), target);
      else if (!item.is_regular) specials += 1;
      else files.push({ from: source, to: target, mode, modifiedAt: item.modified_at });
    }
    await copyFiles(options, files);
  }
  for (const { to, mode } of directories.reverse()) await chmod(to, mode);
  return specials;
}

interface FileCopy {
  readonly from: Buffer;
  readonly to: Buffer;
  readonly mode: number;
  readonly modifiedAt: string;
}

/** The first failure aborts the other files. No write is pending after the return, so the tree can be removed. */
async function copyFiles(options: CopyOptions, files: FileCopy[]): Promise<void> {
  const failed = new AbortController();
  const signal = AbortSignal.any([options.signal, failed.signal]);
  const copy = (file: FileCopy): Promise<void> =>
    copyFile({ ...options, signal }, file).catch((error: unknown) => failed.abort(error));
  while (files.length > 0) {
    await Promise.all(files.splice(0, PARALLEL_COUNT).map(copy));
    failed.signal.throwIfAborted();
  }
}

async function copyFile(options: CopyOptions, { from, to, mode, modifiedAt }: FileCopy): Promise<void> {
  await write(to, await options.source.read(from, options.signal));
  await chmod(to, mode);
  await utimes(to, new Date(), new Date(modifiedAt));
}

async function write(path: Buffer, response: Response): Promise<void> {
  await using file = await open(path, "wx");
  const writer = new SparseWriter(file);
  for await (const chunk of response.body ?? []) await writer.write(chunk);
  await writer.end();
}

/** The name as bytes. @throws CliError for an impossible name: the copy must not leave its directory */
function nameOf({ name, name_base64: base64 }: SourceItem): Buffer {
  const bytes = bytesOf(name, base64);
  const isOdd = bytes.includes(0) || bytes.includes("/") || ["", ".", ".."].includes(bytes.toString("latin1"));
  if (isOdd) throw new CliError(`the appliance lists an impossible name: ${JSON.stringify(name)}`);
  return bytes;
}

/** A name or target of a listing, which also has base64 if the bytes are not UTF-8. */
function bytesOf(text: string, base64: string | undefined): Buffer {
  return base64 === undefined ? Buffer.from(text) : Buffer.from(base64, "base64");
}

function joined(directory: Buffer, name: Buffer): Buffer {
  const slash = directory.at(-1) === 0x2f ? "" : "/";
  return Buffer.concat([directory, Buffer.from(slash), name]);
}

async function kindOf(path: string): Promise<"directory" | "other" | null> {
  const stats = await lstat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return null;
    throw error;
  });
  return stats === null ? null : stats.isDirectory() ? "directory" : "other";
}
