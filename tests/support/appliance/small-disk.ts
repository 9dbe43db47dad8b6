import { mkdir, rm, statfs, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CommandError, run } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { pause } from "../waiting.ts";

const TOOL_MS = 60_000;
const UNMOUNT_ATTEMPTS_COUNT = 20;
const UNMOUNT_PAUSE_MS = 250;
const FILL_ATTEMPTS_COUNT = 50;
/** Blocks that the file system reserves for itself. */
const SLACK_BYTES = 65_536;

/** A file system of a given size on its own loop device, which a test can fill. */
export class SmallDisk implements AsyncDisposable {
  readonly path: string;
  readonly #image: string;
  readonly #owned: AsyncDisposableStack;

  private constructor(path: string, image: string, owned: AsyncDisposableStack) {
    this.path = path;
    this.#image = image;
    this.#owned = owned;
  }

  /** An ext4. @param files maximum number of files */
  static make(sizeBytes: number, files: number): Promise<SmallDisk> {
    return SmallDisk.#make(sizeBytes, ["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-N", String(files)]);
  }

  /** An XFS, which can share blocks between files; at least 300 MiB. */
  static makeSharing(sizeBytes: number): Promise<SmallDisk> {
    return SmallDisk.#make(sizeBytes, ["mkfs.xfs", "-q", "-m", "reflink=1"]);
  }

  /** @param maker program that makes the file system in the image at the path in its last argument */
  static async #make(sizeBytes: number, maker: readonly [string, ...string[]]): Promise<SmallDisk> {
    await using stack = new AsyncDisposableStack();
    const home = stack.use(await scratchDirectory(tmpdir(), "small-disk-")).path;
    const image = join(home, "image");
    const path = join(home, "mount");
    await mkdir(path);
    await writeFile(image, "");
    await truncate(image, sizeBytes);
    await tool(...maker, image);
    const device = (await tool("losetup", "--find", "--show", image)).trim();
    stack.defer(async () => void (await tool("losetup", "-d", device)));
    await tool("mount", device, path);
    stack.defer(() => unmount(path));
    return new SmallDisk(path, image, stack.move());
  }

  async freeBytes(): Promise<number> {
    const { bavail, bsize } = await statfs(this.path);
    return bavail * bsize;
  }

  /** Fills all space but `leftBytes`, also while other processes write to the disk. */
  async fill(leftBytes: number): Promise<void> {
    for (let attempt = 1; !(await this.#takeAllBut(leftBytes)); attempt++) {
      if (attempt === FILL_ATTEMPTS_COUNT) throw new Error(`others write to ${this.path} faster than it can be filled`);
    }
    if (leftBytes === 0) await this.#fillRest();
  }

  /** False when other processes used some of the free space before the ballast could. */
  async #takeAllBut(leftBytes: number): Promise<boolean> {
    await this.release();
    const bytes = (await this.freeBytes()) - leftBytes - SLACK_BYTES;
    if (bytes <= 0) return true;
    try {
      await tool("fallocate", "-l", String(bytes), this.#ballast);
      return true;
    } catch (error) {
      if (error instanceof CommandError && error.stderrTail.includes("No space left")) return false;
      throw error;
    }
  }

  /** Creates files until only `left` more are possible. */
  async fillFiles(left: number): Promise<void> {
    await this.release();
    const { ffree } = await statfs(this.path);
    const make = 'mkdir "$1" && cd "$1" && seq "$2" | xargs touch';
    await tool("sh", "-c", make, "sh", `${this.#ballast}-files`, String(ffree - left));
  }

  /** Frees the space and the files that `fill` and `fillFiles` have used. */
  async release(): Promise<void> {
    await rm(`${this.#ballast}-files`, { recursive: true, force: true });
    await rm(this.#ballast, { force: true });
    await rm(`${this.#ballast}-rest`, { force: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }

  /** Checks the unused file system. @throws CommandError when it is damaged */
  async check(): Promise<void> {
    await tool("sync", "-f", this.path);
    await tool("e2fsck", "-fn", this.#image);
  }

  get #ballast(): string {
    return join(this.path, "ballast");
  }

  async #fillRest(): Promise<void> {
    const bytes = new Uint8Array(4 * SLACK_BYTES);
    await writeFile(`${this.#ballast}-rest`, bytes).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOSPC") throw error;
    });
  }
}

/**
 * Processes that were just killed, or that inspect all processes of the host, may still hold the disk. This process may
 * hold it, too: a closed database stays open until its statements are garbage-collected.
 */
async function unmount(path: string): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      await tool("umount", path);
      return;
    } catch (error) {
      if (
        !String((error as { stderrTail?: string }).stderrTail).includes("busy") ||
        attempt === UNMOUNT_ATTEMPTS_COUNT
      ) {
        throw error;
      }
      Bun.gc(true);
      await pause("it may be free then", UNMOUNT_PAUSE_MS);
    }
  }
}

async function tool(...argv: [string, ...string[]]): Promise<string> {
  return Buffer.from((await run({ argv, timeoutMs: TOOL_MS })).stdout).toString();
}
