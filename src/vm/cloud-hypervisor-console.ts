import { SocketChannel } from "./channel.ts";
import { printable } from "./machine-files.ts";
import { connectUnix } from "./unix-sockets.ts";

/** Kept of a guest's console, in `bytes`. */
const CONSOLE_BYTES_MAX = 16_384;

/**
 * The end of a guest's console. The VMM offers its serial port on a unix socket and waits for whoever reads there
 * (v52, vmm/src/serial_manager.rs), so everything is read at once and only the end is kept.
 */
export class ConsoleTail implements AsyncDisposable {
  #kept: Uint8Array = new Uint8Array(0);
  #stream: SocketChannel | null = null;

  /** @throws SystemCallError when nobody listens at `path` */
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
