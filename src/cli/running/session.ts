import { ReadableStream as WebStream } from "node:stream/web";
import type { Client } from "../../client/client.ts";
import type { AttachedOutput, AttachedStreams } from "../../client/connections/attachment.ts";
import { UnreachableError } from "../../client/errors.ts";
import { type ProcessName, passInput, signalProcess } from "../../client/processes.ts";
import { CliError, EXIT_NOT_RUN } from "../command.ts";
import type { Io } from "../io.ts";
import { attachText } from "../place.ts";
import { DetachKeys } from "./detach-keys.ts";

/** Source of the input of a process. */
export type InputSource =
  /** none */
  | "none"
  /** standard input, to its end */
  | "stream"
  /** keys of the terminal, each as it is pressed */
  | "keys";

export interface SessionOptions {
  readonly client: Client;
  readonly io: Io;
  readonly process: ProcessName;
  /** null: there is none, and nothing but standard input is passed on */
  readonly attachment: AttachedStreams | null;
  readonly input: InputSource;
  /** the process has a terminal, which gets the size of this one */
  readonly hasTerminal: boolean;
  /** resolves when the process can receive input; rejects when it never will */
  readonly started: Promise<void>;
  /** called before the first byte of output */
  readonly onOutput?: () => void;
  /** returns the part of a piece of standard output to show; default is all */
  readonly filter?: (bytes: Uint8Array) => Uint8Array;
}

/**
 * How a session ended. `complete`: with its process, and everything was passed on. `detached`: the person left the process,
 * which continues. `lost`: the connection did not last as long as the process.
 */
export type SessionEnd = "complete" | "detached" | "lost";

/**
 * Passes the streams of a process on until it has ended or is left. A reader that closes its end ends the process as a
 * broken pipe does.
 */
export class Session {
  readonly #options: SessionOptions;
  readonly #left = new AbortController();
  /** bytes of each stream that were passed on */
  readonly written = { stdout: 0, stderr: 0 };
  readonly #over = Promise.withResolvers<void>();
  readonly #isClosed = { stdout: false, stderr: false };
  #isDetached = false;
  #inputEnded: Promise<void> = Promise.resolve();

  constructor(options: SessionOptions) {
    this.#options = options;
  }

  /** When the connection breaks, standard input is passed on until `finish` is called. @throws the error of a write */
  async run(): Promise<SessionEnd> {
    const { attachment, started } = this.#options;
    // The modes of the terminal are restored before anything else is written to it.
    await using _left = {
      [Symbol.asyncDispose]: async () => {
        this.#left.abort();
        await this.#inputEnded;
      },
    };
    this.#left.signal.addEventListener("abort", () => attachment?.[Symbol.dispose](), { once: true });
    started.then(
      () => {
        this.#inputEnded = this.#input();
      },
      // A process that never starts reads no input.
      () => undefined,
    );
    const isWhole = attachment !== null && (await this.#output(attachment));
    if (this.#isDetached) return "detached";
    // Keys have no receiver any longer, and the person needs the terminal back.
    if (!isWhole && this.#options.input !== "keys") await this.#over.promise;
    return isWhole ? "complete" : "lost";
  }

  /** The process has ended. */
  finish(): void {
    this.#over.resolve();
  }

  /** Leaves the process as it is. */
  detach(): void {
    this.#isDetached = true;
    this.#left.abort();
    this.#over.resolve();
  }

  /** False when the connection breaks off before the end. */
  async #output(attachment: AttachedStreams): Promise<boolean> {
    const output = attachment.output();
    for (;;) {
      const next = await output.next().catch((error: Error) => {
        if (!(error instanceof UnreachableError)) throw error;
        return null;
      });
      if (next === null || next.done === true) return next !== null;
      await this.#write(next.value);
    }
  }

  async #write({ stream, bytes }: AttachedOutput): Promise<void> {
    const { io, onOutput, filter = (bytes) => bytes } = this.#options;
    if (this.written.stdout + this.written.stderr === 0) onOutput?.();
    this.written[stream] += bytes.byteLength;
    if (this.#isClosed[stream]) return;
    try {
      await (stream === "stdout" ? io.stdout(filter(bytes)) : io.stderrBytes(bytes));
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      // EIO: the terminal was closed, which is a signal of its own.
      if (code !== "EPIPE" && code !== "EIO") throw this.#unwritable(error as Error);
      this.#isClosed[stream] = true;
      if (code === "EPIPE") this.#brokenPipe();
    }
  }

  #unwritable(cause: Error): CliError {
    const back = `${attachText(this.#options.process)} comes back to it`;
    return new CliError(`cannot write its output, and leaves it: ${cause.message}; ${back}`, EXIT_NOT_RUN, { cause });
  }

  #brokenPipe(): void {
    const { client, process } = this.#options;
    // It may have ended by now; its output is dropped in any case.
    signalProcess(client, process, "PIPE").catch(() => undefined);
  }

  /** Never rejects. */
  async #input(): Promise<void> {
    const { input, io } = this.#options;
    if (this.#left.signal.aborted) return;
    try {
      if (input === "stream") await this.#stream();
      if (input === "keys") await this.#keys();
    } catch (error) {
      io.stderr(`coppice: no more input is passed on: ${(error as Error).message}\n`);
    }
  }

  async #stream(): Promise<void> {
    const { client, process, io } = this.#options;
    const { signal } = this.#left;
    const body = WebStream.from(io.stdin(signal)) as unknown as ReadableStream<Uint8Array>;
    await passInput(client, process, { body, signal }).catch((error: unknown) => {
      if (!signal.aborted) throw error;
    });
  }

  async #keys(): Promise<void> {
    const { io, attachment, hasTerminal } = this.#options;
    const { terminal } = io;
    if (terminal === null || attachment === null) return;
    const keys = new DetachKeys();
    using _raw = terminal.raw();
    const resize = () => attachment.resize(terminal.size());
    using _resize = hasTerminal ? io.onSignal(["SIGWINCH"], resize) : undefined;
    // It may have changed since the request.
    if (hasTerminal) resize();
    for await (const typed of io.stdin(this.#left.signal)) {
      const { passed, isDetached } = keys.take(typed);
      if (passed.byteLength > 0) attachment.type(passed);
      if (isDetached) return this.detach();
    }
  }
}
