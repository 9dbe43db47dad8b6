/** Largest number of messages about progress that wait for a client that does not read. */
const UNREAD_COUNT_MAX = 4;

/** Bounds the messages about the progress of a request: the library stores all that the client has not read. */
export class Progress {
  #unread = 0;

  /** Counts a message, and returns true, if it may be sent; the client does not get the others. */
  begin(): boolean {
    if (this.#unread >= UNREAD_COUNT_MAX) return false;
    this.#unread += 1;
    return true;
  }

  /** To be called when the client has read an event of the answer. */
  taken(): void {
    if (this.#unread > 0) this.#unread -= 1;
  }
}
