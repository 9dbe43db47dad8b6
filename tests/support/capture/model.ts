import { constants } from "node:os";
import { aclOfMode, inheritedAcl } from "./acl.ts";
import { Content, pattern } from "./content.ts";

export const ERRNO = constants.errno;

/** An inode. Names are references to it, so that hard links share one. All strings are byte strings. */
export interface Node {
  readonly type: "f" | "d" | "l" | "b" | "c" | "p" | "s";
  mode: number;
  uid: number;
  gid: number;
  /** `nanoseconds`; null when the kernel's clock set it in this run */
  mtime: bigint | null;
  /** the value before the clock changed it */
  formerMtime: bigint | null;
  content: Content;
  readonly target: string;
  readonly rdev: string;
  readonly xattrs: Map<string, string>;
  readonly children: Map<string, Node>;
  /** created or copied up by this run */
  upper: boolean;
  /** a directory that also exists in lower layers: it cannot be renamed */
  readonly merged: boolean;
  /** names in the layer of its capture; removals by later layers do not count */
  readonly nlink: number;
}

export const CAPABILITY = "security.capability";
export const ACL_ACCESS = "system.posix_acl_access";
export const ACL_DEFAULT = "system.posix_acl_default";

const SETUID = 0o4000;
const SETGID = 0o2000;
const GROUP_EXECUTE = 0o010;
const PUNCH = 2;
const ZERO_RANGE = 16;
const KEEP_SIZE = 1;

/** One operation of the script: its name, the path, and further arguments. */
export type Operation = readonly [what: string, path: string, ...rest: (string | number)[]];

class Failure extends Error {
  readonly errno: number;
  constructor(name: keyof typeof ERRNO) {
    super(name);
    this.errno = ERRNO[name];
  }
}

function fail(name: keyof typeof ERRNO): never {
  throw new Failure(name);
}

interface Place {
  readonly parent: Node;
  readonly parents: readonly Node[];
  readonly name: string;
  readonly node: Node | null;
}

function newNode(type: Node["type"], mode: number, more: Partial<Node> = {}): Node {
  return {
    ...{ type, mode, uid: 0, gid: 0, mtime: null, formerMtime: null, content: Content.empty, target: "", rdev: "0:0" },
    ...{ xattrs: new Map(), children: new Map(), upper: true, merged: false, nlink: 1, ...more },
  };
}

/** The documented behaviour of overlayfs, for the tree below one directory: an image, or one that a run is changing. */
export class Model {
  readonly #prefix: string;
  readonly root: Node;

  /** `prefix` is the path of the tree's root, without a trailing slash. */
  constructor(prefix: string, root: Node = newNode("d", 0o755)) {
    this.#prefix = prefix;
    this.root = root;
  }

  /** Applies an operation and returns the kernel's error number, or zero. */
  apply(operation: Operation): number {
    try {
      this.#apply(operation);
      return 0;
    } catch (error) {
      if (error instanceof Failure) return error.errno;
      throw error;
    }
  }

  /** The image of a capture: the next run's lower layers. */
  captured(): Model {
    const copies = new Map<Node, Node>();
    const counts = this.nameCounts();
    const copy = (node: Node): Node => {
      const previous = copies.get(node);
      if (previous !== undefined) return previous;
      const copied: Node = {
        ...node,
        xattrs: new Map(node.xattrs),
        children: new Map(),
        upper: false,
        merged: node.type === "d",
        nlink: node.upper ? (counts.get(node) ?? 1) : node.nlink,
        formerMtime: node.mtime,
      };
      copies.set(node, copied);
      for (const [name, child] of node.children) copied.children.set(name, copy(child));
      return copied;
    };
    return new Model(this.#prefix, copy(this.root));
  }

  nameCounts(): Map<Node, number> {
    const counts = new Map<Node, number>();
    for (const [, node] of this.entries()) counts.set(node, (counts.get(node) ?? 0) + 1);
    return counts;
  }

  /** Every path with its inode, the root first. */
  *entries(): Generator<readonly [path: string, node: Node]> {
    yield [this.#prefix, this.root];
    yield* below(this.#prefix, this.root);
  }

  #apply([what, path, ...rest]: Operation): unknown {
    const text = (at: number) => String(rest[at] ?? "");
    const number = (at: number) => Number(rest[at] ?? 0);
    switch (what) {
      case "create":
        return this.#create(path, newNode("f", number(0)));
      case "write":
        return this.#write(path, number(0), pattern(number(1), number(2)));
      case "truncate":
        return this.#change(path, (content) => content.resize(number(0)));
      case "allocate":
        return this.#allocate(path, number(0), number(1), number(2));
      case "link":
        return this.#link(path, text(0));
      case "symlink":
        return this.#create(path, newNode("l", 0o777, { target: text(0) }));
      case "mkdir":
        return this.#create(path, newNode("d", number(0)));
      case "node":
        return this.#node(path, text(0) as Node["type"], number(1), `${number(2)}:${number(3)}`);
      case "rmdir":
      case "unlink":
      case "remove":
        return this.#remove(path, what);
      case "rename":
        return this.#rename(path, text(0));
      case "exchange":
        return this.#exchange(path, text(0));
      default:
        this.#checkAttribute(what, path, text(0));
        return this.#attribute(what, this.#own(path), text, number);
    }
  }

  #find(path: string): Place {
    const names = path.slice(this.#prefix.length + 1).split("/");
    const name = names.pop() as string;
    const parents = [this.root];
    for (const step of names) {
      const next = (parents.at(-1) as Node).children.get(step) ?? fail("ENOENT");
      // No symlink leads anywhere, except those to a file outside of the tree.
      if (next.type === "l" && !next.target.startsWith("/etc/")) fail("ENOENT");
      if (next.type !== "d") fail("ENOTDIR");
      parents.push(next);
    }
    const parent = parents.at(-1) as Node;
    return { parent, parents, name, node: parent.children.get(name) ?? null };
  }

  /** Copies an entry up: of a file with several names, only under this name. */
  #own(path: string): Node {
    if (path === this.#prefix) {
      this.root.upper = true;
      return this.root;
    }
    const { parent, parents, name, node } = this.#find(path);
    if (node === null) fail("ENOENT");
    for (const directory of parents) directory.upper = true;
    if (node.upper) return node;
    if (node.type === "d") {
      node.upper = true;
      return node;
    }
    const copy = { ...node, xattrs: new Map(node.xattrs), upper: true };
    parent.children.set(name, copy);
    return copy;
  }

  #create(path: string, node: Node): void {
    const { parent, parents, name, node: existing } = this.#find(path);
    if (existing !== null) fail("EEXIST");
    for (const directory of parents) directory.upper = true;
    if ((parent.mode & SETGID) !== 0) {
      node.gid = parent.gid;
      if (node.type === "d") node.mode |= SETGID;
    }
    const inherited = parent.xattrs.get(ACL_DEFAULT);
    if (inherited !== undefined && node.type !== "l") {
      const { acl, mode } = inheritedAcl(inherited, node.mode);
      node.mode = mode;
      node.xattrs.set(ACL_ACCESS, acl);
      if (node.type === "d") node.xattrs.set(ACL_DEFAULT, inherited);
    }
    parent.children.set(name, node);
    touch(parent);
  }

  #node(path: string, type: Node["type"], mode: number, rdev: string): void {
    this.#create(path, newNode(type, mode, { rdev: type === "c" || type === "b" ? rdev : "0:0" }));
  }

  /** Opens a file for writing, which copies it up. */
  #opened(path: string): Node {
    const { node } = this.#find(path);
    if (node === null) fail("ENOENT");
    if (node.type === "d") fail("EISDIR");
    if (node.type === "l") fail("ELOOP");
    // Devices of an image do not work: its file systems are mounted nodev.
    if (node.type === "c" || node.type === "b") fail("EACCES");
    if (node.type !== "f") fail("ENXIO");
    return this.#own(path);
  }

  #write(path: string, offset: number, bytes: Buffer): void {
    const node = this.#opened(path);
    if (bytes.length === 0) return;
    node.content = node.content.write(offset, bytes);
    modified(node);
  }

  #change(path: string, change: (content: Content) => Content): void {
    const node = this.#opened(path);
    node.content = change(node.content);
    modified(node);
  }

  #allocate(path: string, mode: number, offset: number, size: number): void {
    this.#change(path, (content) => {
      const end = (mode & KEEP_SIZE) !== 0 ? content.size : Math.max(content.size, offset + size);
      const clears = (mode & (PUNCH | ZERO_RANGE)) !== 0;
      return clears ? content.clear(offset, offset + size, end) : new Content(end, content.blocks);
    });
  }

  #link(from: string, to: string): void {
    const { node } = this.#find(from);
    if (node === null) fail("ENOENT");
    const { parent, parents, name, node: existing } = this.#find(to);
    if (existing !== null) fail("EEXIST");
    if (node.type === "d") fail("EPERM");
    const owned = this.#own(from);
    for (const directory of parents) directory.upper = true;
    parent.children.set(name, owned);
    touch(parent);
  }

  #remove(path: string, what: "rmdir" | "unlink" | "remove"): void {
    const { parent, parents, name, node } = this.#find(path);
    if (node === null) fail("ENOENT");
    if (what === "unlink" && node.type === "d") fail("EISDIR");
    if (what === "rmdir" && node.type !== "d") fail("ENOTDIR");
    if (what === "rmdir" && node.children.size > 0) fail("ENOTEMPTY");
    for (const directory of parents) directory.upper = true;
    parent.children.delete(name);
    touch(parent);
  }

  #rename(from: string, to: string): void {
    const [source, target] = [this.#find(from), this.#find(to)];
    const moved = source.node ?? fail("ENOENT");
    if (target.parents.includes(moved)) fail("EINVAL");
    if (target.node !== null && source.parents.includes(target.node)) fail("ENOTEMPTY");
    if (from === to || (target.node === moved && moved.upper)) return;
    if (target.node !== null && moved.type === "d" && target.node.type !== "d") fail("ENOTDIR");
    if (target.node !== null && moved.type !== "d" && target.node.type === "d") fail("EISDIR");
    if (!movable(moved)) fail("EXDEV");
    if (target.node !== null && target.node.children.size > 0) fail("ENOTEMPTY");
    const owned = this.#own(from);
    for (const directory of target.parents) directory.upper = true;
    source.parent.children.delete(source.name);
    target.parent.children.set(target.name, owned);
    touch(source.parent);
    touch(target.parent);
  }

  #exchange(from: string, to: string): void {
    const [left, right] = [this.#find(from), this.#find(to)];
    if (left.node === null || right.node === null) fail("ENOENT");
    if (right.parents.includes(left.node) || left.parents.includes(right.node)) fail("EINVAL");
    if (from === to || (left.node === right.node && left.node.upper)) return;
    if (!movable(left.node) || !movable(right.node)) fail("EXDEV");
    const [first, second] = [this.#own(from), this.#own(to)];
    left.parent.children.set(left.name, second);
    right.parent.children.set(right.name, first);
    touch(left.parent);
    touch(right.parent);
  }

  /** Throws the errors of operations that are refused before anything is copied up. */
  #checkAttribute(what: string, path: string, name: string): void {
    if (what !== "set" && what !== "unset") return;
    const node = path === this.#prefix ? this.root : (this.#find(path).node ?? fail("ENOENT"));
    if (name.startsWith("user.") && node.type !== "f" && node.type !== "d") fail("EPERM");
    if (what === "unset" && !node.xattrs.has(name)) fail("ENODATA");
  }

  #attribute(what: string, node: Node, text: (at: number) => string, number: (at: number) => number): unknown {
    switch (what) {
      case "chmod":
        return setMode(node, number(0));
      case "chown":
        node.uid = number(0);
        node.gid = number(1);
        if (node.type !== "d") node.mode &= ~(SETUID | ((node.mode & GROUP_EXECUTE) !== 0 ? SETGID : 0));
        return node.xattrs.delete(CAPABILITY);
      case "times":
        node.mtime = BigInt(number(0)) * 1_000_000_000n + BigInt(number(1));
        return null;
      case "set":
        node.xattrs.set(text(0), text(1));
        if (text(0) === ACL_ACCESS) node.mode = (node.mode & ~0o777) | aclOfMode.modeOf(text(1));
        return null;
      case "unset":
        return node.xattrs.delete(text(0));
      default:
        throw new Error(`no such operation: ${what}`);
    }
  }
}

function* below(path: string, node: Node): Generator<readonly [string, Node]> {
  for (const [name, child] of node.children) {
    yield [`${path}/${name}`, child];
    yield* below(`${path}/${name}`, child);
  }
}

/** A directory of a lower layer cannot be moved: `redirect_dir=nofollow`. */
function movable(node: Node): boolean {
  return node.type !== "d" || (node.upper && !node.merged);
}

function setMode(node: Node, mode: number): void {
  node.mode = mode;
  const acl = node.xattrs.get(ACL_ACCESS);
  if (acl !== undefined) node.xattrs.set(ACL_ACCESS, aclOfMode.withMode(acl, mode));
}

function touch(node: Node): void {
  node.formerMtime = node.mtime ?? node.formerMtime;
  node.mtime = null;
}

/** A change of content removes the privileges of the file. */
function modified(node: Node): void {
  touch(node);
  node.xattrs.delete(CAPABILITY);
}
