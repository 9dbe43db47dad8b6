import type { Client } from "./client.ts";
import { UnreachableError } from "./errors.ts";
import { type ProcessName, pathOf } from "./processes.ts";
import { MessageSocket } from "./socket.ts";

/** The channel protocol of Kubernetes: the first byte of each message says what follows. */
const PROTOCOL = "v5.channel.k8s.io";
const Channel = { stdin: 0, stdout: 1, stderr: 2, status: 3, resize: 4, close: 255 } as const;

export interface AttachOptions {
  /** true: every byte, and the process waits for this reader; false: what the log keeps */
  readonly lossless?: boolean;
  /** told of bytes of a stream that are missing */
  readonly onDropped?: (stream: "stdout" | "stderr", bytes: number) => void;
  readonly signal?: AbortSignal;
}

/** A piece of output. */
export interface AttachedOutput {
  readonly stream: "stdout" | "stderr";
  readonly bytes: Uint8Array;
}

/** What the appliance tells beside the output. */
interface Status {
  /** the process has ended: 128+n when signal n ended it */
  readonly exit_code?: number;
  /** bytes of a stream that nobody has kept */
  readonly dropped?: { readonly stream: "stdout" | "stderr"; readonly bytes: number };
  /** something was not done, or the end of the process is not known */
  readonly error?: { readonly message: string };
}

/** The streams of a process, also of one that has not begun. Leaving it leaves the process as it is. */
export class Attachment implements Disposable {
  readonly #socket: MessageSocket;
  readonly #onDropped: NonNullable<AttachOptions["onDropped"]>;
  #exitCode: number | null = null;

  private constructor(socket: MessageSocket, onDropped: AttachOptions["onDropped"] = () => undefined) {
    this.#socket = socket;
    this.#onDropped = onDropped;
  }

  /** @throws ResponseError, UnreachableError, the reason of `signal` */
  static async open(
    client: Client,
    process: ProcessName,
    { lossless, signal, onDropped }: AttachOptions = {},
  ): Promise<Attachment> {
    const socket = await MessageSocket.open(client, `${pathOf(process)}/attach`, {
      protocols: [PROTOCOL],
      query: { lossless },
      ...(signal === undefined ? {} : { signal }),
    });
    return new Attachment(socket, onDropped);
  }

  /** Of the process, 128+n when signal n ended it; null as long as its output was not read to the end. */
  get exitCode(): number | null {
    return this.#exitCode;
  }

  /** Output as it comes, to the end of the process. @throws UnreachableError when it breaks off before */
  async *output(): AsyncGenerator<AttachedOutput, void, undefined> {
    let problem = "";
    for await (const message of this.#socket.messages()) {
      const bytes = message.subarray(1);
      if (message[0] === Channel.stdout && bytes.byteLength > 0) yield { stream: "stdout", bytes };
      else if (message[0] === Channel.stderr && bytes.byteLength > 0) yield { stream: "stderr", bytes };
      else if (message[0] === Channel.status) {
        const { exit_code: exitCode, dropped, error } = JSON.parse(new TextDecoder().decode(bytes)) as Status;
        if (exitCode !== undefined) this.#exitCode = exitCode;
        if (dropped !== undefined) this.#onDropped(dropped.stream, dropped.bytes);
        problem = error?.message ?? problem;
      }
    }
    const { end } = this.#socket;
    if (this.#exitCode === null && end !== null)
      throw new UnreachableError(problem || `it was closed with ${end.code}`);
  }

  /** Sends what was typed: more at a time than a person types belongs to `streamInput`. */
  type(bytes: Uint8Array): void {
    this.#socket.send(channelMessage(Channel.stdin, bytes));
  }

  resize({ rows, cols }: { readonly rows: number; readonly cols: number }): void {
    const size = JSON.stringify({ Width: cols, Height: rows });
    this.#socket.send(channelMessage(Channel.resize, new TextEncoder().encode(size)));
  }

  [Symbol.dispose](): void {
    this.#socket[Symbol.dispose]();
  }
}

function channelMessage(channel: number, bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const message = new Uint8Array(1 + bytes.byteLength);
  message[0] = channel;
  message.set(bytes, 1);
  return message;
}
