import type { OutputStream } from "../../domain/output.ts";
import { isShortOutput, LongOutput } from "../../storage/outputs.ts";
import type { Principal, ServiceParts } from "../parts.ts";

/** The captured output of a stream: all its bytes, or a file that stays open until disposal. */
export type Output =
  | { readonly kind: "short"; readonly bytes: Uint8Array }
  | ({ readonly kind: "long" } & Disposable & Pick<LongOutput, "pieces">);

/** The outputs of one process, for one reply. It must be disposed of after the reply was sent. */
export interface Outputs extends Disposable {
  read(stream: OutputStream): Promise<Output>;
}

export interface OutputSource {
  /** size of each output in `bytes` */
  readonly bytes: Readonly<Record<OutputStream, number>>;
  open(stream: OutputStream): Promise<Uint8Array | LongOutput>;
}

/**
 * Opens outputs. If one of them may be long, it first waits for a place, because a reader can be arbitrarily slow.
 * @throws ApiError as `Accounts.wait` does
 */
export async function openOutputs(
  parts: Pick<ServiceParts, "accounts">,
  { accountId }: Principal,
  { bytes, open }: OutputSource,
  signal: AbortSignal,
): Promise<Outputs> {
  const areShort = isShortOutput(bytes.stdout) && isShortOutput(bytes.stderr);
  const place = areShort ? null : await parts.accounts.wait(accountId, "replies", { signal });
  return {
    read: async (stream) => outputOf(await open(stream)),
    [Symbol.dispose]: () => place?.[Symbol.dispose](),
  };
}

/** Wraps an output that the storage has opened. */
function outputOf(output: Uint8Array | LongOutput): Output {
  if (!(output instanceof LongOutput)) return { kind: "short", bytes: output };
  return {
    kind: "long",
    pieces: () => output.pieces(),
    [Symbol.dispose]: () => output[Symbol.dispose](),
  };
}
