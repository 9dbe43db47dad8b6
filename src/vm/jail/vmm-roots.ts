import { statSync } from "node:fs";
import { prepareVmmRoot, type VmmFiles } from "./vmm-root.ts";

/** A root that is not removed before it is disposed of. */
export interface HeldRoot extends Disposable {
  readonly path: string;
}

/** Roots that are not removed: a machine loses the mounts on its root together with the root. */
export class HeldRoots {
  readonly #paths: string[] = [];

  has(path: string): boolean {
    return this.#paths.includes(path);
  }

  hold(path: string): HeldRoot {
    this.#paths.push(path);
    let isHeld = true;
    return {
      path,
      [Symbol.dispose]: () => {
        if (isHeld) this.#paths.splice(this.#paths.indexOf(path), 1);
        isHeld = false;
      },
    };
  }
}

/**
 * The roots of one VMM: the newest, made from the host's current files, and those of saved templates. A state that one
 * version saved may not load in another.
 */
export class VmmRoots {
  readonly #files: VmmFiles;
  readonly #directory: string;
  readonly #held: HeldRoots;
  #current: string;
  #program: string | null;
  #preparing: Promise<void> = Promise.resolve();

  private constructor(
    { files, directory, held }: { files: VmmFiles; directory: string; held: HeldRoots },
    current: string,
    program: string | null,
  ) {
    this.#files = files;
    this.#directory = directory;
    this.#held = held;
    this.#current = current;
    this.#program = program;
  }

  /** @throws CommandError when the dynamic loader refuses the program */
  static async open(files: VmmFiles, directory: string, held = new HeldRoots()): Promise<VmmRoots> {
    // Read before the copy, so that a change during the copy is noticed later.
    const program = stateOf(files.program);
    return new VmmRoots({ files, directory, held }, await prepareVmmRoot(files, directory, held), program);
  }

  get current(): string {
    return this.#current;
  }

  /** True when the host's program was replaced after the newest root was made. One check takes microseconds. */
  get isOutdated(): boolean {
    const program = stateOf(this.#files.program);
    // During a package update the program may be missing for a moment.
    return program !== null && program !== this.#program;
  }

  /** Checks the program and all its libraries, and holds the newest root. @throws as `open` */
  async refresh(): Promise<HeldRoot> {
    const prepared = this.#preparing.then(() => this.#prepare());
    this.#preparing = prepared.then(
      () => undefined,
      // The caller gets the error; the next call tries again.
      () => undefined,
    );
    return this.hold(await prepared);
  }

  /** Holds the newest root, or one that is held already. */
  hold(path: string): HeldRoot {
    return this.#held.hold(path);
  }

  async #prepare(): Promise<string> {
    const program = stateOf(this.#files.program);
    // Machines may be starting from these roots; a later change or the next start of the daemon removes them.
    using _current = this.hold(this.#current);
    this.#current = await prepareVmmRoot(this.#files, this.#directory, this.#held);
    this.#program = program;
    return this.#current;
  }
}

/** A string that changes when the file is replaced or written; null when there is no file. */
function stateOf(path: string): string | null {
  const state = statSync(path, { throwIfNoEntry: false });
  return state === undefined ? null : `${state.dev}:${state.ino}:${state.size}:${state.mtimeMs}:${state.ctimeMs}`;
}
