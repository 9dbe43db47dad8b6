import { statSync } from "node:fs";
import { prepareVmmRoot, type VmmFiles } from "./vmm-root.ts";

/** A root that is not removed before it is disposed of. */
export interface HeldRoot extends Disposable {
  readonly path: string;
}

/**
 * The roots of one VMM: the newest, made from the host's current files, and those of saved templates. A state that one
 * version saved may not load in another.
 */
export class VmmRoots {
  readonly #files: VmmFiles;
  readonly #directory: string;
  readonly #held: string[] = [];
  #current: string;
  #program: string | null;
  #preparing: Promise<void> = Promise.resolve();

  private constructor(files: VmmFiles, directory: string, current: string, program: string | null) {
    this.#files = files;
    this.#directory = directory;
    this.#current = current;
    this.#program = program;
  }

  /** @throws CommandError when the dynamic loader refuses the program */
  static async open(files: VmmFiles, directory: string): Promise<VmmRoots> {
    // Read before the copy, so that a change during the copy is noticed later.
    const program = stateOf(files.program);
    return new VmmRoots(files, directory, await prepareVmmRoot(files, directory), program);
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
    this.#held.push(path);
    let isHeld = true;
    return {
      path,
      [Symbol.dispose]: () => {
        if (isHeld) this.#held.splice(this.#held.indexOf(path), 1);
        isHeld = false;
      },
    };
  }

  async #prepare(): Promise<string> {
    const program = stateOf(this.#files.program);
    // Machines may be starting from these roots; a later change or the next start of the daemon removes them.
    const kept = new Set([this.#current, ...this.#held]);
    this.#current = await prepareVmmRoot(this.#files, this.#directory, kept);
    this.#program = program;
    return this.#current;
  }
}

/** A string that changes when the file is replaced or written; null when there is no file. */
function stateOf(path: string): string | null {
  const state = statSync(path, { throwIfNoEntry: false });
  return state === undefined ? null : `${state.dev}:${state.ino}:${state.size}:${state.mtimeMs}:${state.ctimeMs}`;
}
