import { copyFile, mkdir, readdir, readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../../../src/system/exec.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { pause, until } from "../../support/waiting.ts";

/** counter.c has the same. */
const SLOTS_COUNT = 131_072;
const SLOT_BYTES = 16;
const COMPILER_MS = 60_000;
/** Descriptors of a machine end below these; the launcher requires ascending order. */
const PLUGIN_FD = 8;
const TABLE_FD = 9;
/** An idle guest executes fewer instructions in `QUIET_MS`. */
const QUIET_COUNT = 100_000;
const QUIET_MS = 300;
const QUIET_MS_MAX = 60_000;
const END_MS_MAX = 30_000;

/** Instructions of one guest by the address of the block of code that they are in. */
export type Counts = ReadonlyMap<bigint, number>;

/**
 * Counts the instructions of an appliance's guests. The appliance knows nothing of it: the launcher that it has unpacked
 * is replaced by a script, which gives the plug-in and a table in shared memory to each QEMU.
 */
export class InstructionCounter {
  readonly #appliance: Appliance;
  readonly #directory: string;

  private constructor(appliance: Appliance, directory: string) {
    this.#appliance = appliance;
    this.#directory = directory;
  }

  /** Counts in the machines that start from now on. @param directory of its files, which live as long as the appliance */
  static async attach(appliance: Appliance, directory: string): Promise<InstructionCounter> {
    const plugin = join(directory, "counter.so");
    const source = join(import.meta.dir, "counter.c");
    const compiler = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"];
    await run({ argv: [...compiler, "-o", plugin, source], timeoutMs: COMPILER_MS });
    const assets = join(appliance.dataDir, "assets");
    const [hash] = await readdir(assets);
    if (hash === undefined) throw new Error("instructions are counted for the built executable only");
    const launcher = join(assets, hash, "launch");
    await mkdir(join(directory, "tables"));
    await copyFile(launcher, join(directory, "launch"));
    await writeFile(`${launcher}.new`, scriptOf(directory), { mode: 0o755 });
    await rename(`${launcher}.new`, launcher);
    return new InstructionCounter(appliance, directory);
  }

  /** The machines that count and have not ended. */
  async machines(): Promise<string[]> {
    const running = new Set(await readdir(join(this.#appliance.dataDir, "vms")));
    return (await readdir(join(this.#directory, "tables"))).filter((name) => running.has(name));
  }

  /** The instructions that a machine has executed so far. Readable after its end as well. */
  async read(machine: string): Promise<Counts> {
    const table = await readFile(this.#tableOf(machine));
    const counts = new Map<bigint, number>();
    for (let offset = 0; offset < table.byteLength; offset += SLOT_BYTES) {
      const count = table.readBigUInt64LE(offset + 8);
      if (count > 0n) counts.set(table.readBigUInt64LE(offset), Number(count));
    }
    return counts;
  }

  /** Waits until the guest of a machine only waits, and reads then. */
  async readQuiet(machine: string): Promise<Counts> {
    let last = Number.NEGATIVE_INFINITY;
    let counts: Counts = new Map();
    await until(
      `the guest of machine ${machine} waits`,
      async () => {
        counts = await this.read(machine);
        const total = totalOf(counts);
        const isQuiet = total - last < QUIET_COUNT;
        last = total;
        if (!isQuiet) await pause("what the guest still does shows", QUIET_MS);
        return isQuiet;
      },
      QUIET_MS_MAX,
    );
    return counts;
  }

  /** Waits for the end of a machine, and reads the number of all instructions that it executed. */
  async readEnded(machine: string): Promise<Counts> {
    const isGone = async () => !(await this.machines()).includes(machine);
    await until(`machine ${machine} has ended`, isGone, END_MS_MAX);
    return await this.read(machine);
  }

  #tableOf(machine: string): string {
    return join(this.#directory, "tables", machine);
  }
}

/** In place of the launcher: `vm` is for machines, everything else is passed on as it is. */
function scriptOf(directory: string): string {
  return `#!/bin/sh
[ "$1" = vm ] || exec ${directory}/launch "$@"
for argument do
	shift
	case $argument in --) set -- "$@" --keep-fd ${PLUGIN_FD} --keep-fd ${TABLE_FD} ;; esac
	[ "$previous" != --vm ] || table=${directory}/tables/\${argument##*/}
	previous=$argument
	set -- "$@" "$argument"
done
truncate -s ${SLOTS_COUNT * SLOT_BYTES} "$table"
exec ${directory}/launch "$@" -plugin file=/proc/self/fd/${PLUGIN_FD},fd=${TABLE_FD} ${PLUGIN_FD}<${directory}/counter.so ${TABLE_FD}<>"$table"
`;
}

export function totalOf(counts: Counts): number {
  let total = 0;
  for (const count of counts.values()) total += count;
  return total;
}

/** The difference of two readings. */
export function difference(before: Counts, after: Counts): Counts {
  return new Map([...after].map(([address, count]) => [address, count - (before.get(address) ?? 0)]));
}
