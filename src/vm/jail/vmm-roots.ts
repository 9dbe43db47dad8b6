import { statSync } from "node:fs";
import { prepareVmmRoot, type VmmFiles } from "./vmm-root.ts";

/** A root that stays until it is given back. */
export interface HeldRoot extends Disposable {
  readonly path: string;
}

/**
 * Roots of one VMM: the newest, of the host's files as they are now, and those that templates were saved with: what one
 * version saved, another may not load.
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
    // Looked at first: a program that changes meanwhile is found to have changed.
    const program = stateOf(files.program);
    return new VmmRoots(files, directory, await prepareVmmRoot(files, directory), program);
  }

  get current(): string {
    return this.#current;
  }

  /** True when the host's program was replaced since the newest root was made. A look takes microseconds. */
  get isOutdated(): boolean {
    const program = stateOf(this.#files.program);
    // While it is being replaced there may be none.
    return program !== null && program !== this.#program;
  }

  /** Holds the newest root, after a look at the program and all its libraries. @throws as `open` */
  async refresh(): Promise<HeldRoot> {
    const prepared = this.#preparing.then(() => this.#prepare());
    this.#preparing = prepared.then(
      () => undefined,
      // It is told to who asked; the next one tries again.
      () => undefined,
    );
    return this.hold(await prepared);
  }

  /** Holds a root that is held, or the newest. */
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
    // Machines are being started from these: they go with the next change, or when the daemon starts again.
    const kept = new Set([this.#current, ...this.#held]);
    this.#current = await prepareVmmRoot(this.#files, this.#directory, kept);
    this.#program = program;
    return this.#current;
  }
}

/** Differs when the file was replaced or written; null when there is none. */
function stateOf(path: string): string | null {
  const state = statSync(path, { throwIfNoEntry: false });
  return state === undefined ? null : `${state.dev}:${state.ino}:${state.size}:${state.mtimeMs}:${state.ctimeMs}`;
}
