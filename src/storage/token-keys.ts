import { createSecretKey, type KeyObject, randomBytes } from "node:crypto";
import { mkdir, readdir, readFile, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { writeFileAtomic } from "../system/scratch.ts";

const KEY_BYTES = 32;
const KEY_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/;
/** File beside a key that holds the time (`milliseconds` since the epoch, as text) when it stops to verify. */
const RETIRED_SUFFIX = ".retired";
/** Keys made or retired by another process are seen after this long at the latest, in `milliseconds`. */
const RELOAD_INTERVAL_MS = 1000;

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
  #version = "";
  #checkedAt = Number.NEGATIVE_INFINITY;

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

  /** The command line rotates keys while the service runs: the directory tells by its time of change. */
  async #refresh(): Promise<void> {
    const now = performance.now();
    if (now - this.#checkedAt < RELOAD_INTERVAL_MS) return;
    this.#checkedAt = now;
    if ((await this.#directoryVersion()) !== this.#version) await this.#reload();
  }

  async #directoryVersion(): Promise<string> {
    const { mtimeNs, ctimeNs } = await stat(this.#directory, { bigint: true });
    return `${mtimeNs}:${ctimeNs}`;
  }

  async #reload(): Promise<void> {
    this.#checkedAt = performance.now();
    // Read first: a change while the files are read makes the next look differ.
    this.#version = await this.#directoryVersion();
    const names = await readdir(this.#directory);
    const keys = new Map<string, TokenKey>();
    for (const id of names.filter((name) => KEY_ID.test(name))) {
      const bytes = await readFile(join(this.#directory, id));
      if (bytes.byteLength !== KEY_BYTES) throw new Error(`token key ${id} must have ${KEY_BYTES} bytes`);
      const retiredAt = names.includes(id + RETIRED_SUFFIX) ? await this.#retiredAt(id) : null;
      keys.set(id, { id, secret: createSecretKey(bytes), retiredAt });
    }
    this.#keys = keys;
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
