import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
  symlinkSync,
  unlinkSync,
} from "node:fs";
import type { Client } from "../../../src/client/client.ts";
import { ResponseError } from "../../../src/client/errors.ts";
import {
  changeFile,
  joinFiles,
  listFiles,
  makeDirectory,
  moveFile,
  readFile,
  removeFile,
  statFile,
  writeFile,
} from "../../../src/client/guest-files.ts";
import type { Place } from "../../../src/client/place.ts";
import type { GuestEntry } from "../../../src/client/types.ts";
import type { seededRandom } from "../random.ts";
import { makeParents, writeLocally } from "./local-files.ts";

type Random = ReturnType<typeof seededRandom>;

/** A tree that grows larger is pruned. */
const ENTRIES_COUNT_MAX = 120;
const COMPARE_STEPS = 250;
/** Times of the two sides are compared only if they lie further apart, in `nanoseconds`: their clocks have ticks. */
const TICKS_NS = 100_000_000n;
/** Names with bytes that are not UTF-8, and characters that need escapes. */
const NAMES = ["a", "b", "c", "d e", "f%2f", "g?&#", "ü", "\\", "h\n", "\xff\xfe", "-", "...", "i".repeat(200)];
const SIZES = [0, 1, 4095, 4096, 4097, 70_000, 300_000];
const MODES = ["0644", "0600", "0755", "0400", "4755", "1777"];

export interface RandomFilesOptions {
  readonly client: Client;
  readonly place: Place;
  /** directory of the guest for the operations; it must be empty */
  readonly guest: string;
  /** directory of this host for the same operations; it must be empty */
  readonly local: string;
  /** makes a symlink in the guest, which has no request for it */
  readonly link: (target: string, path: Buffer) => Promise<void>;
  readonly random: Random;
  readonly steps: number;
}

/**
 * Does random operations on files of what runs, and the same ones in a local directory, and compares their outcomes, and from
 * time to time both trees: bytes, modes, owners, links, listings and the order of the files' times.
 * @returns the number of operations that succeeded on both sides
 * @throws Error at the first difference
 */
export async function compareRandomFiles(options: RandomFilesOptions): Promise<number> {
  const both = new BothSides(options);
  let succeeded = 0;
  for (let step = 1; step <= options.steps; step++) {
    succeeded += (await both.step(step)) ? 1 : 0;
    if (step % COMPARE_STEPS === 0 || step === options.steps) await both.compare(step);
  }
  return succeeded;
}

/** One operation on both sides. */
interface Step {
  readonly what: string;
  readonly remote: () => Promise<unknown>;
  readonly local: () => unknown;
}

class BothSides {
  readonly #options: RandomFilesOptions;
  /** the latest operations, for messages */
  readonly #latest: string[] = [];

  constructor(options: RandomFilesOptions) {
    this.#options = options;
  }

  /** True when the operation succeeded. @throws Error when it succeeded on one side only, or with another result */
  async step(number: number): Promise<boolean> {
    const { what, remote, local } = this.#next();
    if (this.#latest.push(what) > 5) this.#latest.shift();
    const here = outcomeOf(local);
    const there = await outcomeOfPromise(remote());
    const isSame =
      here.error === null ? there.error === null && Bun.deepEquals(here.value, there.value) : there.error !== null;
    if (isSame) return here.error === null;
    const text = (outcome: Outcome) => outcome.error ?? Bun.inspect(outcome.value).slice(0, 200);
    throw new Error(`step ${number}, ${what}: the guest ${text(there)}, the local directory ${text(here)}`);
  }

  /** @throws Error when the trees differ */
  async compare(step: number): Promise<void> {
    const { client, place, guest } = this.#options;
    const here = new Map(this.#entries().map((path) => [path.toString("latin1"), path]));
    const there = new Map<string, GuestEntry>();
    for await (const entry of listFiles(client, { place, path: guest }, { depth: 64 })) {
      const path = bytesOf(entry).subarray(Buffer.byteLength(guest) + 1);
      if (path.byteLength > 0) there.set(path.toString("latin1"), entry);
    }
    const fail = (what: string): never => {
      throw new Error(`after step ${step}: ${what}; the latest operations: ${this.#latest.join("; ")}`);
    };
    const names = [[...here.keys()].sort(), [...there.keys()].sort()] as const;
    if (!Bun.deepEquals(names[0], names[1])) fail(`the guest has ${names[1]}, the local directory ${names[0]}`);
    for (const [name, path] of here) {
      const entry = there.get(name) as GuestEntry;
      const [local, remote] = [this.#described(path), describedEntry(entry)];
      if (!Bun.deepEquals(local, remote)) fail(`${name}: ${Bun.inspect(remote)} is not ${Bun.inspect(local)}`);
      if (entry.type !== "file") continue;
      const content = await (await readFile(client, { place, path: this.#there(path) })).bytes();
      if (!readFileSync(this.#here(path)).equals(content)) fail(`${name} has other bytes`);
    }
    // A directory also has the times of temporary files in it, and an empty file those of writes without bytes.
    const files = [...here].filter(([name]) => there.get(name)?.type === "file" && there.get(name)?.size !== 0);
    const byTime = files.map(([name, path]) => ({
      name,
      here: lstatSync(this.#here(path), { bigint: true }).mtimeNs,
      there: nsOf((there.get(name) as GuestEntry).mtime),
    }));
    byTime.sort((a, b) => (a.here < b.here ? -1 : 1));
    let latest = byTime[0];
    for (const item of byTime) {
      const isLater = latest !== undefined && item.here - latest.here > TICKS_NS && item.there < latest.there;
      if (isLater) fail(`${item.name} was changed after ${latest?.name}, and has an earlier time`);
      if (latest === undefined || item.there > latest.there) latest = item;
    }
  }

  #here(path: Buffer): Buffer {
    return Buffer.concat([Buffer.from(`${this.#options.local}/`), path]);
  }

  #there(path: Buffer): Buffer {
    return Buffer.concat([Buffer.from(`${this.#options.guest}/`), path]);
  }

  #at(path: Buffer) {
    return { place: this.#options.place, path: this.#there(path) };
  }

  /** All paths below the local directory. */
  #entries(below = Buffer.alloc(0)): Buffer[] {
    return readdirSync(this.#here(below), { encoding: "buffer" }).flatMap((name) => {
      const path = below.byteLength === 0 ? name : Buffer.concat([below, Buffer.from("/"), name]);
      return lstatSync(this.#here(path)).isDirectory() ? [path, ...this.#entries(path)] : [path];
    });
  }

  #described(path: Buffer) {
    const stats = lstatSync(this.#here(path));
    const isLink = stats.isSymbolicLink();
    return {
      type: stats.isDirectory() ? "directory" : isLink ? "symlink" : "file",
      mode: (stats.mode & 0o7777).toString(8).padStart(4, "0"),
      ...{ uid: stats.uid, gid: stats.gid },
      size: stats.isDirectory() ? 0 : stats.size,
      target: isLink ? readlinkSync(this.#here(path), "latin1") : "",
    };
  }

  #next(): Step {
    const { random } = this.#options;
    const paths = this.#entries();
    const pick = <T>(items: readonly T[]): T => items[random.below(items.length)] as T;
    const name = () => Buffer.from(pick(NAMES), "latin1");
    const some = () => (paths.length > 0 && random.below(10) < 8 ? pick(paths) : name());
    const fresh = () => (random.below(3) === 0 ? name() : Buffer.concat([some(), Buffer.from("/"), name()]));
    if (paths.length > ENTRIES_COUNT_MAX) return this.#remove(pick(paths), true);
    const kind = random.below(100);
    if (kind < 30) return this.#write(random.below(2) === 0 ? some() : fresh(), pick);
    if (kind < 42) return this.#read(some(), pick(SIZES), pick(SIZES));
    if (kind < 54) return this.#directory(fresh(), random.below(2) === 0, pick(MODES));
    if (kind < 62) return this.#remove(some(), random.below(2) === 0);
    if (kind < 76) {
      const [from, to] = [some(), random.below(2) === 0 ? some() : fresh()];
      return this.#move(from, to, random.below(2) === 0);
    }
    if (kind < 82) return this.#mode(some(), pick(MODES), { uid: random.below(3) * 1000, gid: random.below(3) * 100 });
    if (kind < 88) return this.#join([some(), some()], fresh());
    if (kind < 94) return this.#stat(some(), random.below(2) === 0);
    return this.#link(pick(["a", "b/c", "d e", "missing"]), fresh());
  }

  #write(path: Buffer, pick: <T>(items: readonly T[]) => T): Step {
    const { client, random } = this.#options;
    const bytes = new Uint8Array(pick(SIZES));
    const noise = random.bytes(Math.min(5000, bytes.byteLength));
    bytes.set(noise, random.below(bytes.byteLength - noise.byteLength + 1));
    const form = pick(["in place", "in place", "append", "atomic", "exclusive"]);
    const parents = random.below(4) > 0;
    const mode = random.below(3) === 0 ? pick(MODES) : undefined;
    const options = {
      parents,
      mode,
      append: form === "append",
      atomic: form === "atomic",
      exclusive: form === "exclusive",
    };
    return {
      what: `write of ${bytes.byteLength} bytes to ${path.toString("latin1")}, ${form}`,
      remote: async () => void (await writeFile(client, this.#at(path), new Blob([bytes]), options)),
      local: () => writeLocally(this.#here(path), bytes, { parents, form, mode }),
    };
  }

  #read(path: Buffer, start: number, length: number): Step {
    const range = { start, end: start + length + 1 };
    return {
      what: `read of ${path.toString("latin1")} from ${start}`,
      remote: async () => {
        const response = await readFile(this.#options.client, this.#at(path), range);
        return Buffer.from(await response.bytes()).toString("latin1");
      },
      local: () => {
        const bytes = readFileSync(this.#here(path));
        if (bytes.byteLength > 0 && start >= bytes.byteLength) throw new Error("the range is beyond the end");
        return bytes.subarray(start, range.end).toString("latin1");
      },
    };
  }

  #directory(path: Buffer, parents: boolean, mode: string): Step {
    return {
      what: `directory ${path.toString("latin1")}`,
      remote: async () => (await makeDirectory(this.#options.client, this.#at(path), { parents, mode })).created,
      local: () => {
        const here = this.#here(path);
        if (parents) makeParents(here);
        try {
          mkdirSync(here);
        } catch (error) {
          if ((error as NodeJS.ErrnoException).code === "EEXIST" && statSync(here).isDirectory()) return false;
          throw error;
        }
        chmodSync(here, Number.parseInt(mode, 8));
        return true;
      },
    };
  }

  #remove(path: Buffer, recursive: boolean): Step {
    return {
      what: `removal of ${path.toString("latin1")}${recursive ? ", recursive" : ""}`,
      remote: () => removeFile(this.#options.client, this.#at(path), { recursive }),
      local: () => {
        const here = this.#here(path);
        if (!lstatSync(here).isDirectory()) unlinkSync(here);
        else if (recursive) rmSync(here, { recursive: true });
        else rmdirSync(here);
      },
    };
  }

  #move(from: Buffer, to: Buffer, replace: boolean): Step {
    const { client } = this.#options;
    return {
      what: `move of ${from.toString("latin1")} to ${to.toString("latin1")}${replace ? ", replacing" : ""}`,
      remote: async () => void (await moveFile(client, this.#at(from), { to: this.#there(to), replace })),
      local: () => {
        if (!replace && lstatSync(this.#here(to), { throwIfNoEntry: false }) !== undefined)
          throw new Error("it exists");
        renameSync(this.#here(from), this.#here(to));
      },
    };
  }

  #mode(path: Buffer, mode: string, owner: { readonly uid: number; readonly gid: number }): Step {
    return {
      what: `mode ${mode} of ${path.toString("latin1")}`,
      remote: async () => (await changeFile(this.#options.client, this.#at(path), { mode, owner })).mode,
      local: () => {
        const here = this.#here(path);
        chownSync(here, owner.uid, owner.gid);
        chmodSync(here, Number.parseInt(mode, 8));
        return (statSync(here).mode & 0o7777).toString(8).padStart(4, "0");
      },
    };
  }

  #join(from: readonly Buffer[], to: Buffer): Step {
    // Paths in a list are texts.
    const isText = from.every((path) => Buffer.from(path.toString("utf8")).equals(path));
    const sources = isText ? from : [Buffer.from("missing")];
    const texts = sources.map((path) => this.#there(path).toString("utf8"));
    return {
      what: `join of ${texts.join(" and ")} to ${to.toString("latin1")}`,
      remote: async () => (await joinFiles(this.#options.client, this.#at(to), { from: texts })).size,
      local: () => {
        makeParents(this.#here(to));
        const bytes = Buffer.concat(sources.map((path) => readFileSync(this.#here(path))));
        writeLocally(this.#here(to), bytes, { parents: true, form: "atomic", mode: undefined });
        return bytes.byteLength;
      },
    };
  }

  #stat(path: Buffer, follow: boolean): Step {
    return {
      what: `stat of ${path.toString("latin1")}`,
      remote: async () => (await statFile(this.#options.client, this.#at(path), { follow })).mode,
      local: () => {
        const here = this.#here(path);
        // A symlink that leads nowhere is described itself.
        const followed = outcomeOf(() => (follow ? statSync : lstatSync)(here).mode).value ?? lstatSync(here).mode;
        return (Number(followed) & 0o7777).toString(8).padStart(4, "0");
      },
    };
  }

  #link(target: string, path: Buffer): Step {
    const isFree = outcomeOf(() => symlinkSync(target, this.#here(path))).error === null;
    return {
      what: `link ${path.toString("latin1")}`,
      remote: async () => (isFree ? await this.#options.link(target, this.#there(path)) : undefined),
      local: () => undefined,
    };
  }
}

interface Outcome {
  readonly value: unknown;
  readonly error: string | null;
}

function outcomeOf(work: () => unknown): Outcome {
  try {
    return { value: work(), error: null };
  } catch (error) {
    return { value: null, error: `failed: ${(error as Error).message}` };
  }
}

/** @throws an error other than the guest's refusal */
async function outcomeOfPromise(work: Promise<unknown>): Promise<Outcome> {
  try {
    return { value: await work, error: null };
  } catch (error) {
    if (error instanceof ResponseError && error.status < 500)
      return { value: null, error: `refused: ${error.message}` };
    throw error;
  }
}

function describedEntry(entry: GuestEntry) {
  const target = entry.symlink_to_base64 ?? Buffer.from(entry.symlink_to ?? "").toString("base64");
  return {
    type: entry.type,
    mode: entry.mode,
    ...{ uid: entry.uid, gid: entry.gid },
    size: entry.type === "directory" ? 0 : entry.size,
    target: Buffer.from(target, "base64").toString("latin1"),
  };
}

function bytesOf({ path, path_base64: base64 }: GuestEntry): Buffer {
  return base64 === undefined ? Buffer.from(path) : Buffer.from(base64, "base64");
}

/** ns since the epoch of a time with nanoseconds. */
function nsOf(time: string): bigint {
  const [seconds = "", fraction = ""] = time.slice(0, -1).split(".");
  return BigInt(Date.parse(`${seconds}Z`)) * 1_000_000n + BigInt(fraction);
}
