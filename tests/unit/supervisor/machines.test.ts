import { expect, test } from "bun:test";
import { ApiError } from "../../../src/domain/errors.ts";
import { inMachine, type ReadyMachine } from "../../../src/supervisor/machines.ts";
import { AgentClosedError } from "../../../src/vm/agent.ts";
import { QmpClosedError } from "../../../src/vm/qmp.ts";
import type { MachineExit } from "../../../src/vm/vmm.ts";

const DIED: MachineExit = { reason: "vmm_died", detail: "signal SIGKILL" };

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
])("an end that shows first at %s is told as what it is", async (_name, error) => {
  const thrown = await failing(machine(Bun.sleep(20).then(() => DIED)), error);
  expect(thrown).toBeInstanceOf(ApiError);
  expect(thrown).toMatchObject({ code: "unavailable", details: { reason: "vmm_died" }, cause: error });
  expect((thrown as Error).message).toContain("the virtual machine monitor died");
});

test("a failure beside a machine that goes on stays what it is", async () => {
  const error = new Error("something else");
  expect(await failing(machine(new Promise(() => undefined)), error)).toBe(error);
});

test("a refusal of ours is not taken for the machine's end", async () => {
  const error = new ApiError("invalid_path", "no such path");
  expect(await failing(machine(Promise.resolve(DIED)), error)).toBe(error);
});

test("work that was stopped fails with the reason of that", async () => {
  const controller = new AbortController();
  const ready = machine(Promise.resolve(DIED));
  const work = inMachine(ready, controller.signal, async () => {
    controller.abort(new Error("cancelled"));
    throw new QmpClosedError("gone");
  });
  await expect(work).rejects.toThrow("cancelled");
});
