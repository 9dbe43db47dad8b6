import { closeSync } from "node:fs";
import { SocketChannel } from "../agent/channel.ts";
import { VmmError } from "../machine-end.ts";

/** The daemon's end of the socket over which a launcher is untied from the daemon. Until then it dies with the daemon. */
export class Lease implements Disposable {
  readonly #fd: number;
  #untied: Promise<void> | null = null;
  #closed = false;

  /** @param fd a connected socket, which the lease owns */
  constructor(fd: number) {
    this.#fd = fd;
  }

  /** Resolves when the launcher no longer dies with this process. @throws VmmError when it has ended */
  untie(): Promise<void> {
    this.#untied ??= this.#untie();
    return this.#untied;
  }

  async #untie(): Promise<void> {
    if (this.#closed) throw new VmmError("the machine has ended");
    this.#closed = true;
    await using channel = await SocketChannel.open(this.#fd);
    const answer = Promise.withResolvers<boolean>();
    channel.onData((chunk) => answer.resolve(chunk !== null));
    // A write fails only when the launcher has ended, and so does the answer.
    channel.write(Uint8Array.of(1)).catch(() => undefined);
    if (!(await answer.promise)) throw new VmmError("the machine has ended");
  }

  [Symbol.dispose](): void {
    if (!this.#closed) closeSync(this.#fd);
    this.#closed = true;
  }
}
