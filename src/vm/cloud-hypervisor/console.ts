import { connectUnix } from "../../system/unix-sockets.ts";
import { SocketChannel } from "../agent/channel.ts";
import { printable } from "../jail/machine-files.ts";

/** Size of the kept end of a guest's console, in `bytes`. */
const CONSOLE_BYTES_MAX = 16_384;

/**
 * First release in which the VMM keeps the end of the console, at most a MiB, for a reader that connects late
 * (release-notes.md, v53.0). Earlier releases lose the output while no reader is connected, and a slow reader stops the
 * guest's processor.
 */
const CONSOLE_KEPT_MAJOR_MIN = 53;

/** Whether the VMM keeps the end of the console for a reader that connects late. @param version as the program prints it */
export function keepsConsole(version: string): boolean {
  return Number(version.split(".")[0]) >= CONSOLE_KEPT_MAJOR_MIN;
}

/** Reads a guest's console from the VMM's unix socket, and keeps the end of it. */
export class ConsoleTail implements AsyncDisposable {
  #kept: Uint8Array = new Uint8Array(0);
  #stream: SocketChannel | null = null;

  /** @throws LibcError when the VMM does not listen at `path` */
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
