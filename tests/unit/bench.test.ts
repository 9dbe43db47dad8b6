import { expect, test } from "bun:test";
import { Ledger } from "../../src/cli/bench/ledger.ts";
import { missing, rowOf } from "../../src/cli/bench/row.ts";
import { turnsOf } from "../bench/turns.ts";

test("a ledger prints each line at once, and keeps all lines when a later part fails", () => {
  const said: string[] = [];
  const ledger = new Ledger((line) => said.push(line));
  ledger.add(rowOf({ name: "spawn", from: "sent", to: "read", unit: "ms", values: [20], atMost: 5 }));
  ledger.add({ name: "steps", text: "exec 3" });
  ledger.add(missing("start", "not here"));
  ledger.end("spawn", 3100);
  expect(said.map((line) => line.split("\n")[0])).toEqual([
    "MISSES spawn",
    "       steps: exec 3",
    "       start: not measured: not here",
    expect.stringMatching(/^measured spawn in 3 s, load \d+\.\d$/),
  ]);
  expect(ledger.isComplete).toBe(true);
  ledger.fail("chain", new Error("not done within 900 s"));
  expect(ledger.isComplete).toBe(false);
  expect(said.at(-1)).toBe("FAILED chain: not done within 900 s");
  expect(ledger.text()).toEndWith(
    "       not measured: start: not here\n0 of 1 bars hold\nFAILED chain: not done within 900 s\n",
  );
  expect(JSON.parse(ledger.json())).toMatchObject({
    rows: [{ name: "spawn", holds: false }],
    remarks: [{ name: "steps" }],
    missing: [{ name: "start", text: "not here" }],
    failures: [{ name: "chain" }],
    parts: { spawn: expect.stringContaining("3 s, load") },
  });
});

test("the length of a turn of the event loop is the processor time of its thread", () => {
  const on = (at: number) =>
    `    9 ${at.toFixed(6)}: sched:sched_switch: prev_comm=x prev_pid=9 ==> next_comm=coppice next_pid=7 next_prio=120`;
  const off = (at: number) =>
    `    7 ${at.toFixed(6)}: sched:sched_switch: prev_comm=coppice prev_pid=7 prev_prio=120 ==> next_pid=9`;
  const script = [
    on(1.0),
    "    7 1.001000: raw_syscalls:sys_exit: NR 441 = 1",
    // Another thread runs from 1.002 to 1.5, and a third one's wait does not count.
    off(1.002),
    "    8 1.100000: raw_syscalls:sys_enter: NR 441 (3, 1)",
    on(1.5),
    "    7 1.503000: raw_syscalls:sys_enter: NR 441 (3, 1)",
    off(1.503),
    on(2.0),
    "    7 2.000500: raw_syscalls:sys_exit: NR 441 = 1",
    "    7 2.001000: raw_syscalls:sys_enter: NR 441 (3, 1)",
  ].join("\n");
  expect(turnsOf(script, 7).map((ms) => Number(ms.toFixed(3)))).toEqual([4, 0.5]);
  expect(() => turnsOf("", 7)).toThrow("no turn");
});
