import { chmod, copyFile, mkdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { parseGuestPathText } from "../../domain/tree/guest-path.ts";
import type { Log } from "../../log.ts";
import { buildBaseDisk } from "../../oci/base-disk.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { publishFile, scratchDirectory } from "../../system/scratch.ts";
import type { VmAssets } from "../../vm/assets.ts";
import type { PoolOptions } from "../../vm/pool.ts";
import { GuestTime } from "./guest-time.ts";
import type { ScratchDisks } from "./scratch-disks.ts";
import { attachDisks, createScratch, type Guest } from "./steps.ts";

const BUILD_MS_MAX = 60_000;
/** Generous, because a waiting clone gets only processor time that no other work needs. */
const REHEARSAL_MS_MAX = 60_000;
const PROGRAM = "/bin/program";
const FILE = parseGuestPathText("/tmp/file");
const CONTENT = new TextEncoder().encode("rehearsal\n");
const FILE_MODE = 0o644;

/**
 * The pool's option for emulated machines, whose waiting clones rehearse; empty when the disk for rehearsals cannot be
 * built. `src/vm/DESIGN.md` lists all code that only emulation needs.
 */
export async function openRehearsal(
  options: {
    readonly layout: DataLayout;
    readonly scratchDisks: ScratchDisks;
    readonly diskBytes: number;
    readonly log: Log;
  },
  { launcher, hash }: VmAssets,
): Promise<Pick<PoolOptions, "rehearse">> {
  try {
    const rehearsal = await Rehearsal.open({ ...options, program: { path: launcher, hash } });
    return { rehearse: (waiting) => rehearsal.perform(waiting) };
  } catch (error) {
    // Machines run without rehearsals, too, only slower.
    options.log.warn("cannot rehearse machines", { error });
    return {};
  }
}

/**
 * Warms up waiting clones with a run that does nothing. An emulated processor translates code when it first executes it,
 * which is most of the time of a short run; a rehearsal saves three quarters of that.
 */
class Rehearsal {
  readonly #disk: string;
  readonly #scratchDisks: ScratchDisks;
  readonly #diskBytes: number;

  private constructor(disk: string, scratchDisks: ScratchDisks, diskBytes: number) {
    this.#disk = disk;
    this.#scratchDisks = scratchDisks;
    this.#diskBytes = diskBytes;
  }

  /**
   * Builds the disk of an image that has one program, unless it exists.
   * @param options.program a static executable on the host that exits at once
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

  /** Goes through the steps of a captured run and of an import, and then detaches the disks again. */
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
