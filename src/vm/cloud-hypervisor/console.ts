import { connectUnix } from "../../system/unix-sockets.ts";
import { SocketChannel } from "../agent/channel.ts";
import { printable } from "../jail/machine-files.ts";

/** Kept of a guest's console, in `bytes`. */
const CONSOLE_BYTES_MAX = 16_384;

/**
 * From this release on the VMM keeps the end of the console, at most a MiB, for a reader that comes late (release-notes.md,
 * v53.0). Before, what nobody reads is lost, and a reader that is slow stops the guest's processor.
 */
export const CONSOLE_KEPT_MAJOR_MIN = 53;

/** The end of a guest's console, which the VMM offers on a unix socket. All of it is read at once. */
export class ConsoleTail implements AsyncDisposable {
  #kept: Uint8Array = new Uint8Array(0);
  #stream: SocketChannel | null = null;

  /** @throws LibcError when nobody listens at `path` */
  static async open(path: string): Promise<ConsoleTail> {
    const tail = new ConsoleTail();
    tail.#stream = await SocketChannel.open(connectUnix(path));
    tail.#stream.onData((chunk) => {
      if (chunk !== null) tail.#kept = Buffer.concat([tail.#kept, chunk]).subarray(-CONSOLE_BYTES_MAX);
    });
    return tail;
  }

  text(): string {
    return printable(Buffer.from(this.#kept).toString("utf8"));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stream?.close();
  }
}
