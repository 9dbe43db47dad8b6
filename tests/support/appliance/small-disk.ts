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
/** Blocks that the file system gives to nobody but what it needs itself. */
const SLACK_BYTES = 65_536;

/** A file system of a given size on a loop device of its own, which a test can fill. */
export class SmallDisk implements AsyncDisposable {
  readonly path: string;
  readonly #image: string;
  readonly #owned: AsyncDisposableStack;

  private constructor(path: string, image: string, owned: AsyncDisposableStack) {
    this.path = path;
    this.#image = image;
    this.#owned = owned;
  }

  /** Of ext4. @param files how many it can hold */
  static make(sizeBytes: number, files: number): Promise<SmallDisk> {
    return SmallDisk.#make(sizeBytes, ["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-N", String(files)]);
  }

  /** Of XFS, which can share blocks between files; 300 MiB at least. */
  static makeSharing(sizeBytes: number): Promise<SmallDisk> {
    return SmallDisk.#make(sizeBytes, ["mkfs.xfs", "-q", "-m", "reflink=1"]);
  }

  /** @param maker program that makes the file system in the image whose path comes last */
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

  /** Fills everything but `leftBytes`, also while others write to the disk. */
  async fill(leftBytes: number): Promise<void> {
    for (let attempt = 1; !(await this.#takeAllBut(leftBytes)); attempt++) {
      if (attempt === FILL_ATTEMPTS_COUNT) throw new Error(`others write to ${this.path} faster than it can be filled`);
    }
    if (leftBytes === 0) await this.#fillRest();
  }

  /** False when others took some of the free space before the ballast could. */
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

  /** Makes files until only `left` more are possible. */
  async fillFiles(left: number): Promise<void> {
    await this.release();
    const { ffree } = await statfs(this.path);
    const make = 'mkdir "$1" && cd "$1" && seq "$2" | xargs touch';
    await tool("sh", "-c", make, "sh", `${this.#ballast}-files`, String(ffree - left));
  }

  /** Frees what `fill` and `fillFiles` have taken. */
  async release(): Promise<void> {
    await rm(`${this.#ballast}-files`, { recursive: true, force: true });
    await rm(this.#ballast, { force: true });
    await rm(`${this.#ballast}-rest`, { force: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }

  /** @throws CommandError when the file system, which nothing uses now, is damaged */
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
 * Processes that were just killed, or that inspect all processes of the host, may still hold the disk. So may this one: a
 * closed database stays open until the garbage of its statements is collected.
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
