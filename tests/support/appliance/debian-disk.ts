import { existsSync } from "node:fs";
import { copyFile, mkdir, readdir, rename, symlink } from "node:fs/promises";
import { join, resolve } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { BusyboxAppliance } from "./busybox-appliance.ts";

const ROOT = resolve(import.meta.dir, "../../..");
const CACHE = join(ROOT, "build/debian");
const SCRIPT = join(import.meta.dir, "debian-root.sh");
const CONTROL = join(import.meta.dir, "debian-control.sh");
/** Enough for a mirror that is far away. */
const DISK_MS_MAX = 1_200_000;
const BUILD_MS_MAX = 600_000;
const GIT_MS_MAX = 30_000;
const COPY_MS_MAX = 60_000;
const LOG_BYTES_MAX = 16_777_216;

/** Path of the disk with Debian. The first call builds it, which needs a network and some minutes. */
export async function debianDisk(): Promise<string> {
  const kernel = await kernelPackage();
  const hasher = new Bun.CryptoHasher("sha256");
  for (const path of [SCRIPT, CONTROL]) hasher.update(await Bun.file(path).bytes());
  hasher.update(kernel);
  const disk = join(CACHE, `root-${hasher.digest("hex").slice(0, 16)}.ext4`);
  if (existsSync(disk)) return disk;
  process.stderr.write("building a Debian system, once: this needs a network and some minutes\n");
  await mkdir(CACHE, { recursive: true });
  const argv = ["nice", "-n", "5", "bash", SCRIPT, kernel, CONTROL, disk];
  await run({ argv, timeoutMs: DISK_MS_MAX, stdoutBytesMax: LOG_BYTES_MAX });
  return disk;
}

/** The package that contains the guest's kernel. */
async function kernelPackage(): Promise<string> {
  const directory = join(ROOT, "build/kernel");
  const names = existsSync(directory) ? await readdir(directory) : [];
  const name = names
    .filter((each) => each.endsWith(".deb"))
    .sort()
    .at(-1);
  if (name === undefined) throw new Error(`${directory} has no kernel: make assets`);
  return join(directory, name);
}

export interface Build {
  readonly path: string;
  readonly revision: string;
}

/**
 * An executable of an earlier commit of this repository: the last one with another database schema, but not before the
 * program could be installed.
 */
export async function previousBuild(): Promise<Build> {
  const migrated = await git("log", "-1", "--format=%H", "--", "src/db/migrations/meta/_journal.json");
  const installed = await git("log", "--diff-filter=A", "--format=%H", "--", "src/cli/install/command.ts");
  if (migrated === "" || installed === "") throw new Error("this needs the history: git fetch --unshallow");
  const isOlder = await git("rev-list", "--count", `${migrated}^..${installed}`);
  const commit = await git("rev-parse", isOlder === "0" ? `${migrated}^` : installed);
  const revision = commit.slice(0, 12);
  const directory = join(CACHE, `previous-${revision}`);
  const path = join(directory, "dist/coppice");
  if (!existsSync(path)) await build(revision, directory);
  return { path, revision };
}

async function build(revision: string, directory: string): Promise<void> {
  process.stderr.write(`building coppice of ${revision}, once\n`);
  await mkdir(CACHE, { recursive: true });
  await using staging = await scratchDirectory(CACHE, "previous-");
  const tree = join(staging.path, "tree");
  await mkdir(join(tree, "build/kernel"), { recursive: true });
  const archive = join(staging.path, "tree.tar");
  await git("archive", "--format=tar", "-o", archive, revision);
  await run({ argv: ["tar", "-x", "-f", archive, "-C", tree], timeoutMs: COPY_MS_MAX });
  const kernel = await kernelPackage();
  await copyFile(kernel, join(tree, "build/kernel", kernel.split("/").at(-1) ?? ""));
  await symlink(join(ROOT, "node_modules"), join(tree, "node_modules"));
  const env = { PATH: process.env["PATH"] ?? "", HOME: process.env["HOME"] ?? "/root" };
  const commands = [
    ["make", "-s", "-C", "vm-assets"],
    [process.execPath, "src/tools/build.ts", "--revision", revision],
  ];
  for (const command of commands) {
    const argv = ["nice", "-n", "5", ...command];
    await run({ argv, cwd: tree, env, timeoutMs: BUILD_MS_MAX, stdoutBytesMax: LOG_BYTES_MAX });
  }
  await rename(tree, directory);
}

/** Access to the data of an appliance. */
export interface Kept {
  /** of the account that owns all objects */
  readonly token: string;
}

/**
 * Writes two archives: a busybox image, as images travel without a registry; and the data of an appliance that the previous
 * build ran on this host, where it is fast. That data has the image as `base`, and the image `kept` of a run on it that
 * wrote "precious" to /root/kept.
 */
export async function writeArchives(
  previous: Build,
  to: { readonly image: string; readonly data: string },
): Promise<Kept> {
  await using setup = await BusyboxAppliance.start({ executable: previous.path, tag: "base" });
  const { appliance, reference, image } = setup;
  const options = ["--quiet", "--insecure-policy", "--src-tls-verify=false"];
  const copy = ["skopeo", "copy", ...options, `docker://${reference}`, `oci-archive:${to.image}`];
  await run({ argv: copy, timeoutMs: COPY_MS_MAX });
  const { token } = appliance;
  const command = ["run", "--image", image, "--tag", "kept", "--", "sh", "-c", "echo precious > /root/kept"];
  const { code, stderr } = await appliance.command(command);
  if (code !== 0) throw new Error(`the previous build runs nothing: ${stderr}`);
  await appliance.down();
  const transient = ["assets", "tmp", "vms", "probe.json"].map((name) => `--exclude=./${name}`);
  const argv = ["tar", "-c", "-S", ...transient, "-C", appliance.dataDir, "-f", to.data, "."];
  await run({ argv, timeoutMs: COPY_MS_MAX });
  return { token };
}

async function git(...argv: string[]): Promise<string> {
  const { stdout } = await run({ argv: ["git", "-C", ROOT, ...argv], timeoutMs: GIT_MS_MAX });
  return Buffer.from(stdout).toString("utf8").trim();
}
