import { UseCount } from "../use-count.ts";
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
  readonly id: string = crypto.randomUUID();
  readonly shape: MachineShape;
  readonly root: string;
  readonly memoryBytes: number;
  readonly #memory: number;
  readonly #state: number;
  readonly #owned: AsyncDisposableStack;
  readonly #uses = new UseCount();

  /** @param owned closes the files and gives back the root */
  constructor({ shape, root, memory, state }: SavedParts, owned: AsyncDisposableStack) {
    this.shape = shape;
    this.root = root;
    this.memoryBytes = memory.sizeBytes + state.sizeBytes;
    this.#memory = memory.fd;
    this.#state = state.fd;
    this.#owned = owned;
  }

  /** resolves when it and the last machine that maps its memory are gone */
  get released(): Promise<void> {
    return this.#uses.released;
  }

  get isInUse(): boolean {
    return this.#uses.isInUse;
  }

  /** Counts a machine that maps the memory, until the result is disposed of. */
  use(): Disposable {
    return this.#uses.use();
  }

  /** @throws Error after disposal, when the numbers may belong to other files */
  get descriptors(): { readonly memory: number; readonly state: number } {
    if (this.#owned.disposed) throw new Error("the saved machine is gone");
    return { memory: this.#memory, state: this.#state };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
    this.#uses.leave();
  }
}
