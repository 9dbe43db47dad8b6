import { stat } from "node:fs/promises";
import { join } from "node:path";
import { buildScratchTemplate, createScratch } from "../../oci/scratch-disk.ts";
import { publishFile, scratchDirectory } from "../../system/scratch.ts";

/** Smallest scratch disk in `bytes`; the file system's own tables need a few MiB of it. */
const DISK_BYTES_MIN = 64 * 1_048_576;

/** Creates scratch disks as sparse copies of formatted, empty templates, one template for each size. */
export class ScratchDisks {
  readonly #directory: string;
  readonly #temporary: string;
  readonly #templates = new Map<number, Promise<string>>();

  /** @param directories `templates` holds finished templates; they are built in `temporary` */
  constructor(directories: { readonly templates: string; readonly temporary: string }) {
    this.#directory = directories.templates;
    this.#temporary = directories.temporary;
  }

  /** Builds the template of a size before its first use. */
  async prepare(diskBytes: number): Promise<void> {
    await this.#template(scratchBytes(diskBytes));
  }

  /** Writes an empty disk of at least `diskBytes` to `path`. */
  async create(diskBytes: number, path: string): Promise<void> {
    await createScratch(await this.#template(scratchBytes(diskBytes)), path);
  }

  #template(diskBytes: number): Promise<string> {
    const cached = this.#templates.get(diskBytes);
    if (cached !== undefined) return cached;
    const template = this.#make(diskBytes);
    this.#templates.set(diskBytes, template);
    // The cause may pass, as a full disk does: the next instance tries again.
    template.catch(() => this.#templates.delete(diskBytes));
    return template;
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

/** Virtual size of the disk for a request of `diskBytes`: the next power of two, so that there are few templates. */
export function scratchBytes(diskBytes: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(diskBytes, DISK_BYTES_MIN)));
}
