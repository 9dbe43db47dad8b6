const CTRL_P = 0x10;
const CTRL_Q = 0x11;

/** Finds Ctrl-P Ctrl-Q, which leaves a process, in what is typed. */
export class DetachKeys {
  #isBegun = false;

  /** What the process is to get of these keys, and whether the end of the two was among them. */
  take(keys: Uint8Array): { readonly passed: Uint8Array; readonly isDetached: boolean } {
    const passed: number[] = [];
    for (const key of keys) {
      if (this.#isBegun && key === CTRL_Q) return { passed: Uint8Array.from(passed), isDetached: true };
      // Held back until it is known what it begins.
      if (this.#isBegun) passed.push(CTRL_P);
      this.#isBegun = key === CTRL_P;
      if (!this.#isBegun) passed.push(key);
    }
    return { passed: Uint8Array.from(passed), isDetached: false };
  }
}
