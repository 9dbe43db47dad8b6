import { closeSync, constants, openSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { makeFifo } from "../../system/libc.ts";
import { homePaths } from "../jail/jailed-vmm.ts";

const NAME = "events";
const MODE = 0o600;

/**
 * Makes the named pipe for the events of a machine's VMM, which drops events while the pipe is full. The pipe keeps 64 KiB for
 * the next reader, however long there is none, so a guest that causes events cannot fill a disk.
 * @returns a descriptor for the VMM, which `stack` closes. It is also readable: the VMM is a reader of its
 *   own pipe, so the pipe never breaks.
 */
export async function createEventPipe(stack: DisposableStack | AsyncDisposableStack, home: string): Promise<number> {
  const { sockets } = homePaths(home);
  await mkdir(sockets, { mode: 0o700 });
  makeFifo(join(sockets, NAME), MODE);
  return openPipe(stack, home, constants.O_RDWR);
}

/** Reads the events of a machine's VMM. Only one process may do so. */
export class EventReader implements AsyncDisposable {
  readonly #reader: PipeReader;
  readonly #owned: DisposableStack;
  #isClosed = false;

  private constructor(reader: PipeReader, owned: DisposableStack) {
    this.#reader = reader;
    this.#owned = owned;
  }

  /** @throws Error with code ENOENT without a pipe */
  static open(home: string): EventReader {
    using stack = new DisposableStack();
    const fd = openPipe(stack, home, constants.O_RDONLY);
    return new EventReader(readerOf(fd), stack.move());
  }

  /** Starts to read. @param handler gets `null` when the VMM has closed the pipe, as its end does */
  onData(handler: (chunk: Uint8Array | null) => void): void {
    void this.#read(handler);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    await this.#reader.cancel();
    this.#owned.dispose();
  }

  async #read(handler: (chunk: Uint8Array | null) => void): Promise<void> {
    for (;;) {
      const { value } = await this.#reader.read();
      if (value === undefined) break;
      handler(value);
    }
    if (!this.#isClosed) handler(null);
  }
}

type PipeReader = ReturnType<typeof readerOf>;

function readerOf(fd: number) {
  return Bun.file(fd).stream().getReader();
}

function openPipe(stack: DisposableStack | AsyncDisposableStack, home: string, access: number): number {
  const fd = openSync(join(homePaths(home).sockets, NAME), access | constants.O_NONBLOCK | constants.O_NOFOLLOW);
  stack.defer(() => closeSync(fd));
  return fd;
}
