import type { ListingItem } from "../../../src/client/types.ts";
import { type Database, openDatabase } from "../../../src/db/database.ts";
import { getImage } from "../../../src/db/images/images.ts";
import { layerChain } from "../../../src/db/images/layers.ts";
import type { AccountId, ImageId } from "../../../src/domain/ids.ts";
import type { GuestPath } from "../../../src/domain/tree/guest-path.ts";
import type { LayerIndex } from "../../../src/storage/index/layer-index.ts";
import { indexPath, layerPath } from "../../../src/storage/layers/layers.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { ImageTree, type ResolvedEntry } from "../../../src/storage/tree/image-tree.ts";
import { OpenLayers } from "../../../src/storage/tree/open-layers.ts";
import type { Appliance } from "../appliance/appliance.ts";
import { BLOCK_BYTES, digestOfBlocks } from "./content.ts";
import type { Seen, View } from "./view.ts";

const TYPE_LETTERS: Record<string, string> = {
  ...{ file: "f", directory: "d", symlink: "l", block: "b", char: "c", fifo: "p", socket: "s" },
};

/** Reads images as the interface does: through the indexes, and from the same files. */
export class Inspector implements Disposable {
  readonly #appliance: Appliance;
  readonly #db: Database;
  /** a separate store, so that files kept open by the test do not affect the tested one */
  readonly #open = new OpenLayers(64);

  constructor(appliance: Appliance) {
    this.#appliance = appliance;
    this.#db = openDatabase(dataLayout(appliance.dataDir).database, "require", { sharesFile: true });
  }

  [Symbol.dispose](): void {
    this.#db[Symbol.dispose]();
  }

  layersOf(image: string): { disk: string; index: string }[] {
    const layout = dataLayout(this.#appliance.dataDir);
    const row = getImage(this.#db, "tester" as AccountId, image as ImageId);
    if (row === null) throw new Error(`no image ${image}`);
    return layerChain(this.#db, row.layerId).map(({ id }) => ({
      disk: layerPath(layout, id),
      index: indexPath(layout, id),
    }));
  }

  /** The whole tree of a directory. */
  async view(image: string, directory: string): Promise<View> {
    const tree = new ImageTree(this.layersOf(image), this.#open);
    const seen = new Map<string, Seen>();
    await this.#visit(tree, directory as GuestPath, seen);
    return seen;
  }

  async #visit(tree: ImageTree, path: GuestPath, seen: Map<string, Seen>): Promise<void> {
    const resolved = await tree.stat(path, { follow: false });
    seen.set(path, await this.#seen(tree, resolved));
    if (resolved.type !== "d") return;
    for await (const { name } of await tree.list(path)) {
      await this.#visit(tree, (path === "/" ? `/${name}` : `${path}/${name}`) as GuestPath, seen);
    }
  }

  async #seen(tree: ImageTree, resolved: ResolvedEntry): Promise<Seen> {
    const [{ layer, entry }] = resolved.node;
    using lease = this.#open.acquire(layer);
    const xattrs = lease.index
      .xattrs(entry)
      .map(({ name, value }) => [name, Buffer.from(value).toString("latin1")] as const);
    return {
      ...{ type: resolved.type, mode: resolved.mode, uid: resolved.uid, gid: resolved.gid, size: resolved.size },
      mtime: BigInt(resolved.mtimeSeconds) * 1_000_000_000n + BigInt(resolved.mtimeNanoseconds),
      ...{ nlink: resolved.nlink, identity: `${layer.index} ${entry.inode}`, target: resolved.target },
      rdev: `${entry.rdevMajor}:${entry.rdevMinor}`,
      digest: resolved.type === "f" ? await digestOf(tree, resolved, lease.index) : "",
      xattrs: new Map(xattrs),
    };
  }

  /** A directory's entries over HTTP, in the form of a view; times have milliseconds. */
  async list(image: string, path: string): Promise<Map<string, string>> {
    const response = await this.#appliance.fetch(`/inspect/${image}/list?path=${queryOf(path)}`);
    if (response.status !== 200) throw new Error(`list answered ${response.status}: ${await response.text()}`);
    const { items } = (await response.json()) as { items: ListingItem[] };
    return new Map(items.map((item) => [nameOf(item), httpLine(fieldsOf(item))]));
  }

  async download(image: string, path: string, range?: { start: number; end: number }): Promise<Buffer> {
    const headers = range === undefined ? {} : { range: `bytes=${range.start}-${range.end - 1}` };
    const response = await this.#appliance.fetch(`/inspect/${image}/download?path=${queryOf(path)}`, { headers });
    if (![200, 206].includes(response.status)) throw new Error(`download answered ${response.status}`);
    return Buffer.from(await response.arrayBuffer());
  }

  async exists(image: string, path: string): Promise<boolean> {
    const response = await this.#appliance.fetch(`/inspect/${image}/?path=${queryOf(path)}`, { method: "HEAD" });
    if (![200, 404].includes(response.status)) throw new Error(`HEAD answered ${response.status}`);
    return response.status === 200;
  }
}

/** Reads the bytes of the extents, through the stream that a download uses. */
async function digestOf(tree: ImageTree, resolved: ResolvedEntry, index: LayerIndex): Promise<string> {
  const [{ entry }] = resolved.node;
  const blocks: [number, Buffer][] = [];
  for (const { logical, length } of index.extents(entry, 0, entry.extentCount)) {
    const start = logical - (logical % BLOCK_BYTES);
    const end = Math.min(resolved.size, Math.ceil((logical + length) / BLOCK_BYTES) * BLOCK_BYTES);
    const bytes = await tree.read(resolved, { start, end });
    for (let at = 0; at < bytes.length; at += BLOCK_BYTES) {
      const block = Buffer.alloc(BLOCK_BYTES);
      block.set(bytes.subarray(at, at + BLOCK_BYTES));
      blocks.push([(start + at) / BLOCK_BYTES, block]);
    }
  }
  return digestOfBlocks(blocks);
}

/** The path with every byte escaped, since the interface accepts bytes. */
export function queryOf(path: string): string {
  return [...path].map((char) => `%${char.charCodeAt(0).toString(16).padStart(2, "0")}`).join("");
}

function nameOf(item: ListingItem): string {
  const bytes =
    item.name_base64 === undefined ? Buffer.from(item.name, "utf8") : Buffer.from(item.name_base64, "base64");
  return bytes.toString("latin1");
}

function fieldsOf(
  item: ListingItem,
): Pick<Seen, "type" | "mode" | "uid" | "gid" | "size"> & { mtimeMs: number; to: string } {
  return {
    ...{ type: TYPE_LETTERS[item.type] ?? "?", mode: Number.parseInt(item.mode, 8), uid: item.uid, gid: item.gid },
    ...{ size: item.size, mtimeMs: Date.parse(item.modified_at), to: item.symlink_to ?? "" },
  };
}

/** The words of a view for the same facts. */
export function listedLine(seen: Seen): string {
  const mtimeMs = Number(floorDivision(seen.mtime, 1_000_000n));
  return httpLine({ ...seen, mtimeMs, to: Buffer.from(seen.target, "latin1").toString("utf8") });
}

function floorDivision(value: bigint, by: bigint): bigint {
  const rest = ((value % by) + by) % by;
  return (value - rest) / by;
}

function httpLine(fields: ReturnType<typeof fieldsOf>): string {
  const { type, mode, uid, gid, size, mtimeMs, to } = fields;
  return `${type} ${mode.toString(8)} ${uid}:${gid} ${type === "f" ? size : "-"} ${mtimeMs} ${to}`;
}
