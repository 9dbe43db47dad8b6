import type { Gate } from "../../network/gate.ts";
import type { TokenBucket } from "./token-bucket.ts";

/** How long the answers are cached that a name exists, and that it does not. */
const NAME_MS = 60_000;
const MISSING_NAME_MS = 5000;
/** Largest number of names whose answers are cached. */
const NAMES_COUNT_MAX = 1024;

interface CachedName {
  readonly exists: Promise<boolean>;
  readonly until: number;
}

export interface NameCacheOptions {
  readonly gate: Pick<Gate, "resolve">;
  readonly account: string;
  /** the lookups that may be made */
  readonly bucket: TokenBucket;
  /** monotonic, in `milliseconds` */
  readonly now: () => number;
  readonly signal: AbortSignal;
}

/** The names that an instance has looked up lately. */
export class NameCache {
  readonly #options: NameCacheOptions;
  readonly #names = new Map<string, CachedName>();

  constructor(options: NameCacheOptions) {
    this.#options = options;
  }

  /**
   * Whether the name exists, from the cache or the gate; null when the instance looks up too many names.
   * @param named whether the operator names it
   */
  exists(name: string, named: boolean): Promise<boolean> | null {
    const { gate, account, bucket, now, signal } = this.#options;
    const cached = this.#names.get(name);
    if (cached !== undefined && cached.until > now()) return cached.exists;
    if (!bucket.take()) return null;
    const exists = gate.resolve(name, signal, { named, account });
    this.#cache(name, { exists, until: now() + NAME_MS });
    exists.then(
      (value) => {
        if (!value) this.#cache(name, { exists, until: now() + MISSING_NAME_MS });
      },
      // Only answers are cached.
      () => this.#names.delete(name),
    );
    return exists;
  }

  #cache(name: string, answer: CachedName): void {
    this.#names.delete(name);
    const [oldest] = this.#names.keys();
    if (oldest !== undefined && this.#names.size >= NAMES_COUNT_MAX) this.#names.delete(oldest);
    this.#names.set(name, answer);
  }
}
