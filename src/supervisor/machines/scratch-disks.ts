import { stat } from "node:fs/promises";
import { join } from "node:path";
import { buildScratchTemplate, stampScratch } from "../../oci/scratch-disk.ts";
import { publishFile, scratchDirectory } from "../../system/scratch.ts";

/** Smallest scratch disk in `bytes`: the file system's own tables need a few MiB. */
const DISK_BYTES_MIN = 64 * 1_048_576;

/** Formatted, empty scratch disks, one file per size, of which every instance gets a sparse copy. */
export class ScratchDisks {
  readonly #directory: string;
  readonly #temporary: string;
  readonly #templates = new Map<number, Promise<string>>();

  /** @param directories where the templates live, and where they are made */
  constructor(directories: { readonly templates: string; readonly temporary: string }) {
    this.#directory = directories.templates;
    this.#temporary = directories.temporary;
  }

  /** Makes the template of a size ahead of its first use. */
  async prepare(diskBytes: number): Promise<void> {
    await this.#template(scratchBytes(diskBytes));
  }

  /** Writes an empty disk of at least `diskBytes` to `path`. */
  async create(diskBytes: number, path: string): Promise<void> {
    await stampScratch(await this.#template(scratchBytes(diskBytes)), path);
  }

  #template(diskBytes: number): Promise<string> {
    const known = this.#templates.get(diskBytes);
    if (known !== undefined) return known;
    const made = this.#make(diskBytes);
    this.#templates.set(diskBytes, made);
    // The next instance tries again: the cause may be a full disk.
    made.catch(() => this.#templates.delete(diskBytes));
    return made;
  }

  async #make(diskBytes: number): Promise<string> {
    const path = join(this.#directory, `${diskBytes}.ext4`);
    if (await stat(path).catch(() => null)) return path;
    await using directory = await scratchDirectory(this.#temporary, "scratch-");
    const temporary = join(directory.path, "disk");
    await buildScratchTemplate(temporary, diskBytes);
    await publishFile(temporary, path);
    return path;
  }
}

/** Virtual size of the disk that a request for `diskBytes` gets: the next power of two, so that there are few. */
export function scratchBytes(diskBytes: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(diskBytes, DISK_BYTES_MIN)));
}
