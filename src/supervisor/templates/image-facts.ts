import type { ImageRow } from "../../db/images/images.ts";
import { ApiError } from "../../domain/errors.ts";
import { parseGuestPathText } from "../../domain/tree/guest-path.ts";
import type { LayerStore } from "../../storage/layers/layer-store.ts";
import type { ImageTree } from "../../storage/tree/image-tree.ts";

/** Longest passwd that is searched, in `bytes`. */
const PASSWD_BYTES_MAX = 1_048_576;
const PASSWD = parseGuestPathText("/etc/passwd");

/** Reads of images which save a machine: whether a step has anything to do. */
export class ImageFacts {
  readonly #layers: LayerStore;
  readonly #signal: AbortSignal;

  constructor(layers: LayerStore, signal: AbortSignal) {
    this.#layers = layers;
    this.#signal = signal;
  }

  async isDirectory(image: ImageRow, path: string): Promise<boolean> {
    return (await this.#type(image, path)) === "d";
  }

  async isFile(image: ImageRow, path: string): Promise<boolean> {
    return (await this.#type(image, path)) === "f";
  }

  /** Whether passwd has a user of that name. */
  async hasUser(image: ImageRow, name: string): Promise<boolean> {
    const text = await this.#on(image, async (tree) => {
      const entry = await tree.stat(PASSWD, { follow: true });
      if (entry.type !== "f" || entry.size > PASSWD_BYTES_MAX) return null;
      return Buffer.from(await tree.read(entry, { start: 0, end: entry.size })).toString("latin1");
    });
    return text?.split("\n").some((line) => line.startsWith(`${name}:`)) ?? false;
  }

  async #type(image: ImageRow, path: string): Promise<string | null> {
    return await this.#on(image, async (tree) => (await tree.stat(parseGuestPathText(path), { follow: true })).type);
  }

  /** Null for a path that the image does not have. */
  async #on<T>(image: ImageRow, read: (tree: ImageTree) => Promise<T>): Promise<T | null> {
    using layers = this.#layers.open(image.layerId);
    const { accountId } = image;
    const cancellation = { owner: `reader ${accountId}`, throwIfAborted: () => this.#signal.throwIfAborted() };
    try {
      return await read(layers.tree(cancellation));
    } catch (error) {
      if (error instanceof ApiError && (error.code === "not_found" || error.code === "invalid_path")) return null;
      throw error;
    }
  }
}
