import { ApiError } from "../../domain/errors.ts";
import { type ByteString, displayName, type GuestPath } from "../../domain/tree/guest-path.ts";
import { PATH_LOOKUPS_COUNT_MAX, PATH_STEPS_COUNT_MAX, SYMLINK_HOPS_MAX } from "../limits.ts";
import { childOf, type MergeTools, type Node } from "./directory-merge.ts";

/** The result of resolving a path. */
export interface Resolved {
  /** path without symlinks */
  readonly path: GuestPath;
  readonly node: Node;
}

/**
 * Resolves a path component by component, like the kernel with the image as its root. Follows symlinks on the way, and a
 * symlink at the end only with `follow`. Links of a guest can lead through a million components, so the work is bounded,
 * and yields to the event loop.
 * @throws ApiError `not_found`, or `invalid_path` for too many symlinks, components or look-ups in layers
 */
export async function resolvePath(
  tools: MergeTools,
  root: Node,
  path: GuestPath,
  options: { readonly follow: boolean },
): Promise<Resolved> {
  return await new Resolution(tools, root, path, options.follow).run();
}

class Resolution {
  readonly #tools: MergeTools;
  readonly #path: GuestPath;
  readonly #follow: boolean;
  /** from the root to the current directory, without symlinks */
  readonly #nodes: [Node, ...Node[]];
  readonly #names: string[] = [];
  /** remaining components, the next one last */
  readonly #pending: string[] = [];
  /** results after the first symlink, because links can lead through one directory many times */
  readonly #cached = new Map<Node, Map<string, Node | null>>();
  #hopCount = 0;
  #stepCount = 0;
  #lookupCount = 0;

  constructor(tools: MergeTools, root: Node, path: GuestPath, follow: boolean) {
    this.#tools = tools;
    this.#path = path;
    this.#follow = follow;
    this.#nodes = [root];
    this.#push(path);
  }

  async run(): Promise<Resolved> {
    for (let name = this.#pending.pop(); name !== undefined; name = this.#pending.pop()) await this.#step(name);
    return { path: `/${this.#names.join("/")}` as GuestPath, node: this.#current() };
  }

  #current(): Node {
    return this.#nodes[this.#nodes.length - 1] as Node;
  }

  async #step(name: string): Promise<void> {
    const current = this.#current();
    if (current[0].entry.type !== "d") this.#missing();
    if (++this.#stepCount > PATH_STEPS_COUNT_MAX) this.#refuse("too many components behind symbolic links");
    if (name === ".") return;
    if (name === "..") {
      // ".." of the root is the root.
      if (this.#nodes.length > 1) this.#nodes.pop();
      this.#names.pop();
      return;
    }
    const child = await this.#child(current, name);
    if (child === null) this.#missing();
    const { type, target } = child[0].entry;
    if (type === "l" && (this.#follow || this.#pending.length > 0)) {
      this.#followLink(target);
      return;
    }
    this.#nodes.push(child);
    this.#names.push(name);
  }

  async #child(directory: Node, name: string): Promise<Node | null> {
    const cached = this.#cached.get(directory)?.get(name);
    if (cached !== undefined) return cached;
    this.#lookupCount += directory.length;
    if (this.#lookupCount > PATH_LOOKUPS_COUNT_MAX) this.#refuse("too many directories in too many layers");
    const child = await childOf(this.#tools, directory, name as ByteString);
    if (this.#hopCount > 0) this.#remember(directory, name, child);
    return child;
  }

  #remember(directory: Node, name: string, child: Node | null): void {
    const names = this.#cached.get(directory) ?? new Map<string, Node | null>();
    this.#cached.set(directory, names.set(name, child));
  }

  #followLink(target: ByteString): void {
    this.#hopCount++;
    if (this.#hopCount > SYMLINK_HOPS_MAX) this.#refuse("too many levels of symbolic links");
    if (target.startsWith("/")) {
      this.#nodes.length = 1;
      this.#names.length = 0;
    }
    this.#push(target);
  }

  #push(path: ByteString): void {
    const names = path.split("/").filter((name) => name !== "" && name !== ".");
    // A path that ends with a slash or a dot must lead to a directory.
    if (/(?:^|\/)\.?$/.test(path)) this.#pending.push(".");
    for (const name of names.toReversed()) this.#pending.push(name);
  }

  #missing(): never {
    throw new ApiError("not_found", "no such file or directory", { path: displayName(this.#path) });
  }

  #refuse(reason: string): never {
    throw new ApiError("invalid_path", reason, { path: displayName(this.#path) });
  }
}
