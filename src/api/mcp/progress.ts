/** Messages about progress that wait for a client that does not read. */
const UNREAD_COUNT_MAX = 4;

/** Bounds the messages about the progress of a request: the library keeps all that the client has not read. */
export class Progress {
  #unread = 0;

  /** True when one more may be sent, which counts it; the client gets none of the others. */
  begin(): boolean {
    if (this.#unread >= UNREAD_COUNT_MAX) return false;
    this.#unread += 1;
    return true;
  }

  /** To be called when the client has taken an event of the answer. */
  taken(): void {
    if (this.#unread > 0) this.#unread -= 1;
  }
}
