import { median } from "../../../src/cli/bench/measure.ts";
import { type Finding, rowOf } from "../../../src/cli/bench/row.ts";
import { exec } from "../../../src/cli/bench/running.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import type { Release } from "../figures.ts";
import { BenchHost } from "../host.ts";
import { type Counts, difference, InstructionCounter, totalOf } from "./counter.ts";
import { KernelSymbols } from "./symbols.ts";

const INSTANCE_SECONDS = 600;
const RATIO_MAX = 1.02;
const MILLION = 1_000_000;
/** So many functions a remark names. */
const FUNCTIONS_COUNT = 12;

/**
 * Instructions that a guest executes: they do not depend on what else the machine does, and a guest under KVM executes the
 * same.
 * @param release whose figures are the bars
 */
export async function* instructionRows({ quick }: BenchHost, release: Release | null): AsyncGenerator<Finding> {
  await using stack = new AsyncDisposableStack();
  // With one waiting machine it is clear which one the next instance gets.
  const host = stack.use(await BenchHost.start(quick, { poolSize: 1 }));
  const { path } = stack.use(await scratchDirectory("/tmp", "coppice-instructions-"));
  const counter = await InstructionCounter.attach(host.appliance, path);
  const symbols = await KernelSymbols.read(host);
  const rounds = host.target.rounds(15, 7);
  const subjects: Record<string, () => AsyncGenerator<Counts>> = {
    "a warm spawn, disposable": () => spawns(host, counter, "true", true),
    "a warm spawn, captured": () => spawns(host, counter, "echo changed > /root/coppice-bench", false),
    "true by exec": () => execs(host, counter),
  };
  for (const [what, measured] of Object.entries(subjects)) {
    const all: Counts[] = [];
    for await (const counts of measured()) if (all.push(counts) === rounds) break;
    const values = all.map((counts) => totalOf(counts) / MILLION);
    yield instructionRow(`guest instructions of ${what}`, values, release);
    const middle = all.toSorted((a, b) => totalOf(a) - totalOf(b))[rounds >> 1] ?? new Map();
    yield { name: "the functions that have most of them, in million", text: functionsText(symbols, middle) };
  }
}

async function* spawns(
  host: BenchHost,
  counter: InstructionCounter,
  command: string,
  disposable: boolean,
): AsyncGenerator<Counts> {
  for (;;) {
    const machine = await waitingMachine(host, counter);
    const before = await counter.readQuiet(machine);
    await host.target.run(host.base, command, { disposable });
    const after = await counter.readEnded(machine);
    await host.target.deleteMade();
    yield difference(before, after);
  }
}

async function* execs(host: BenchHost, counter: InstructionCounter): AsyncGenerator<Counts> {
  const machine = await waitingMachine(host, counter);
  const more = { disposable: true, timeout: INSTANCE_SECONDS };
  const id = await host.target.start(host.base, `sleep ${INSTANCE_SECONDS}`, more);
  try {
    await host.target.untilRunning(id);
    for (;;) {
      const before = await counter.readQuiet(machine);
      await exec(host.target, id, "true");
      yield difference(before, await counter.readQuiet(machine));
    }
  } finally {
    await host.target.stop(id);
  }
}

/** The machine that the next instance gets. Machines that started before the counter are used up. */
async function waitingMachine({ target, base }: BenchHost, counter: InstructionCounter): Promise<string> {
  for (;;) {
    await target.poolFull();
    const [machine] = await counter.machines();
    if (machine !== undefined) return machine;
    await target.run(base, "true", { disposable: true });
  }
}

function instructionRow(name: string, values: readonly number[], release: Release | null): Finding {
  const figure = median(values);
  const note = `${figure.toFixed(1)} ms at 1 GHz with one instruction a cycle`;
  const last = release?.rows[name];
  const row = {
    name,
    from: "a machine that waits",
    to: "the work and what follows it have ended",
    values,
    unit: "million",
  };
  // The first release has nothing to be held to.
  if (release === null || last === undefined) return rowOf({ ...row, note, atMost: Number.POSITIVE_INFINITY });
  const atMost = RATIO_MAX * median(last.values);
  return rowOf({ ...row, atMost, note: `${note}; the bar is ${RATIO_MAX} times the figure of ${release.name}` });
}

function functionsText(symbols: KernelSymbols, counts: Counts): string {
  const functions = symbols.byFunction(counts).slice(0, FUNCTIONS_COUNT);
  return functions.map(([name, count]) => `${name} ${(count / MILLION).toFixed(2)}`).join(", ");
}
