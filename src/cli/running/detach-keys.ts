const CTRL_P = 0x10;
const CTRL_Q = 0x11;

/** Finds Ctrl-P Ctrl-Q, which leaves a process, in typed keys. */
export class DetachKeys {
  #isBegun = false;

  /** The keys for the process, and whether the sequence was completed. */
  take(keys: Uint8Array): { readonly passed: Uint8Array; readonly isDetached: boolean } {
    const passed: number[] = [];
    for (const key of keys) {
      if (this.#isBegun && key === CTRL_Q) return { passed: Uint8Array.from(passed), isDetached: true };
      // Held back until the next key.
      if (this.#isBegun) passed.push(CTRL_P);
      this.#isBegun = key === CTRL_P;
      if (!this.#isBegun) passed.push(key);
    }
    return { passed: Uint8Array.from(passed), isDetached: false };
  }
}
