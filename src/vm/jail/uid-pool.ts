/** Lists the processes that run under a user id. */
export interface UidUsers {
  /** pids of the remaining processes; empty when there are none, or when the cgroup is removed */
  pids(): Promise<readonly number[]>;
}

/** A user id that no other live VM has. After disposal it is free again once no process runs under it. */
export interface UidLease extends AsyncDisposable {
  readonly uid: number;
  /** Sets the source that lists the processes of this id. */
  usedBy(users: UidUsers): void;
}

/** Gives each VM a user of its own, so that no VMM can access the files that another one left behind. */
export class UidPool {
  readonly #base: number;
  readonly #count: number;
  readonly #used = new Set<number>();
  /** ids whose leases are disposed of while processes still run under them */
  readonly #lingering = new Map<number, UidUsers>();
  #next = 0;

  constructor(base: number, count: number) {
    this.#base = base;
    this.#count = count;
  }

  /** Leases the id that was unused for the longest time. @throws Error when all ids are taken */
  async acquire(): Promise<UidLease> {
    for (const [uid, users] of this.#lingering) {
      // Another caller may have freed this id during the wait; only the one that deletes it may free it.
      if (!(await isInUse(users)) && this.#lingering.delete(uid)) this.#used.delete(uid);
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

  /** Leases the id of a machine that an earlier daemon started. @throws Error when it is taken or not of the range */
  reserve(uid: number): UidLease {
    if (uid < this.#base || uid >= this.#base + this.#count) throw new Error(`user id ${uid} is not in the range`);
    if (this.#used.has(uid)) throw new Error(`user id ${uid} is taken`);
    this.#used.add(uid);
    return this.#lease(uid);
  }

  #lease(uid: number): UidLease {
    let users: UidUsers | null = null;
    return {
      uid,
      usedBy: (given) => {
        users = given;
      },
      [Symbol.asyncDispose]: async () => {
        if (users !== null && (await isInUse(users))) this.#lingering.set(uid, users);
        else this.#used.delete(uid);
      },
    };
  }
}

/** Assumes that an id is in use when its processes cannot be listed. */
async function isInUse(users: UidUsers): Promise<boolean> {
  try {
    return (await users.pids()).length > 0;
  } catch {
    // The cgroup cannot be read.
    return true;
  }
}
