import { text } from "../../support/appliance/appliance.ts";
import type { BenchHost } from "../host.ts";
import type { Counts } from "./counter.ts";

/** More than all symbols of a kernel with its modules take, in `bytes`. */
const OUTPUT_BYTES_MAX = 10_485_760;
/** Below this are programs, above it is the kernel. */
const KERNEL = 1n << 63n;

/** The functions of the guest's kernel by their address. */
export class KernelSymbols {
  readonly #addresses: readonly bigint[];
  readonly #names: readonly string[];

  private constructor(symbols: readonly (readonly [bigint, string])[]) {
    const sorted = symbols.toSorted(([a], [b]) => (a < b ? -1 : 1));
    this.#addresses = sorted.map(([address]) => address);
    this.#names = sorted.map(([, name]) => name);
  }

  /** As a guest of the appliance lists them. */
  static async read({ target, base }: BenchHost): Promise<KernelSymbols> {
    const list = "grep -i ' [tw] ' /proc/kallsyms";
    const { stdout } = await target.run(base, list, { disposable: true, truncate_output_at: OUTPUT_BYTES_MAX });
    const lines = text(stdout).trimEnd().split("\n");
    return new KernelSymbols(
      lines.map((line) => {
        const [address, , name = ""] = line.split(/\s+/);
        return [BigInt(`0x${address}`), name] as const;
      }),
    );
  }

  /** The function that an address lies in; programs are one. */
  nameOf(address: bigint): string {
    if (address < KERNEL) return "programs";
    let [low, high] = [0, this.#addresses.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#addresses[middle] ?? 0n) <= address) low = middle + 1;
      else high = middle;
    }
    return this.#names[low - 1] ?? "unknown";
  }

  /** Instructions by function, the most first. */
  byFunction(counts: Counts): [string, number][] {
    const sums = new Map<string, number>();
    for (const [address, count] of counts) {
      const name = this.nameOf(address);
      sums.set(name, (sums.get(name) ?? 0) + count);
    }
    return [...sums].sort(([, a], [, b]) => b - a);
  }
}
