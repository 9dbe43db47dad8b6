import { closeSync, openSync } from "node:fs";
import { type ChildProcess, start } from "../../system/exec.ts";
import { untilAborted } from "../../system/waiting.ts";
import { SocketChannel } from "../agent/channel.ts";
import { createMemfd, sealMemfd } from "../descriptors.ts";
import { VmmError } from "../machine-end.ts";
import type { SealedFile } from "./memory-file.ts";

/** Longest line of the program, in `bytes`. */
const LINE_BYTES_MAX = 1024;
const NEWLINE = 0x0a;

export interface MemoryCopyOptions {
  /** host path of the program; see vm-assets/fork */
  readonly program: string;
  /** pid of the VMM */
  readonly pid: number;
  /** address of the guest's memory in the VMM */
  readonly address: bigint;
  readonly memoryBytes: number;
  readonly signal: AbortSignal;
}

/** The progress of the program. */
interface Progress {
  /** guest memory that differs from the file that the machine started from, in `bytes` */
  readonly changedBytes: number;
  /** size of the memory file, in `bytes`; 0 until it is complete */
  readonly fileBytes: number;
}

/**
 * A copy of a running guest's memory. A program of its own makes it (vm-assets/fork), because it takes tens of milliseconds
 * and reads what a compromised VMM has prepared. Disposal ends the program.
 */
export class MemoryCopy implements AsyncDisposable {
  readonly #process: ChildProcess;
  readonly #channel: SocketChannel;
  readonly #owned: AsyncDisposableStack;
  readonly #file: number;
  readonly #lines: string[] = [];
  #received: Uint8Array = new Uint8Array(0);
  #isOver = false;
  #arrival = Promise.withResolvers<void>();

  private constructor(
    parts: { process: ChildProcess; channel: SocketChannel; file: number },
    owned: AsyncDisposableStack,
  ) {
    this.#process = parts.process;
    this.#channel = parts.channel;
    this.#file = parts.file;
    this.#owned = owned;
    parts.channel.onData((chunk) => this.#onBytes(chunk));
  }

  /**
   * Copies the memory while the guest runs.
   * @throws VmmError when the memory cannot be read; the reason of `signal`
   */
  static async open({ program, pid, address, memoryBytes, signal }: MemoryCopyOptions): Promise<MemoryCopy> {
    await using stack = new AsyncDisposableStack();
    const file = createMemfd("fork-memory", 0);
    stack.defer(() => closeSync(file));
    using source = new DisposableStack();
    const descriptors = ["mem", "pagemap", "maps"].map((name) => {
      const fd = openMemory(`/proc/${pid}/${name}`);
      source.defer(() => closeSync(fd));
      return fd;
    });
    const argv = [program, `${address}`, `${memoryBytes}`];
    const process = start({ argv, extraFds: ["socket", ...descriptors, file], stderr: "tail" });
    stack.defer(async () => {
      process.kill("SIGKILL");
      await process.exited;
    });
    const channel = stack.use(await SocketChannel.open(process.fds[0] ?? -1));
    const copy = new MemoryCopy({ process, channel, file }, stack.move());
    await using undo = new AsyncDisposableStack();
    undo.use(copy);
    await untilAborted(copy.#progress(), signal);
    undo.move();
    return copy;
  }

  /**
   * Makes the copy equal to the memory. The guest must be paused.
   * @returns the size of the changed memory, in `bytes`
   * @throws VmmError when the memory cannot be read
   */
  async finish(): Promise<number> {
    // The write fails only when the program has ended, which also ends the wait for its answer.
    this.#channel.write(Uint8Array.of(NEWLINE)).catch(() => undefined);
    return (await this.#progress()).changedBytes;
  }

  /** Waits for the complete file, to be called after `finish`. The guest may run. The caller closes the file. */
  async seal(): Promise<SealedFile> {
    const { fileBytes: sizeBytes } = await this.#progress();
    await this.#process.exited;
    // The copy of the descriptor is the caller's.
    const fd = openSync(`/proc/self/fd/${this.#file}`, "r");
    using undo = new DisposableStack();
    undo.defer(() => closeSync(fd));
    await sealMemfd(this.#file);
    await this[Symbol.asyncDispose]();
    undo.move();
    return { fd, sizeBytes };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }

  /** The next line of the program. */
  async #progress(): Promise<Progress> {
    for (;;) {
      const line = this.#lines.shift();
      if (line !== undefined) return parseProgress(line);
      if (this.#isOver) throw await this.#failure();
      await this.#arrival.promise;
    }
  }

  async #failure(): Promise<VmmError> {
    this.#process.kill("SIGKILL");
    const { code, signal } = await this.#process.exited;
    const said = this.#process.stderrTail();
    return new VmmError(`the memory was not copied: ${said === "" ? `the program ended (${signal ?? code})` : said}`);
  }

  #onBytes(chunk: Uint8Array | null): void {
    if (chunk !== null) this.#received = Buffer.concat([this.#received, chunk]);
    for (let end = this.#received.indexOf(NEWLINE); end >= 0; end = this.#received.indexOf(NEWLINE)) {
      this.#lines.push(Buffer.from(this.#received.subarray(0, end)).toString("latin1"));
      this.#received = this.#received.subarray(end + 1);
    }
    if (chunk === null || this.#received.byteLength > LINE_BYTES_MAX) this.#isOver = true;
    this.#arrival.resolve();
    this.#arrival = Promise.withResolvers();
  }
}

/** @throws VmmError when the VMM has ended, or its memory may not be read */
function openMemory(path: string): number {
  try {
    return openSync(path, "r");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EACCES" || code === "EPERM")
      throw new VmmError("this host does not let the service read the memory of a virtual machine (CAP_SYS_PTRACE)");
    throw new VmmError(`the memory of the virtual machine cannot be opened: ${code}`, { cause: error });
  }
}

function parseProgress(line: string): Progress {
  const { changed_bytes: changedBytes, file_bytes: fileBytes } = JSON.parse(line) as Record<string, number>;
  if (changedBytes === undefined || fileBytes === undefined)
    throw new VmmError("the memory was not copied: no progress");
  return { changedBytes, fileBytes };
}
