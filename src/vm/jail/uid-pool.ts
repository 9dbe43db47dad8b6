/** Tells which processes are left of those that had a user id. */
export interface UidUsers {
  /** ids of processes; none when there is nothing left to look at */
  pids(): Promise<readonly number[]>;
}

/** A user id that no other live VM has. It is given back at disposal, or later: when no process that had it is left. */
export interface UidLease extends AsyncDisposable {
  readonly uid: number;
  /** Names who has the id from now on. */
  giveTo(users: UidUsers): void;
}

/** Gives each VM a user of its own: what one VMM leaves behind, another cannot touch. */
export class UidPool {
  readonly #base: number;
  readonly #count: number;
  readonly #used = new Set<number>();
  /** ids whose leases are over while processes were left, with those who can tell of them */
  readonly #outlived = new Map<number, UidUsers>();
  #next = 0;

  constructor(base: number, count: number) {
    this.#base = base;
    this.#count = count;
  }

  /** The id that was unused for the longest time. @throws Error when all are taken */
  async acquire(): Promise<UidLease> {
    for (const [uid, users] of this.#outlived) {
      // Another caller may have found the same meanwhile, and given the id away already.
      if (!(await isInUse(users)) && this.#outlived.delete(uid)) this.#used.delete(uid);
    }
    for (let tried = 0; tried < this.#count; tried++) {
      const uid = this.#base + ((this.#next + tried) % this.#count);
      if (this.#used.has(uid)) continue;
      this.#used.add(uid);
      this.#next = uid - this.#base + 1;
      return this.#lease(uid);
    }
    throw new Error(`all ${this.#count} user ids of the range for virtual machines are taken`);
  }

  #lease(uid: number): UidLease {
    let users: UidUsers | null = null;
    return {
      uid,
      giveTo: (given) => {
        users = given;
      },
      [Symbol.asyncDispose]: async () => {
        if (users !== null && (await isInUse(users))) this.#outlived.set(uid, users);
        else this.#used.delete(uid);
      },
    };
  }
}

/** Where nobody can tell, it is. */
async function isInUse(users: UidUsers): Promise<boolean> {
  try {
    return (await users.pids()).length > 0;
  } catch {
    // The control group cannot be read.
    return true;
  }
}
