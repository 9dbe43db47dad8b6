import type { Output, Outputs } from "../../service/outputs.ts";
import { jsonPieces, LongText } from "../json-stream.ts";
import { JSON_TYPE, json, type Reply } from "../reply.ts";
import { streamed } from "../stream.ts";
import { type OutputObject, outputObject } from "./schema/operations.ts";

/** An output object. The content of a long one is read while it is sent. */
export type SentOutput = OutputObject | (Omit<OutputObject, "content"> & { readonly content: LongText });

/** The outputs of one reply, which stay open until it is sent. */
export class SentOutputs implements Disposable {
  readonly #held = new DisposableStack();
  #isLong = false;

  /** Keeps `outputs` until the reply is sent, and returns them. */
  hold(outputs: Outputs): Outputs {
    return this.#held.use(outputs);
  }

  async add(output: Output, truncated: boolean): Promise<SentOutput> {
    if (output.kind === "short") return outputObject(output.bytes, truncated);
    this.#held.use(output);
    this.#isLong = true;
    const encoding = (await output.isAscii()) ? "ascii" : "base64";
    return { content: new LongText(output.pieces(), encoding), encoding, truncated };
  }

  /** The reply with a body that contains the outputs. It takes over the open files. */
  async reply(body: object, status: number, headers: Record<string, string> = {}): Promise<Reply> {
    if (!this.#isLong) return json(status, body, headers);
    const reply = await streamed(JSON_TYPE, jsonPieces(body), this.#held.move());
    return { ...reply, status, headers: { ...headers, ...reply.headers } };
  }

  /** Closes the outputs, unless a reply has taken them over. */
  [Symbol.dispose](): void {
    this.#held.dispose();
  }
}
