import { existsSync } from "node:fs";
import { link, lstat, mkdir, open, readdir, rename, rm } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import {
  type BackupContents,
  backupContents,
  checkDatabase,
  foreignId,
  forgetWhatPasses,
  snapshotDatabase,
} from "../../db/backup.ts";
import { openDatabase } from "../../db/database.ts";
import { storageFull } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import { blobPath } from "../../storage/blobs.ts";
import { linkEventLog } from "../../storage/events/event-file.ts";
import { isIndexIntact } from "../../storage/index/index-check.ts";
import { indexPath, layerPath } from "../../storage/layers/layers.ts";
import { type DataLayout, dataLayout, hasData, lockData } from "../../storage/layout.ts";
import { openStaging, removeAbandonedStaging } from "../../storage/staging.ts";
import { TokenKeys } from "../../storage/token-keys.ts";
import { CommandError, run } from "../../system/exec.ts";
import { publishFile, syncPath } from "../../system/scratch.ts";
import { VERSION } from "../../version.ts";

/** Raised with every change that keeps older programs from reading a backup. */
const FORMAT_VERSION = 3;
/** The appliance may remove a file that the snapshot names before the backup links it; a newer snapshot then works. */
const ATTEMPTS_COUNT_MAX = 5;
/** Time limit of tar, in `milliseconds`: long enough for any archive, it only ends a tar that hangs. */
const ARCHIVE_MS_MAX = 86_400_000;
const DATABASE_NAME = "coppice.db";
const MANIFEST_NAME = "manifest.json";
/** Entries of a backup, in the order in which a restore moves them: the database, which makes the rest valid, is last. */
const PARTS = ["keys", "blobs", "events", "layers", DATABASE_NAME] as const;
/** SQLite's files next to an open database, which archives that were packed by hand may contain. */
const DATABASE_COMPANIONS = [`${DATABASE_NAME}-wal`, `${DATABASE_NAME}-shm`];

/** A backup cannot be made or restored; the message is for a person. */
export class BackupError extends Error {
  override readonly name = "BackupError";
}

export interface BackupSummary {
  readonly images: number;
  readonly layers: number;
  readonly files: number;
  /** of the archive */
  readonly sizeBytes: number;
}

interface Manifest {
  readonly format: number;
  readonly version: string;
  readonly created_at: string;
  readonly images: number;
  readonly layers: number;
  readonly files: number;
}

/**
 * Writes one tar archive with the database, the keys, and all files that the database names, as they were at one
 * moment. The appliance may run meanwhile, also one of an older version, whose schema the archive keeps. Hard links hold
 * the files until the archive is written. Merged layers are left out: they are a cache.
 * @throws BackupError; DataAccessError; SchemaTooNewError; the reason of `signal`, after which nothing is left
 */
export async function backUp(dataDirectory: string, archive: string, signal?: AbortSignal): Promise<BackupSummary> {
  const layout = dataLayout(dataDirectory);
  if (!hasData(layout)) throw new BackupError(`there is no database in ${dataDirectory}`);
  await removeAbandonedStaging(layout);
  await using staging = await openStaging(layout, "backup");
  const contents = await stage(layout, staging.path, signal);
  const { images, layers, blobs } = contents;
  const manifest: Manifest = {
    format: FORMAT_VERSION,
    version: VERSION,
    created_at: new Date().toISOString(),
    images,
    layers: layers.length,
    files: blobs.length,
  };
  await Bun.write(join(staging.path, MANIFEST_NAME), `${JSON.stringify(manifest)}\n`, { mode: 0o600 });
  const target = resolve(archive);
  const temporary = join(dirname(target), `.${basename(target)}.partial`);
  await using undo = new AsyncDisposableStack();
  undo.defer(() => removeQuietly(temporary));
  await createPrivate(temporary);
  const form = ["--create", "--format=posix", "--sparse", "--hard-dereference"];
  const owner = ["--numeric-owner", "--owner=0", "--group=0"];
  await tar([...form, ...owner, `--file=${temporary}`, `--directory=${staging.path}`, MANIFEST_NAME, ...PARTS], signal);
  await publishFile(temporary, target);
  return { images, layers: layers.length, files: blobs.length, sizeBytes: Bun.file(target).size };
}

export interface RestoreOptions {
  /**
   * Ends every token that the backup's keys signed. The backup lacks revocations after its creation: without this, those
   * tokens are valid again.
   */
  readonly rotateKeys?: boolean;
  readonly signal?: AbortSignal;
}

/**
 * Makes a data directory from a backup; the directory must be new or have no database. The archive is not trusted: it is
 * refused when it has links, devices or other members than a backup. The whole backup is checked before the first file is
 * moved into place, and the database is the last one.
 * @throws BackupError; SchemaTooNewError; the reason of `signal`, after which there is no database
 */
export async function restore(
  archive: string,
  dataDirectory: string,
  { rotateKeys = false, signal }: RestoreOptions = {},
): Promise<BackupSummary> {
  const layout = dataLayout(dataDirectory);
  if (!existsSync(archive)) throw new BackupError(`there is no ${archive}`);
  await layout.ensure();
  using lock = await lockData(layout);
  if (lock === null) throw new BackupError(`${layout.root} is in use by a running appliance: stop it first`);
  if (existsSync(layout.database)) {
    throw new BackupError(`${layout.root} has a database already: move it away, or restore to another directory`);
  }
  await removeAbandonedStaging(layout);
  await using staging = await openStaging(layout, "restore");
  const options = [
    "--extract",
    "--numeric-owner",
    "--same-permissions",
    "--no-overwrite-dir",
    "--delay-directory-restore",
  ];
  await tar([...options, `--file=${resolve(archive)}`, `--directory=${staging.path}`], signal);
  await requireBackupForm(staging.path, signal);
  const manifest = await readManifest(staging.path);
  await check(staging.path, signal);
  if (rotateKeys) await endTokens(staging.path);
  for (const part of PARTS) {
    if (part === DATABASE_NAME) continue;
    await moveInto(join(staging.path, part), join(layout.root, part));
  }
  await publishFile(join(staging.path, DATABASE_NAME), layout.database);
  const { images, layers, files } = manifest;
  return { images, layers, files, sizeBytes: Bun.file(archive).size };
}

/** Fills a directory with a snapshot of the database and links to all files that the snapshot names. */
async function stage(layout: DataLayout, directory: string, signal?: AbortSignal): Promise<BackupContents> {
  for (let attempt = 1; ; attempt++) {
    signal?.throwIfAborted();
    const path = join(directory, String(attempt));
    await mkdir(path, { mode: 0o700 });
    try {
      const contents = await hold(layout, path, signal);
      // SQLite's files next to the database can vanish meanwhile.
      for (const part of PARTS) await rename(join(path, part), join(directory, part));
      return contents;
    } catch (error) {
      const isGone = (error as NodeJS.ErrnoException).code === "ENOENT";
      if (isGone && attempt < ATTEMPTS_COUNT_MAX) continue;
      if (isGone) throw new BackupError(`a file that the database names is missing: ${(error as Error).message}`);
      throw storageFull(error) === null ? error : new BackupError("there is no room for a backup", { cause: error });
    }
  }
}

async function hold(layout: DataLayout, path: string, signal?: AbortSignal): Promise<BackupContents> {
  const staged = dataLayout(path);
  for (const part of PARTS) if (part !== DATABASE_NAME) await mkdir(join(path, part), { mode: 0o700 });
  {
    using db = openDatabase(layout.database, "keep", { sharesFile: true });
    snapshotDatabase(db, staged.database);
  }
  // The list is read from the snapshot: the database itself may have changed since.
  using snapshot = openDatabase(staged.database, "keep");
  forgetWhatPasses(snapshot);
  const contents = backupContents(snapshot);
  for (const name of await readdir(layout.keys)) await link(join(layout.keys, name), join(staged.keys, name));
  for (const { id } of contents.layers) {
    signal?.throwIfAborted();
    await link(layerPath(layout, id), layerPath(staged, id));
    await link(indexPath(layout, id), indexPath(staged, id));
  }
  for (const sha256 of contents.blobs) {
    signal?.throwIfAborted();
    await mkdir(dirname(blobPath(staged, sha256)), { recursive: true, mode: 0o700 });
    await link(blobPath(layout, sha256), blobPath(staged, sha256));
  }
  for (const id of contents.logs) await linkEventLog(layout, staged, id);
  return contents;
}

/**
 * Refuses an unpacked archive that has other members than a backup, or anything but directories and files with one name.
 * Through a link, files of the host would be read, moved or served in place of the backup's, and SQLite follows the names in
 * a rollback journal. So nothing below `directory`, where only this process may write, is opened before this.
 * @throws BackupError
 */
async function requireBackupForm(directory: string, signal?: AbortSignal): Promise<void> {
  const names: readonly string[] = [MANIFEST_NAME, ...PARTS, ...DATABASE_COMPANIONS];
  const other = (await readdir(directory)).find((name) => !names.includes(name));
  if (other !== undefined)
    throw new BackupError(`this is not a backup of an appliance: it has ${JSON.stringify(other)}`);
  for (const name of names) await requirePlainFiles(directory, name, signal);
}

/** @param path below the directory; may be absent */
async function requirePlainFiles(directory: string, path: string, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  const status = await lstat(join(directory, path)).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOENT") throw error;
    return null;
  });
  if (status?.isDirectory()) {
    for (const name of await readdir(join(directory, path))) {
      await requirePlainFiles(directory, join(path, name), signal);
    }
  } else if (status !== null && !(status.isFile() && status.nlink === 1)) {
    const name = JSON.stringify(path);
    throw new BackupError(`${name} in the archive is not a file or directory of its own: a backup has no links`);
  }
}

async function readManifest(directory: string): Promise<Manifest> {
  const file = Bun.file(join(directory, MANIFEST_NAME));
  if (!(await file.exists())) throw new BackupError("this is not a backup of an appliance");
  const manifest = (await file.json()) as Manifest;
  if (manifest.format !== FORMAT_VERSION) {
    throw new BackupError(`the backup has format ${manifest.format}; this program reads ${FORMAT_VERSION}`);
  }
  return manifest;
}

/** Checks that every file that the database names exists and is complete. @throws BackupError if one is not */
async function check(directory: string, signal?: AbortSignal): Promise<void> {
  const staged = dataLayout(directory);
  for (const part of PARTS) {
    if (!existsSync(join(directory, part))) throw new BackupError(`the backup is incomplete: ${part} is missing`);
  }
  using db = openDatabase(staged.database);
  const problem = checkDatabase(db);
  if (problem !== null) throw new BackupError(`the database of the backup is damaged: ${problem}`);
  const foreign = foreignId(db);
  if (foreign !== null) throw new BackupError(`the database of the backup has a wrong id: ${JSON.stringify(foreign)}`);
  // Backups of other versions may have rows of merged layers, without their files.
  forgetWhatPasses(db);
  const contents = backupContents(db);
  for (const { id, diskBytes } of contents.layers) {
    signal?.throwIfAborted();
    const disk = await lstat(layerPath(staged, id)).catch(() => null);
    if (disk?.size !== diskBytes) throw new BackupError(`the backup is incomplete: the disk of layer ${id}`);
    const damaged = `the backup is incomplete: the index of layer ${id}`;
    try {
      if (!(await isIndexIntact(indexPath(staged, id), signal))) throw new BackupError(damaged);
    } catch (error) {
      if (signal?.aborted === true || error instanceof BackupError) throw error;
      throw new BackupError(damaged, { cause: error });
    }
  }
  for (const sha256 of contents.blobs) {
    const file = Bun.file(blobPath(staged, sha256));
    const hash = new Bun.CryptoHasher("sha256");
    if (await file.exists()) {
      for await (const chunk of file.stream()) {
        signal?.throwIfAborted();
        hash.update(chunk);
      }
    }
    if (hash.digest("hex") !== sha256)
      throw new BackupError(`the backup is incomplete: the file with SHA-256 ${sha256}`);
  }
}

/** Makes a new signing key, and ends the keys of the backup. */
async function endTokens(directory: string): Promise<void> {
  const keys = await TokenKeys.open(dataLayout(directory).keys);
  await keys.rotate(0);
}

/** Moves the content of a directory to another one, which may hold files of an earlier attempt. */
async function moveInto(from: string, to: string): Promise<void> {
  await mkdir(to, { recursive: true, mode: 0o700 });
  for (const entry of await readdir(from, { withFileTypes: true })) {
    const [source, target] = [join(from, entry.name), join(to, entry.name)];
    if (entry.isDirectory()) await moveInto(source, target);
    else await rename(source, target);
  }
  await syncPath(to);
}

/** Makes an empty file that only its owner can ever read: the archive has the keys that sign tokens. */
async function createPrivate(path: string): Promise<void> {
  // A process that has an existing file open could read what is written to it.
  await rm(path, { force: true });
  const file = await open(path, "wx", 0o600);
  await file.close();
}

async function tar(args: readonly string[], signal: AbortSignal | undefined): Promise<void> {
  try {
    await run({ argv: ["tar", ...args], timeoutMs: ARCHIVE_MS_MAX, ...given({ signal }) });
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    throw new BackupError(error.stderrTail || error.message, { cause: error });
  }
}

/** Removes the temporary file, which has another name once it is published. */
async function removeQuietly(path: string): Promise<void> {
  if (existsSync(path)) await Bun.file(path).delete();
}
