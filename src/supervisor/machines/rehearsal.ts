import { chmod, copyFile, mkdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { parseGuestPathText } from "../../domain/guest-path.ts";
import { buildBaseDisk } from "../../oci/base-disk.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { publishFile, scratchDirectory } from "../../system/scratch.ts";
import { GuestTime } from "../instance/guest-time.ts";
import { attachDisks, createScratch, type Guest } from "../instance/steps.ts";
import type { ScratchDisks } from "./scratch-disks.ts";

const BUILD_MS_MAX = 60_000;
/** A clone that waits computes only when nothing else does. */
const REHEARSAL_MS_MAX = 60_000;
const PROGRAM = "/bin/program";
const FILE = parseGuestPathText("/tmp/file");
const CONTENT = new TextEncoder().encode("rehearsal\n");
const FILE_MODE = 0o644;

/**
 * A run of nothing, for clones that wait: an emulated processor translates code when it first runs, which is most of
 * what a short run costs. A clone that has rehearsed is quicker by three quarters of that.
 */
export class Rehearsal {
  readonly #disk: string;
  readonly #scratchDisks: ScratchDisks;
  readonly #diskBytes: number;

  private constructor(disk: string, scratchDisks: ScratchDisks, diskBytes: number) {
    this.#disk = disk;
    this.#scratchDisks = scratchDisks;
    this.#diskBytes = diskBytes;
  }

  /**
   * Makes the disk of an image with one program in it.
   * @param options.program a static executable on the host that ends at once
   */
  static async open(options: {
    readonly layout: DataLayout;
    readonly program: { readonly path: string; readonly hash: string };
    readonly scratchDisks: ScratchDisks;
    readonly diskBytes: number;
  }): Promise<Rehearsal> {
    const { layout, program, scratchDisks, diskBytes } = options;
    const disk = join(layout.scratch, `rehearsal-${program.hash.slice(0, 16)}.disk`);
    if ((await stat(disk).catch(ignoreMissing)) === null) await buildDisk(layout, program.path, disk);
    return new Rehearsal(disk, scratchDisks, diskBytes);
  }

  /** Takes the steps of an instance whose files are captured, and of an import; then takes them back. */
  async perform(guest: Guest): Promise<void> {
    const time = new GuestTime({ allowedMs: () => REHEARSAL_MS_MAX });
    await time.wait("the rehearsal of a waiting machine", this.#perform(guest));
  }

  async #perform({ machine, agent }: Guest): Promise<void> {
    if (machine.detach === undefined) return;
    const path = await createScratch({ machine }, this.#scratchDisks, this.#diskBytes);
    const disks = attachDisks({ machine, agent }, { layers: [this.#disk], scratch: { path, use: "root" } });
    const put = { path: FILE, mode: FILE_MODE, sizeBytes: CONTENT.byteLength, content: once(CONTENT) };
    const prepared = [disks.attached, disks.mounted, agent.putFile(put)];
    const spec = { argv: [PROGRAM], env: {}, cwd: "/root", hostname: "rehearsal", timeoutMs: REHEARSAL_MS_MAX };
    const { started, exit } = agent.exec(spec, () => undefined);
    await Promise.all([...prepared, started, exit]);
    await agent.freeze();
    for (const disk of ["scratch", 0] as const) for await (const _listing of agent.index(disk));
    await agent.release();
    await machine.detach();
  }
}

async function* once(content: Uint8Array): AsyncGenerator<Uint8Array> {
  yield content;
}

async function buildDisk(layout: DataLayout, program: string, disk: string): Promise<void> {
  await using directory = await scratchDirectory(layout.tmp, "rehearsal-");
  const staging = join(directory.path, "staging");
  const copy = join(staging, "upper", PROGRAM);
  await mkdir(join(copy, ".."), { recursive: true });
  await copyFile(program, copy);
  await chmod(copy, 0o755);
  const built = join(directory.path, "disk");
  const signal = AbortSignal.timeout(BUILD_MS_MAX);
  await buildBaseDisk({ launcher: program, staging, path: built, timeoutMs: BUILD_MS_MAX, signal });
  await chmod(built, 0o444);
  await publishFile(built, disk);
}

function ignoreMissing(error: NodeJS.ErrnoException): null {
  if (error.code === "ENOENT") return null;
  throw error;
}
