import type { Output, Outputs } from "../../service/running/outputs.ts";
import { JSON_TYPE, json, type Reply } from "../reply.ts";
import { streamed } from "../stream/text.ts";
import { jsonPieces, LongText, mapped } from "./json-stream.ts";

const SHORT_BYTES_MAX = 65_536;

/** A captured output that is too long for memory. */
export type LongOutput = Extract<Output, { readonly kind: "long" }>;

/** The outputs of one reply, which stay open until it is sent. */
export class SentOutputs implements Disposable {
  readonly #held = new DisposableStack();
  #isLong = false;

  /** Keeps `outputs` until the reply is sent, and returns them. */
  hold(outputs: Outputs): Outputs {
    return this.#held.use(outputs);
  }

  /**
   * Keeps a long output until the reply is sent, and returns its text, which is read meanwhile.
   * @param isPlain whether bytes are sent as they are; an output with others is sent in base64
   */
  async addLong(
    output: LongOutput,
    isPlain: (bytes: Uint8Array) => boolean,
  ): Promise<{ readonly text: LongText; readonly encoding: "ascii" | "base64" }> {
    this.#held.use(output);
    this.#isLong = true;
    const encoding = (await allPieces(output, isPlain)) ? "ascii" : "base64";
    return { text: new LongText(output.pieces(), encoding), encoding };
  }

  /**
   * The reply with a body that contains the outputs. It takes over the open files. A long body is sent in chunks: some clients
   * refuse one that announces more than 64 KiB.
   */
  async reply(body: object, status: number, headers: Record<string, string> = {}): Promise<Reply> {
    const short = this.#isLong ? null : json(status, body, headers);
    if (short !== null && Buffer.byteLength(short.body) <= SHORT_BYTES_MAX) return short;
    const pieces = short === null ? jsonPieces(body) : mapped([short.body], (text) => text);
    const reply = await streamed(JSON_TYPE, pieces, this.#held.move());
    return { ...reply, status, headers: { ...headers, ...reply.headers } };
  }

  /** Closes the outputs, unless a reply has taken them over. */
  [Symbol.dispose](): void {
    this.#held.dispose();
  }
}

async function allPieces(output: LongOutput, isPlain: (bytes: Uint8Array) => boolean): Promise<boolean> {
  for await (const piece of output.pieces()) if (!isPlain(piece)) return false;
  return true;
}
