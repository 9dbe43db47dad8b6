import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../src/domain/errors.ts";
import { silentLog } from "../../../src/log.ts";
import { MachineSupply, type Supply } from "../../../src/supervisor/machine-supply.ts";
import { until } from "../../support/runs.ts";

const never = new AbortController().signal;
const REFUSAL = new ApiError("unavailable", "no virtual machine can run on this host");

function supply(onDispose: () => void = () => undefined): Supply {
  const pool = { hasTemplate: true, waitingCount: 1, readyCount: 1 };
  return { pool: pool as never, isolation: "vm", launcher: "/launch", [Symbol.asyncDispose]: async () => onDispose() };
}

describe("a host on which no machine can run", () => {
  test("is tried again, and who asks then waits for what is found", async () => {
    let attempts = 0;
    const third = Promise.withResolvers<Supply>();
    const find = async (): Promise<Supply> => {
      attempts += 1;
      if (attempts < 3) throw REFUSAL;
      return await third.promise;
    };
    await using machines = new MachineSupply(find, silentLog, 5);
    await expect(machines.known(never)).rejects.toThrow(REFUSAL.message);
    expect(machines.state()).toMatchObject({ isolation: null, acceleration: REFUSAL.message });
    await until("it is tried again", () => attempts === 3);
    const known = machines.known(never);
    third.resolve(supply());
    await known;
    expect(machines.state()).toEqual({ isolation: "vm", acceleration: "", template: "" });
  });

  test("is left alone once the service stops", async () => {
    let attempts = 0;
    const find = async (): Promise<Supply> => {
      attempts += 1;
      throw REFUSAL;
    };
    const machines = new MachineSupply(find, silentLog, 3_600_000);
    await expect(machines.known(never)).rejects.toThrow(REFUSAL.message);
    await machines[Symbol.asyncDispose]();
    expect(attempts).toBe(1);
  });

  test("gives back what an attempt finds while the service stops", async () => {
    let disposed = 0;
    const slow = Promise.withResolvers<Supply>();
    let attempts = 0;
    const find = async (): Promise<Supply> => {
      attempts += 1;
      if (attempts === 1) throw REFUSAL;
      return await slow.promise;
    };
    const machines = new MachineSupply(find, silentLog, 1);
    await until("it is tried again", () => attempts === 2);
    const stopped = machines[Symbol.asyncDispose]();
    slow.resolve(supply(() => disposed++));
    await stopped;
    expect(disposed).toBe(1);
  });
});
