import type { seededRandom } from "../random.ts";
import { namedUserAcl } from "./acl.ts";
import { ACL_ACCESS, ACL_DEFAULT, CAPABILITY, type Model, type Node, type Operation } from "./model.ts";

type Random = ReturnType<typeof seededRandom>;
type Entry = readonly [path: string, node: Node];

/** A larger tree is pruned, so that a step costs the same in a long chain as in a short one. */
const ENTRIES_COUNT_MAX = 300;
const PATH_BYTES_MAX = 3000;
const XATTR_BYTES_MAX = 2000;
const DEEP_COUNT = 100;
const FAR_OFFSETS = [2 ** 32 - 5, 2 ** 32 + 4096, 5 * 2 ** 30 + 77, 2 ** 40 + 1];
const OWNERS = [0, 1000, 65_534, 65_536, 2_147_483_648, 4_294_967_294];
const SECONDS = [0, -1, -2_000_000_000, 1_234_567_890, 2_147_483_648, 4_294_967_296, 15_032_385_534];

/** Weight of each kind. */
const WEIGHTS = {
  create: 18,
  write: 12,
  truncate: 5,
  allocate: 6,
  link: 7,
  symlink: 5,
  mkdir: 10,
  remove: 9,
  opaque: 3,
  replace: 6,
  renameFile: 9,
  renameDirectory: 5,
  exchange: 3,
  node: 6,
  chmod: 6,
  chown: 5,
  times: 7,
  set: 7,
  unset: 3,
  acl: 4,
  deep: 0.2,
  wrong: 7,
} as const;

/** Random operations on a model's tree, most of which are possible there; does not apply them. */
export class Generator {
  readonly #random: Random;

  constructor(random: Random) {
    this.#random = random;
  }

  /** The operations of one choice; some make sense only together. */
  next(model: Model): Operation[] {
    const entries = [...model.entries()].slice(1);
    if (entries.length > ENTRIES_COUNT_MAX) return this.#thinOut(entries);
    const directories: Entry[] = [...model.entries()].filter(([, node]) => node.type === "d");
    const files = entries.filter(([, node]) => node.type === "f");
    return this.#choose(this.#kind(), { entries, directories, files });
  }

  #kind(): keyof typeof WEIGHTS {
    const entries = Object.entries(WEIGHTS) as [keyof typeof WEIGHTS, number][];
    let at = this.#random.below(entries.reduce((sum, [, weight]) => sum + weight * 10, 0));
    for (const [kind, weight] of entries) {
      at -= weight * 10;
      if (at < 0) return kind;
    }
    return "create";
  }

  #choose(kind: keyof typeof WEIGHTS, tree: { entries: Entry[]; directories: Entry[]; files: Entry[] }): Operation[] {
    const { entries, directories, files } = tree;
    const fresh = () => this.#fresh(directories);
    const some = this.#pick(entries);
    const file = this.#pick(files);
    switch (kind) {
      case "create":
        return this.#file(fresh());
      case "symlink":
        return [
          [
            "symlink",
            fresh(),
            this.#pick(["/etc/passwd", "../gone", "x".repeat(255), "a\nb", "\xff\xfe", "gone/away"]),
          ],
        ];
      case "mkdir":
        return [["mkdir", fresh(), this.#pick([0o755, 0o700, 0o1777, 0o711])]];
      case "node":
        return [this.#node(fresh())];
      case "deep":
        return this.#deep(fresh());
      case "wrong":
        return this.#wrong(tree, fresh());
      default:
    }
    if (some === undefined) return this.#file(fresh());
    switch (kind) {
      case "link":
        return some[1].type === "d" ? [] : [["link", some[0], fresh()]];
      case "remove":
        return [[some[1].type === "d" ? (this.#chance(80) ? "rmdir" : "remove") : "unlink", some[0]]];
      case "opaque":
        return this.#opaque(this.#pick(directories.slice(1)));
      case "replace":
        return some[1].children.size > 3 && this.#chance(70) ? [] : this.#replace(some);
      case "renameFile":
        return some[1].type === "d" ? [] : [["rename", some[0], this.#chance(30) ? this.#pick(entries)[0] : fresh()]];
      case "renameDirectory":
        return this.#renameDirectory(directories.slice(1), fresh());
      case "exchange":
        return this.#exchange(some, this.#pick(entries));
      default:
        return file === undefined ? [] : this.#change(kind, some, file);
    }
  }

  #change(kind: keyof typeof WEIGHTS, [path, node]: Entry, [filePath, file]: Entry): Operation[] {
    switch (kind) {
      case "write":
        return [this.#write(filePath)];
      case "truncate":
        return [["truncate", filePath, this.#chance(8) ? this.#pick(FAR_OFFSETS) : this.#random.below(40_000)]];
      case "allocate":
        // Kernels differ in whether this removes a capability.
        if (file.xattrs.has(CAPABILITY)) return [];
        return [
          ["allocate", filePath, this.#pick([0, 1, 3, 3, 16, 17]), this.#offset(), 1 + this.#random.below(100_000)],
        ];
      case "chmod":
        return node.type === "l" ? [] : [["chmod", path, this.#random.below(0o10000)]];
      case "chown":
        return [["chown", path, this.#pick(OWNERS), this.#pick([...OWNERS, this.#random.below(4_294_967_295)])]];
      case "times":
        return [
          ["times", path, this.#pick(SECONDS), this.#pick([0, 1, 999_999_999, this.#random.below(1_000_000_000)])],
        ];
      case "set":
        return this.#set(path, node);
      case "unset":
        return this.#unset(path, node);
      case "acl":
        return this.#acl(path, node);
      default:
        return [];
    }
  }

  #file(path: string): Operation[] {
    const create: Operation = ["create", path, this.#pick([0o644, 0o600, 0o755, 0o444])];
    return this.#chance(85) ? [create, this.#write(path)] : [create];
  }

  #write(path: string): Operation {
    const size = this.#chance(4) ? this.#random.below(300_000) : this.#random.below(9000);
    return ["write", path, this.#offset(), size, 1 + this.#random.below(2 ** 31)];
  }

  #offset(): number {
    if (this.#chance(50)) return 0;
    return this.#chance(5) ? this.#pick(FAR_OFFSETS) : this.#random.below(30_000);
  }

  #node(path: string): Operation {
    const type = this.#pick(["p", "s", "c", "b"]);
    return [
      "node",
      path,
      type,
      this.#random.below(0o1000),
      1 + this.#random.below(4095),
      this.#random.below(1_048_576),
    ];
  }

  #deep(path: string): Operation[] {
    const operations: Operation[] = [];
    let at = path;
    for (let depth = 0; depth < DEEP_COUNT; depth++) {
      operations.push(["mkdir", at, 0o755]);
      at += `/d${depth}`;
    }
    return path.length > PATH_BYTES_MAX / 4 ? [] : [...operations, ...this.#file(at)];
  }

  #opaque(directory: Entry | undefined): Operation[] {
    if (directory === undefined) return [];
    const [path] = directory;
    return [
      ["remove", path],
      ["mkdir", path, 0o755],
      ...(this.#chance(70) ? this.#file(`${path}/${this.#name()}`) : []),
    ];
  }

  #replace([path]: Entry): Operation[] {
    const replacement = this.#pick<Operation[]>([
      this.#file(path),
      [["symlink", path, "elsewhere"]],
      [["mkdir", path, 0o755], ...this.#file(`${path}/${this.#name()}`)],
      [this.#node(path)],
    ]);
    return [["remove", path], ...replacement];
  }

  #renameDirectory(directories: Entry[], to: string): Operation[] {
    const directory = this.#pick(directories);
    if (directory === undefined) return [];
    const [from, node] = directory;
    if (to.length + longestBelow(node) > PATH_BYTES_MAX) return [];
    const over = this.#pick(directories);
    return [["rename", from, this.#chance(20) && over !== undefined ? over[0] : to]];
  }

  #exchange([from, left]: Entry, [to, right]: Entry): Operation[] {
    const longest = Math.max(to.length + longestBelow(left), from.length + longestBelow(right));
    return longest > PATH_BYTES_MAX ? [] : [["exchange", from, to]];
  }

  #set(path: string, node: Node): Operation[] {
    const size = [...node.xattrs].reduce((sum, [name, value]) => sum + name.length + value.length + 32, 0);
    if (size > XATTR_BYTES_MAX) return [];
    if (node.type === "f" && this.#chance(15)) {
      return [
        ["set", path, CAPABILITY, `\x01\0\0\x02${String.fromCharCode(this.#random.below(256))}${"\0".repeat(15)}`],
      ];
    }
    const value = Buffer.from(this.#random.bytes(this.#chance(10) ? 500 : this.#random.below(40))).toString("latin1");
    return [
      ["set", path, this.#pick(["user.a", "user.b", "user.long.name.of.it", "security.note", "trusted.note"]), value],
    ];
  }

  #unset(path: string, node: Node): Operation[] {
    // The effect on a mode without its ACL is that of the ACL operations.
    const names = [...node.xattrs.keys()].filter((name) => !name.startsWith("system."));
    return [["unset", path, this.#pick([...names, "user.absent"])]];
  }

  #acl(path: string, node: Node): Operation[] {
    if (node.type !== "f" && node.type !== "d") return [];
    const acl = namedUserAcl(this.#random.below(0o1000), {
      uid: this.#pick(OWNERS),
      permissions: this.#random.below(8),
    });
    return [["set", path, node.type === "d" && this.#chance(40) ? ACL_DEFAULT : ACL_ACCESS, acl]];
  }

  /** Operations that the kernel may refuse. Their errors are compared. */
  #wrong({ entries, directories }: { entries: Entry[]; directories: Entry[] }, fresh: string): Operation[] {
    const [path, node] = this.#pick(entries) ?? [fresh, undefined];
    const [directory] = this.#pick(directories.slice(1)) ?? [fresh];
    const kinds: Operation[] = [
      ["create", path, 0o644],
      ["mkdir", path, 0o755],
      ["symlink", path, "x"],
      ["link", directory, fresh],
      ["rmdir", path],
      ["unlink", path],
      ["rename", directory, `${directory}/inside`],
      ["rename", `${directory}/missing`, fresh],
      ["exchange", path, fresh],
      ["set", path, "user.a", "x"],
      ["unset", path, "user.absent"],
      ["truncate", fresh, 1],
      ["mkdir", `${fresh}/below`, 0o755],
      ...(node?.type === "b" || node?.type === "c" ? [] : ([["write", path, 0, 10, 1]] as Operation[])),
    ];
    return [this.#pick(kinds)];
  }

  #thinOut(entries: Entry[]): Operation[] {
    const top = entries.filter(([path]) => path.split("/").length <= 4);
    const [path] = this.#pick(top.length > 0 ? top : entries);
    return [["remove", path]];
  }

  #fresh(directories: Entry[]): string {
    const near = directories.filter(([path]) => path.length < PATH_BYTES_MAX - 256 - DEEP_COUNT * 5);
    const [directory] = this.#pick(near);
    return `${directory}/${this.#name()}`;
  }

  /** So few names that removed ones are used again. */
  #name(): string {
    const number = this.#random.below(12);
    const kinds = [
      `n${number}`,
      `n${number}`,
      `n${number}`,
      `line\nbreak ${number}`,
      `\xff\xfe\x80${number}`,
      "l".repeat(253) + String(10 + number),
      `-rf %2F\\ "'${number}`,
      `\xc3\xbc${number}`,
      `.wh.n${number}`,
      `${String.fromCharCode(1 + number)}\x7f`,
    ];
    return this.#pick(kinds);
  }

  #chance(percent: number): boolean {
    return this.#random.below(100) < percent;
  }

  #pick<T>(values: readonly T[]): T {
    return values[this.#random.below(Math.max(1, values.length))] as T;
  }
}

function longestBelow(node: Node): number {
  let longest = 0;
  for (const [name, child] of node.children) longest = Math.max(longest, 1 + name.length + longestBelow(child));
  return longest;
}
