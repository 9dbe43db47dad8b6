import { isAscii } from "node:buffer";
import type { Output } from "../../service/running/outputs.ts";
import type { LongText } from "../output/json-stream.ts";
import type { SentOutputs } from "../output/sent-outputs.ts";
import { type OutputObject, outputObject } from "./schema/operations.ts";

/** An output object. The content of a long one is read while it is sent. */
export type SentOutput = OutputObject | (Omit<OutputObject, "content"> & { readonly content: LongText });

/** The wire form of an output, which `outputs` keeps until the reply is sent. */
export async function sentOutput(outputs: SentOutputs, output: Output, truncated: boolean): Promise<SentOutput> {
  if (output.kind === "short") return outputObject(output.bytes, truncated);
  const { text, encoding } = await outputs.addLong(output, isAscii);
  return { content: text, encoding, truncated };
}
