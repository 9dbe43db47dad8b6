import { given } from "../../domain/given.ts";
import type { Client } from "../client.ts";
import { UnreachableError } from "../errors.ts";
import { type ProcessName, pathOf } from "../processes.ts";
import { MessageSocket } from "./socket.ts";

/** The channel protocol of Kubernetes: the first byte of each message says what follows. */
const PROTOCOL = "v5.channel.k8s.io";
const Channel = { stdin: 0, stdout: 1, stderr: 2, status: 3, resize: 4, close: 255 } as const;

export interface AttachOptions {
  /** true: every byte, and the process waits for this reader; false: what the log keeps */
  readonly lossless?: boolean;
  /** only output of events with greater ids; default is all */
  readonly since?: number;
  /** called with the number of missing bytes of a stream */
  readonly onDropped?: (stream: "stdout" | "stderr", bytes: number) => void;
  /** called with the number of events that the log no longer has, perhaps with output of the process */
  readonly onGap?: (events: number) => void;
  /** called when all output up to an event was returned; a lossless attachment has no such positions */
  readonly onPosition?: (id: number) => void;
  readonly signal?: AbortSignal;
}

/** A piece of output. */
export interface AttachedOutput {
  readonly stream: "stdout" | "stderr";
  readonly bytes: Uint8Array;
}

/** Messages of the appliance other than output. */
interface Status {
  /** the process has ended: 128+n when signal n ended it */
  readonly exit_code?: number;
  /** all output up to this event was sent */
  readonly position?: number;
  /** bytes of a stream that were not stored */
  readonly dropped?: { readonly stream: "stdout" | "stderr"; readonly bytes: number };
  /** events before `first` that the log no longer has */
  readonly gap?: { readonly first: number; readonly dropped: number };
  /** a request failed, or the end of the process is unknown */
  readonly error?: { readonly message: string };
}

/** Close codes of a lost connection: it broke off, or the appliance is shutting down. */
const BROKEN_CODES: ReadonlySet<number> = new Set([1001, 1006, 1012]);

/** The part of an attachment that a session uses. */
export type AttachedStreams = Pick<Attachment, "exitCode" | "output" | "type" | "resize" | typeof Symbol.dispose>;

/** The streams of a process, also of one that has not begun. Leaving it leaves the process as it is. */
export class Attachment implements Disposable {
  readonly #socket: MessageSocket;
  readonly #on: Pick<AttachOptions, "onDropped" | "onGap" | "onPosition">;
  #exitCode: number | null = null;

  private constructor(socket: MessageSocket, on: Pick<AttachOptions, "onDropped" | "onGap" | "onPosition">) {
    this.#socket = socket;
    this.#on = on;
  }

  /** @throws ResponseError, UnreachableError, the reason of `signal` */
  static async open(
    client: Client,
    process: ProcessName,
    { lossless, since, signal, ...on }: AttachOptions = {},
  ): Promise<Attachment> {
    const socket = await MessageSocket.open(client, `${pathOf(process)}/attach`, {
      protocols: [PROTOCOL],
      query: { lossless, since, positions: on.onPosition === undefined ? undefined : true },
      ...given({ signal }),
    });
    return new Attachment(socket, on);
  }

  /** Exit code of the process, 128+n when signal n ended it; null until its output was read to the end. */
  get exitCode(): number | null {
    return this.#exitCode;
  }

  /** True when the connection is lost: another one can continue at its position. */
  get isBroken(): boolean {
    return BROKEN_CODES.has(this.#socket.end?.code ?? 0);
  }

  /** Output on arrival, until the end of the process. @throws UnreachableError when it breaks off before */
  async *output(): AsyncGenerator<AttachedOutput, void, undefined> {
    let problem = "";
    for await (const message of this.#socket.messages()) {
      const bytes = message.subarray(1);
      if (message[0] === Channel.stdout && bytes.byteLength > 0) yield { stream: "stdout", bytes };
      else if (message[0] === Channel.stderr && bytes.byteLength > 0) yield { stream: "stderr", bytes };
      else if (message[0] === Channel.status) {
        const status = JSON.parse(new TextDecoder().decode(bytes)) as Status;
        const { exit_code: exitCode, position, dropped, gap, error } = status;
        if (exitCode !== undefined) this.#exitCode = exitCode;
        if (position !== undefined) this.#on.onPosition?.(position);
        if (dropped !== undefined) this.#on.onDropped?.(dropped.stream, dropped.bytes);
        if (gap !== undefined) this.#on.onGap?.(gap.dropped);
        problem = error?.message ?? problem;
      }
    }
    const { end } = this.#socket;
    if (this.#exitCode === null && end !== null)
      throw new UnreachableError(problem || `it was closed with ${end.code}`);
  }

  /** Sends typed input; `streamInput` is for more than a person types. */
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
