import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../../src/domain/errors.ts";
import { LayerIndexError } from "../../../../src/storage/index/layer-index-format.ts";
import { CaptureError, captureOrBlame } from "../../../../src/supervisor/instance/capture-failure.ts";
import { endedEarly } from "../../../../src/supervisor/machines/machine-errors.ts";
import { AgentClosedError, AgentError, AgentProtocolError } from "../../../../src/vm/agent/agent.ts";
import { monitorExit } from "../../../../src/vm/machine-end.ts";
import type { Machine, MachineExit } from "../../../../src/vm/vmm.ts";

const EBUSY = 16;
const DIED = monitorExit("QEMU", { code: 137, signal: null }, "");
const exit = (reason: MachineExit["reason"]): MachineExit => ({ reason, detail: reason });

/** A machine that ended with `exit`, or still runs where that is null. */
const machine = (ending: MachineExit | null): Machine =>
  ({
    exited: ending === null ? new Promise(() => undefined) : Promise.resolve(ending),
    failure: () => Promise.resolve(ending),
  }) as unknown as Machine;

const failing = (error: Error, ending: MachineExit | null): Promise<unknown> =>
  captureOrBlame(machine(ending), () => Promise.reject(error)).catch((thrown: unknown) => thrown);

describe("the guest is to blame for a failed capture", () => {
  test.each([
    ["what the agent says", new AgentError(EBUSY, "busy"), null],
    ["what no agent says", new AgentProtocolError("a frame out of place"), null],
    ["a listing that cannot be", new LayerIndexError("no root"), null],
    ["a panic", new AgentClosedError("closed"), exit("guest_panic")],
    ["a reset", new AgentClosedError("closed"), exit("guest_reset")],
    ["a shutdown", endedEarly(exit("guest_shutdown")), exit("guest_shutdown")],
  ])("by %s", async (_name, error, ending) => {
    const thrown = await failing(error, ending);
    expect(thrown).toBeInstanceOf(CaptureError);
    expect(thrown).toMatchObject({ code: "conflict", details: { reason: ending?.reason ?? "capture_failed" } });
  });
});

describe("the host is to blame when", () => {
  test.each([
    ["the disk is full", exit("disk_full"), "insufficient_storage"],
    ["the disk failed", exit("disk_error"), "unavailable"],
    ["the monitor died", DIED, "unavailable"],
  ] as const)("%s, whatever the agent says meanwhile", async (_name, ending, code) => {
    for (const error of [new AgentError(EBUSY, "busy"), new AgentClosedError("closed"), endedEarly(ending)]) {
      const thrown = await failing(error, ending);
      expect(thrown).not.toBeInstanceOf(CaptureError);
      expect(thrown).toMatchObject({ code, details: { reason: ending.reason } });
    }
  });

  test("an unrelated error is thrown", async () => {
    for (const error of [new Error("no such file"), new ApiError("insufficient_storage", "full")])
      expect(await failing(error, null)).toBe(error);
  });
});
