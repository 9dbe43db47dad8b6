import { lstat, readdir } from "node:fs/promises";
import { basename } from "node:path";
import type { Client } from "../../client/client.ts";
import { ResponseError } from "../../client/errors.ts";
import { changeFile, type FileAt, makeDirectory, statFile, writeFile } from "../../client/guest-files.ts";
import type { GuestEntry } from "../../client/types.ts";
import { CliError } from "../command.ts";
import type { PlaceSourceOptions } from "./place-path.ts";

/** Files that are uploaded at the same time. */
const PARALLEL_COUNT = 8;
/** Bits of a mode that a copy keeps, without setuid and setgid. */
const MODE_KEPT = 0o777;

export interface CopyInOptions extends PlaceSourceOptions {
  readonly client: Client;
  readonly local: string;
  /** path of the copy, or of an existing directory for it */
  readonly path: string;
  readonly signal: AbortSignal;
}

/**
 * Copies a local file or tree into what runs, with its permissions. Other files than regular ones are left out; `leftOut`
 * counts them.
 * @throws CliError, ResponseError
 */
export async function copyIn(options: CopyInOptions): Promise<{ readonly leftOut: number }> {
  const stats = await lstat(options.local).catch((error: NodeJS.ErrnoException) => {
    throw new CliError(`cannot read ${options.local}: ${error.message}`);
  });
  const existing = await entryAt(options, options.path);
  const isInside = existing?.type === "directory";
  const name = basename(options.local);
  const path = isInside ? `${options.path.replace(/\/+$/, "")}/${name}` : options.path;
  if (stats.isDirectory()) {
    if (existing !== null && !isInside) throw new CliError(`${options.path} exists, and is not a directory`);
    return await copyTree(options, { local: Buffer.from(options.local), path: Buffer.from(path), mode: stats.mode });
  }
  await upload(options, { local: Buffer.from(options.local), path: Buffer.from(path), mode: stats.mode });
  return { leftOut: 0 };
}

/** A local file, and the path of its copy. */
export interface FileUpload {
  readonly local: Buffer;
  readonly path: Buffer;
  readonly mode: number;
}

async function copyTree(options: CopyInOptions, top: FileUpload): Promise<{ readonly leftOut: number }> {
  let leftOut = 0;
  const directories: FileUpload[] = [];
  const pending = [top];
  for (let next = pending.pop(); next !== undefined; next = pending.pop()) {
    await makeDirectory(options.client, at(options, next.path), { parents: true });
    directories.push(next);
    const files: FileUpload[] = [];
    for (const name of await readdir(next.local, { encoding: "buffer" })) {
      const [local, path] = [joined(next.local, name), joined(next.path, name)];
      const stats = await lstat(local);
      if (stats.isDirectory()) pending.push({ local, path, mode: stats.mode });
      else if (stats.isFile()) files.push({ local, path, mode: stats.mode });
      else leftOut += 1;
    }
    await uploadAll(options, files);
  }
  // A directory may not be writable to its user, so it gets its mode when all of it is there.
  for (const { path, mode } of directories.reverse()) {
    await changeFile(options.client, at(options, path), { mode: modeText(mode) });
  }
  return { leftOut };
}

type Uploading = Pick<CopyInOptions, "client" | "place" | "user" | "signal">;

/** Copies files, and empties the list. The first failure aborts the other files. @throws ResponseError */
export async function uploadAll(options: Uploading, files: FileUpload[]): Promise<void> {
  const failed = new AbortController();
  const signal = AbortSignal.any([options.signal, failed.signal]);
  const send = (file: FileUpload): Promise<void> =>
    upload({ ...options, signal }, file).catch((error: unknown) => failed.abort(error));
  while (files.length > 0) {
    await Promise.all(files.splice(0, PARALLEL_COUNT).map(send));
    failed.signal.throwIfAborted();
  }
}

async function upload(options: Uploading, { local, path, mode }: FileUpload): Promise<void> {
  await writeFile(options.client, at(options, path), Bun.file(new Uint8Array(local)), { mode: modeText(mode) });
}

function at({ place, user, signal }: Uploading, path: FileAt["path"]): FileAt {
  return { place, user, signal, path };
}

/** The path of an entry of a directory. */
export function joined(directory: Buffer, name: Buffer): Buffer {
  return Buffer.concat([directory, Buffer.from("/"), name]);
}

function modeText(mode: number): string {
  return (mode & MODE_KEPT).toString(8).padStart(4, "0");
}

/** The entry at a path; null: there is none. */
async function entryAt(options: CopyInOptions, path: string): Promise<GuestEntry | null> {
  try {
    return await statFile(options.client, at(options, path));
  } catch (error) {
    // The instance may be unknown as well, which the next request reports.
    if (error instanceof ResponseError && error.status === 404 && error.details["errno"] !== undefined) return null;
    throw error;
  }
}
