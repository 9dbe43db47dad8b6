import { createSecretKey, type KeyObject, randomBytes } from "node:crypto";
import { statSync } from "node:fs";
import { mkdir, readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { writeFileAtomic } from "../system/scratch.ts";
import { sharedTurnSince } from "../system/turns.ts";

const KEY_BYTES = 32;
const KEY_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/;
/** Suffix of the file with the time at which a key expires (`milliseconds` since the epoch, as text). */
const RETIRED_SUFFIX = ".retired";
/**
 * File systems store times of change only as fine as their clock tick, so a directory that has just changed may change
 * again without a new time. A directory that was read within this time after a change is read again, in `milliseconds`.
 */
const SETTLED_AFTER_MS = 50;

export interface TokenKey {
  readonly id: string;
  readonly secret: KeyObject;
  /** time of expiry in `milliseconds` since the epoch; null for a key that does not expire */
  readonly expiresAt: number | null;
}

/**
 * The secrets that sign tokens: a file of 32 random bytes each, named by the key's id. Ids sort by age. The newest key
 * without expiry signs; all keys verify until they expire.
 */
export class TokenKeys {
  readonly #directory: string;
  readonly #clock: () => number;
  #keys = new Map<string, TokenKey>();
  #version: string | null = null;
  /** the latest turn of the event loop in which the directory was found unchanged */
  #checkedIn: number | null = null;

  private constructor(directory: string, clock: () => number) {
    this.#directory = directory;
    this.#clock = clock;
  }

  /** Opens the directory, creates it (0700) if needed, and creates the first key. */
  static async open(directory: string, clock: () => number = Date.now): Promise<TokenKeys> {
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const keys = new TokenKeys(directory, clock);
    await keys.#reload();
    if (keys.#newest() === null) await keys.#create();
    return keys;
  }

  /** The key that signs new tokens. @throws Error when there is none */
  async signing(): Promise<TokenKey> {
    await this.#refresh();
    const key = this.#newest();
    if (key === null) throw new Error("no signing key is left in the key directory");
    return key;
  }

  /** The key with this id; null when it is unknown or expired. */
  async find(id: string): Promise<TokenKey | null> {
    await this.#refresh();
    const key = this.#keys.get(id);
    return key === undefined || isExpired(key, this.#clock()) ? null : key;
  }

  /**
   * Creates a new signing key. Older keys expire after `graceMs`, and those that have expired are removed.
   * @returns the id of the new key
   */
  async rotate(graceMs: number): Promise<string> {
    await this.#reload();
    const now = this.#clock();
    const older = [...this.#keys.values()];
    const id = await this.#create();
    for (const key of older) {
      if (isExpired(key, now)) await this.#remove(key.id);
      else if (key.expiresAt === null || key.expiresAt > now + graceMs) {
        await writeFileAtomic(join(this.#directory, key.id + RETIRED_SUFFIX), String(now + graceMs));
      }
    }
    await this.#reload();
    return id;
  }

  #newest(): TokenKey | null {
    let newest: TokenKey | null = null;
    for (const key of this.#keys.values()) {
      if (key.expiresAt === null && (newest === null || key.id > newest.id)) newest = key;
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
   * Reads the keys again when the directory has changed: the command line rotates keys while the service runs, and a token
   * of a new key must be valid at once. The check takes microseconds, less than a call to a thread; all requests of one turn
   * of the event loop share it.
   */
  async #refresh(): Promise<void> {
    const turn = sharedTurnSince();
    if (turn === this.#checkedIn) return;
    const version = this.#directoryVersion();
    if (version !== null && version === this.#version) this.#checkedIn = turn;
    else await this.#reload();
  }

  /** A string that identifies the state of the directory; null when it changed too recently to be identified. */
  #directoryVersion(): string | null {
    const { mtimeMs, mtimeNs, ctimeNs } = statSync(this.#directory, { bigint: true });
    return Math.abs(Date.now() - Number(mtimeMs)) < SETTLED_AFTER_MS ? null : `${mtimeNs}:${ctimeNs}`;
  }

  async #reload(): Promise<void> {
    // Taken before the read, so that a change during the read makes the next check differ.
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

  /** Reads a key; null when it was removed after the directory was read. */
  async #read(id: string, retired: boolean): Promise<TokenKey | null> {
    try {
      const bytes = await readFile(join(this.#directory, id));
      if (bytes.byteLength !== KEY_BYTES) throw new Error(`token key ${id} must have ${KEY_BYTES} bytes`);
      return { id, secret: createSecretKey(bytes), expiresAt: retired ? await this.#expiresAt(id) : null };
    } catch (error) {
      if (error instanceof Error && "code" in error && error.code === "ENOENT") return null;
      throw error;
    }
  }

  /** An unreadable time counts as expired, to be on the safe side. */
  async #expiresAt(id: string): Promise<number> {
    const time = Number((await readFile(join(this.#directory, id + RETIRED_SUFFIX), "utf8")).trim());
    return Number.isSafeInteger(time) ? time : 0;
  }
}

function isExpired(key: TokenKey, now: number): boolean {
  return key.expiresAt !== null && key.expiresAt <= now;
}
