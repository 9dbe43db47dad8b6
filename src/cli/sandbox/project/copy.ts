import { lstatSync } from "node:fs";
import { join, posix } from "node:path";
import { pathOfPlace } from "../../../client/place.ts";
import { CommandError, run } from "../../../system/exec.ts";
import { CliError } from "../../command.ts";
import { showProgress } from "../../wait.ts";
import type { Project } from "./project.ts";
import type { StepContext } from "./steps.ts";

/** Largest number of files of a project that is copied. */
const FILES_COUNT_MAX = 10_000;
const GIT_MS_MAX = 60_000;
const NAMES_BYTES_MAX = 16_777_216;
/** Files that are copied at the same time. */
const TOGETHER_COUNT = 8;

interface Owner {
  readonly uid: number;
  readonly gid: number;
}

interface Copied {
  /** relative to the directory of the project */
  readonly path: string;
  readonly mode: string;
}

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
  const names = withFiles ? await namesOf(directory) : [];
  if (names.length > FILES_COUNT_MAX) {
    throw new CliError(`${directory} has more than ${FILES_COUNT_MAX} files to copy; --no-copy leaves them here`);
  }
  await makeTarget(context, target);
  const files = names.flatMap((path) => copiedOf(directory, path));
  await copyFiles(context, { directory, target, files });
  const left = names.length - files.length;
  if (left > 0) context.io.stderr(`coppice up: ${left} symlinks and special files were not copied\n`);
}

const filesPath = ({ sandbox }: StepContext): string => `${pathOfPlace({ sandbox: sandbox.uuid })}/files`;

/** Makes the directory, which belongs to the user of the sandbox. */
async function makeTarget(context: StepContext, path: string): Promise<void> {
  const { client, sandbox } = context;
  const parent = filesPath(context);
  await client.call("POST", `${parent}/directory`, { json: { path, user: "root", parents: true } });
  if (sandbox.user === null) return;
  const owner = await ownerOf(context, sandbox.user);
  await client.call("PATCH", `${parent}/attributes`, { json: { path, user: "root", ...owner } });
}

async function copyFiles(
  context: StepContext,
  {
    directory,
    target,
    files,
  }: { readonly directory: string; readonly target: string; readonly files: readonly Copied[] },
): Promise<void> {
  const { client, io, sandbox } = context;
  using progress = showProgress(io, `copying ${directory}`);
  let doneCount = 0;
  const waiting = files.values();
  const copyNext = async (): Promise<void> => {
    for (const { path, mode } of waiting) {
      const query = { path: posix.join(target, path), mode, user: sandbox.user ?? "root" };
      const body = Bun.file(join(directory, path));
      await client.call("PUT", filesPath(context), { query, body, deadline: false });
      doneCount += 1;
      progress.note(`${doneCount} of ${files.length} files`);
    }
  };
  await Promise.all(Array.from({ length: TOGETHER_COUNT }, copyNext));
}

/** Ids of a user by name. The guest's own list of users is used when a file is made. */
async function ownerOf(context: StepContext, user: string): Promise<Owner> {
  const { client } = context;
  const parent = filesPath(context);
  const query = { path: `/tmp/.coppice-${crypto.randomUUID()}`, user };
  const { entry } = await client.exchange<{ readonly entry: Owner }>("PUT", parent, { query, body: new Blob([]) });
  await client.call("DELETE", parent, { query });
  return { uid: entry.uid, gid: entry.gid };
}

/** The file to copy; nothing for other kinds, and for a file that is in git's index but not here. */
function copiedOf(directory: string, path: string): Copied[] {
  const stats = lstatSync(join(directory, path), { throwIfNoEntry: false });
  if (stats === undefined || !stats.isFile()) return [];
  return [{ path, mode: (stats.mode & 0o777).toString(8).padStart(4, "0") }];
}

/** Paths of the files of a directory, relative to it. */
async function namesOf(directory: string): Promise<string[]> {
  const argv = ["git", "-C", directory, "ls-files", "-z", "--cached", "--others", "--exclude-standard"];
  const listed = await run({ argv, timeoutMs: GIT_MS_MAX, stdoutBytesMax: NAMES_BYTES_MAX }).catch((error: unknown) => {
    // There is no git here, or no repository.
    if (error instanceof CommandError) return null;
    throw error;
  });
  if (listed !== null) {
    const text = new TextDecoder().decode(listed.stdout);
    return text.split("\0").filter((name) => name !== "");
  }
  const names: string[] = [];
  for await (const name of new Bun.Glob("**").scan({ cwd: directory, dot: true, onlyFiles: true })) {
    if (name.split("/")[0] !== ".git") names.push(name);
    if (names.length > FILES_COUNT_MAX) break;
  }
  return names;
}
