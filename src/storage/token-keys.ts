import { createSecretKey, type KeyObject, randomBytes } from "node:crypto";
import { statSync } from "node:fs";
import { mkdir, readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { writeFileAtomic } from "../system/scratch.ts";

const KEY_BYTES = 32;
const KEY_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/;
/** File beside a key that holds the time (`milliseconds` since the epoch, as text) when it stops to verify. */
const RETIRED_SUFFIX = ".retired";
/**
 * A directory that has only just changed can change again without another time of change, as file systems keep it
 * no finer than their tick. What was read so soon after a change is read again, in `milliseconds`.
 */
const SETTLED_AFTER_MS = 50;

export interface TokenKey {
  readonly id: string;
  readonly secret: KeyObject;
  /** `milliseconds` since the epoch; null: the key is not being retired */
  readonly retiredAt: number | null;
}

/**
 * The secrets that sign tokens, one file of 32 random bytes each, named by the key's id. Ids sort by age: the
 * newest key that is not being retired signs, all verify until their end.
 */
export class TokenKeys {
  readonly #directory: string;
  readonly #clock: () => number;
  #keys = new Map<string, TokenKey>();
  #version: string | null = null;

  private constructor(directory: string, clock: () => number) {
    this.#directory = directory;
    this.#clock = clock;
  }

  /** Opens the directory (made 0700 when absent) and makes the first key. */
  static async open(directory: string, clock: () => number = Date.now): Promise<TokenKeys> {
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const keys = new TokenKeys(directory, clock);
    await keys.#reload();
    if (keys.#newest() === null) await keys.#create();
    return keys;
  }

  /** The key that signs new tokens. */
  async signing(): Promise<TokenKey> {
    await this.#refresh();
    const key = this.#newest();
    if (key === null) throw new Error("no signing key is left in the key directory");
    return key;
  }

  /** The key of a token, or null when it is unknown or its grace is over. */
  async find(id: string): Promise<TokenKey | null> {
    await this.#refresh();
    const key = this.#keys.get(id);
    return key === undefined || isOver(key, this.#clock()) ? null : key;
  }

  /**
   * Makes a new signing key. All older keys stop to verify after `graceMs`, and those whose time is over are removed.
   * @returns the id of the new key
   */
  async rotate(graceMs: number): Promise<string> {
    await this.#reload();
    const now = this.#clock();
    const older = [...this.#keys.values()];
    const id = await this.#create();
    for (const key of older) {
      if (isOver(key, now)) await this.#remove(key.id);
      else if (key.retiredAt === null || key.retiredAt > now + graceMs) {
        await writeFileAtomic(join(this.#directory, key.id + RETIRED_SUFFIX), String(now + graceMs));
      }
    }
    await this.#reload();
    return id;
  }

  #newest(): TokenKey | null {
    let newest: TokenKey | null = null;
    for (const key of this.#keys.values()) {
      if (key.retiredAt === null && (newest === null || key.id > newest.id)) newest = key;
    }
    return newest;
  }

  async #create(): Promise<string> {
    const id = Bun.randomUUIDv7();
    await writeFileAtomic(join(this.#directory, id), randomBytes(KEY_BYTES));
    await this.#reload();
    return id;
  }

  async #remove(id: string): Promise<void> {
    await rm(join(this.#directory, id), { force: true });
    await rm(join(this.#directory, id + RETIRED_SUFFIX), { force: true });
  }

  /**
   * The command line rotates keys while the service runs, and its next token must be good: the directory tells by its
   * time of change. A look takes microseconds, less than handing it to a thread.
   */
  async #refresh(): Promise<void> {
    const version = this.#directoryVersion();
    if (version === null || version !== this.#version) await this.#reload();
  }

  /** Differs from every other state of the directory; null as long as that cannot be told. */
  #directoryVersion(): string | null {
    const { mtimeMs, mtimeNs, ctimeNs } = statSync(this.#directory, { bigint: true });
    return Math.abs(Date.now() - Number(mtimeMs)) < SETTLED_AFTER_MS ? null : `${mtimeNs}:${ctimeNs}`;
  }

  async #reload(): Promise<void> {
    // Asked first and kept last: a change while the files are read makes the next look differ.
    const version = this.#directoryVersion();
    const names = await readdir(this.#directory);
    const keys = new Map<string, TokenKey>();
    for (const id of names.filter((name) => KEY_ID.test(name))) {
      const key = await this.#read(id, names.includes(id + RETIRED_SUFFIX));
      if (key !== null) keys.set(id, key);
    }
    this.#keys = keys;
    this.#version = version;
  }

  /** Null for a key that was removed since the directory was read. */
  async #read(id: string, retired: boolean): Promise<TokenKey | null> {
    try {
      const bytes = await readFile(join(this.#directory, id));
      if (bytes.byteLength !== KEY_BYTES) throw new Error(`token key ${id} must have ${KEY_BYTES} bytes`);
      return { id, secret: createSecretKey(bytes), retiredAt: retired ? await this.#retiredAt(id) : null };
    } catch (error) {
      if (error instanceof Error && "code" in error && error.code === "ENOENT") return null;
      throw error;
    }
  }

  /** A time that cannot be read retires the key at once: the safe side. */
  async #retiredAt(id: string): Promise<number> {
    const time = Number((await readFile(join(this.#directory, id + RETIRED_SUFFIX), "utf8")).trim());
    return Number.isSafeInteger(time) ? time : 0;
  }
}

function isOver(key: TokenKey, now: number): boolean {
  return key.retiredAt !== null && key.retiredAt <= now;
}
