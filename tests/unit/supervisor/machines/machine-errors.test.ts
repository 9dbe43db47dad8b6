import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../../src/domain/errors.ts";
import { silentLog } from "../../../../src/log.ts";
import { MachineLostError } from "../../../../src/supervisor/machines/machine-errors.ts";
import { inMachine, type ReadyMachine, withReplacement } from "../../../../src/supervisor/machines/machine-source.ts";
import { AgentClosedError } from "../../../../src/vm/agent/agent.ts";
import { monitorExit } from "../../../../src/vm/machine-end.ts";
import { QmpClosedError, QmpError } from "../../../../src/vm/qemu/qmp.ts";
import type { MachineExit } from "../../../../src/vm/vmm.ts";
import { failureOf, throwing } from "../../../support/failures.ts";
import { turns } from "../../../support/waiting.ts";

const DIED = monitorExit("QEMU", { code: 137, signal: null }, "");

function machine(exited: Promise<MachineExit>): ReadyMachine {
  const kill = () => exited;
  return { machine: { exited, kill } } as unknown as ReadyMachine;
}

const failing = (ready: ReadyMachine, error: Error, signal = new AbortController().signal) =>
  inMachine(ready, signal, () => Promise.reject(error)).catch((thrown: unknown) => thrown);

test.each([
  ["the agent's stream", new AgentClosedError("the stream ended")],
  ["the monitor", new QmpClosedError("the monitor closed the connection")],
  ["a file of the machine", Object.assign(new Error("no such file"), { code: "ENOENT" })],
])("an end that first appears as %s is reported with its cause", async (_name, error) => {
  const thrown = await failing(machine(turns().then(() => DIED)), error);
  expect(thrown).toBeInstanceOf(ApiError);
  expect(thrown).toMatchObject({ code: "unavailable", details: { reason: "vmm_died" }, cause: error });
  expect((thrown as Error).message).toBe(
    "the virtual machine ended early: the virtual machine monitor died (QEMU, killed by signal 9)",
  );
});

test("a failure stays unchanged while the machine runs", async () => {
  const error = new Error("something else");
  expect(await failing(machine(new Promise(() => undefined)), error)).toBe(error);
});

test("an error of the appliance does not count as the machine's end", async () => {
  const error = new ApiError("invalid_path", "no such path");
  expect(await failing(machine(Promise.resolve(DIED)), error)).toBe(error);
});

test("cancelled work fails with the reason of its signal", async () => {
  const controller = new AbortController();
  const ready = machine(Promise.resolve(DIED));
  const work = inMachine(ready, controller.signal, async () => {
    controller.abort(new Error("cancelled"));
    throw new QmpClosedError("gone");
  });
  expect(await throwing(work)).toThrow("cancelled");
});

test("a refusal of the monitor is reported as such while its machine runs on", async () => {
  const error = new QmpError("QEMU refused device_add: no room");
  const thrown = await failing(machine(new Promise(() => undefined)), error);
  expect(thrown).toBeInstanceOf(MachineLostError);
  expect(thrown).toMatchObject({
    code: "unavailable",
    message: "the virtual machine monitor failed: QEMU refused device_add: no room",
  });
});

describe("a machine that is lost before its work begins", () => {
  const options = { goal: "the command began", log: silentLog };
  const lostBy = (exit: MachineExit) => new AgentClosedError(exit.detail);
  /** Attempts that lose their machines in these ways, one after the other, and then succeed. */
  function attempts(exits: readonly MachineExit[]) {
    let count = 0;
    return async (): Promise<number> => {
      count += 1;
      const exit = exits[count - 1];
      if (exit === undefined) return count;
      return await inMachine(machine(Promise.resolve(exit)), new AbortController().signal, () => {
        return Promise.reject(lostBy(exit));
      });
    };
  }

  const PANIC: MachineExit = { reason: "guest_panic", detail: "the guest kernel panicked" };
  test.each([
    ["its monitor", DIED],
    ["its kernel", PANIC],
  ] as const)("by %s is replaced", async (_name, exit) => {
    expect(await withReplacement(attempts([exit]), options)).toBe(2);
  });

  test("is replaced once, and the error names the end of the monitor", async () => {
    const thrown = await withReplacement(attempts([DIED, DIED]), options).catch((error: unknown) => error);
    expect(thrown).toMatchObject({
      code: "unavailable",
      message: "the virtual machine monitor ended before the command began (QEMU, killed by signal 9)",
      details: { reason: "vmm_died", detail: "QEMU was killed by signal 9" },
    });
    const panicked = await withReplacement(attempts([DIED, PANIC]), options).catch((error: unknown) => error);
    expect(panicked).toMatchObject({
      message: "the virtual machine ended before the command began: the guest kernel panicked",
    });
  });

  test("is not replaced when the replacement would fail, too", async () => {
    const full: MachineExit = { reason: "disk_full", detail: "no room" };
    const thrown = await withReplacement(attempts([full]), options).catch((error: unknown) => error);
    expect(thrown).toMatchObject({ code: "insufficient_storage" });
  });

  test("is distinguished from other failures, which stay unchanged", async () => {
    const refusal = new ApiError("invalid_path", "no such path");
    expect(await failureOf(withReplacement(() => Promise.reject(refusal), options))).toBe(refusal);
  });
});
