import type { MachineShape } from "../vmm.ts";
import type { SealedFile } from "./memory-file.ts";

export interface SavedParts {
  readonly shape: MachineShape;
  /** root of the QEMU that saved it; others run the same QEMU */
  readonly root: string;
  readonly memory: SealedFile;
  readonly state: SealedFile;
}

/** Memory and device state of a paused machine, sealed. Other machines start from them. */
export class SavedMachine implements AsyncDisposable {
  readonly shape: MachineShape;
  readonly root: string;
  readonly memoryBytes: number;
  /** resolves when it and the last machine that maps its memory are gone */
  readonly released: Promise<void>;
  readonly #memory: number;
  readonly #state: number;
  readonly #owned: AsyncDisposableStack;
  readonly #release: () => void;
  #usersCount = 0;

  /** @param owned closes the files and gives back the root */
  constructor({ shape, root, memory, state }: SavedParts, owned: AsyncDisposableStack) {
    this.shape = shape;
    this.root = root;
    this.memoryBytes = memory.sizeBytes + state.sizeBytes;
    this.#memory = memory.fd;
    this.#state = state.fd;
    this.#owned = owned;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.released = promise;
    this.#release = resolve;
  }

  get isInUse(): boolean {
    return this.#usersCount > 0;
  }

  /** Counts a machine that maps the memory, until the result is disposed of. */
  use(): Disposable {
    this.#usersCount += 1;
    return {
      [Symbol.dispose]: () => {
        this.#usersCount -= 1;
        this.#check();
      },
    };
  }

  /** @throws Error after disposal, when the numbers may belong to other files */
  get descriptors(): { readonly memory: number; readonly state: number } {
    if (this.#owned.disposed) throw new Error("the saved machine is gone");
    return { memory: this.#memory, state: this.#state };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
    this.#check();
  }

  #check(): void {
    if (this.#owned.disposed && this.#usersCount === 0) this.#release();
  }
}
