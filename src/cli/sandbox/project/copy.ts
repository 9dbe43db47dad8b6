import { lstatSync } from "node:fs";
import { changeFile, makeDirectory, removeFile, writeFile } from "../../../client/guest-files.ts";
import { CommandError, run } from "../../../system/exec.ts";
import { CliError } from "../../command.ts";
import { type FileUpload, joined, uploadAll } from "../../files/copy-in.ts";
import { interruptible, showProgress } from "../../wait.ts";
import type { Project } from "./project.ts";
import type { StepContext } from "./steps.ts";

/** Largest number of files of a project that is copied. */
const FILES_COUNT_MAX = 10_000;
const GIT_MS_MAX = 60_000;
const NAMES_BYTES_MAX = 16_777_216;

/**
 * Makes the directory of a project in its sandbox, and copies the files of the project to it: all, or in a repository those
 * that git has or would add. They belong to the user of the sandbox. Symlinks and special files are left out, which is
 * reported.
 * @param withFiles false: only the directory is made
 * @throws CliError for too many files, ResponseError
 */
export async function copyProject(context: StepContext, project: Project, withFiles: boolean): Promise<void> {
  const { target, directory } = project;
  if (target === null) return;
  const { client, io, sandbox } = context;
  const names = withFiles ? await namesOf(directory) : [];
  if (names.length > FILES_COUNT_MAX) {
    throw new CliError(`${directory} has more than ${FILES_COUNT_MAX} files to copy; --no-copy leaves them here`);
  }
  const files = names.flatMap((name) => uploadOf(Buffer.from(directory), name, Buffer.from(target)));
  const leftOut = names.length - files.length;
  await makeTarget(context, target);
  using _progress = showProgress(io, `copying ${directory}`);
  const place = { sandbox: sandbox.uuid };
  await interruptible(io, (signal) => uploadAll({ client, place, user: sandbox.user ?? "root", signal }, files));
  if (leftOut > 0) io.stderr(`coppice up: ${leftOut} symlinks and special files were not copied\n`);
}

/** Makes the directory, which belongs to the user of the sandbox. */
async function makeTarget({ client, sandbox }: StepContext, path: string): Promise<void> {
  const place = { sandbox: sandbox.uuid };
  const directory = { place, path, user: "root" };
  await makeDirectory(client, directory);
  if (sandbox.user === null) return;
  // The guest has the ids of a name: a new file shows them.
  const probe = { place, path: `/tmp/.coppice-${crypto.randomUUID()}`, user: sandbox.user };
  const { uid, gid } = await writeFile(client, probe, new Blob([]));
  await removeFile(client, probe);
  await changeFile(client, directory, { owner: { uid, gid } });
}

/** The copy of a file; nothing for other kinds, and for a file that is in git's index but not here. */
function uploadOf(directory: Buffer, name: Buffer, target: Buffer): FileUpload[] {
  const local = joined(directory, name);
  const stats = lstatSync(local, { throwIfNoEntry: false });
  return stats?.isFile() === true ? [{ local, path: joined(target, name), mode: stats.mode }] : [];
}

/** Paths of the files of a directory, relative to it. */
async function namesOf(directory: string): Promise<Buffer[]> {
  const argv = ["git", "-C", directory, "ls-files", "-z", "--cached", "--others", "--exclude-standard"];
  const listed = await run({ argv, timeoutMs: GIT_MS_MAX, stdoutBytesMax: NAMES_BYTES_MAX }).catch((error: unknown) => {
    // There is no git here, or no repository.
    if (error instanceof CommandError) return null;
    throw error;
  });
  if (listed !== null) return partsOf(Buffer.from(listed.stdout));
  const names: Buffer[] = [];
  for await (const name of new Bun.Glob("**").scan({ cwd: directory, dot: true, onlyFiles: true })) {
    if (name.split("/")[0] !== ".git") names.push(Buffer.from(name));
    if (names.length > FILES_COUNT_MAX) break;
  }
  return names;
}

/** Names that each end with a zero byte. */
function partsOf(bytes: Buffer): Buffer[] {
  const names: Buffer[] = [];
  for (let from = 0; from < bytes.byteLength; ) {
    const end = bytes.indexOf(0, from);
    names.push(bytes.subarray(from, end));
    from = end + 1;
  }
  return names;
}
