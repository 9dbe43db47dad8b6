import type { OperationId } from "../../domain/ids.ts";
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

/** Limits of `RecentOutputs`: of one output, in `bytes`, and of all. */
export const RECENT_BYTES_MAX = 4096;
export const RECENT_COUNT_MAX = 256;

/** The latest short outputs of operations that have ended: clients poll, and these never change. */
export class RecentOutputs {
  readonly #outputs = new Map<string, Uint8Array>();

  /** The output of a stream, which `open` opens unless it is here. */
  async read(id: OperationId, stream: OutputStream, open: OutputSource["open"]): Promise<Uint8Array | LongOutput> {
    const key = `${stream} ${id}`;
    const kept = this.#outputs.get(key);
    if (kept !== undefined) return kept;
    const output = await open(stream);
    if (output instanceof LongOutput || output.byteLength > RECENT_BYTES_MAX) return output;
    for (const oldest of this.#outputs.keys()) {
      if (this.#outputs.size < RECENT_COUNT_MAX) break;
      this.#outputs.delete(oldest);
    }
    // A view would keep the memory of what it was cut from.
    this.#outputs.set(key, new Uint8Array(output));
    return output;
  }
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
