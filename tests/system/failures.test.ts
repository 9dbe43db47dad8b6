import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { type Appliance, killAll, text } from "../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { freePort } from "../support/free-port.ts";
import type { Registry } from "../support/images/registry.ts";
import { until } from "../support/waiting.ts";

/** More processor time than a machine uses before its command begins. */
const BEGUN_CPU_MS = 5000;

const owned = new AsyncDisposableStack();
let registry: Registry;
let appliance: Appliance;
let base: string;
/** of a registry that is down */
let down: string;

beforeAll(async () => {
  down = `127.0.0.1:${await freePort()}`;
  ({ registry, appliance, image: base } = owned.use(await BusyboxAppliance.start({ registries: [down] })));
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

type Body = Record<string, unknown>;
const result = (operation: { result?: unknown }) => operation.result as unknown as Body;

/** Waits until a command that computes endlessly has begun. */
function begun(id: string): Promise<void> {
  return until("the command runs", async () => {
    const stats = await appliance.fetch(`/instances/${id}/stats?once=true`);
    return stats.status === 200 && (((await stats.json()) as Body)["cpu_time_ms"] as number) >= BEGUN_CPU_MS;
  });
}

describe("a command", () => {
  test.each([
    ["that does not exist", { command: "no-such-program" }, 127],
    ["that cannot be executed", { command: "/etc/passwd" }, 126],
    ["that kills itself", { command: "kill -9 $$", shell: true }, 137],
    ["that is terminated", { command: "kill -TERM $$", shell: true }, 143],
  ])("%s ends with its exit code", async (_name, request, code) => {
    const operation = await appliance.finished(await appliance.spawn({ image: base, ...request, disposable: true }));
    expect(operation.status).toBe("SUCCESS");
    expect(result(operation)["exit_code"]).toBe(code);
    if (code >= 126 && code <= 127) expect(text(result(operation)["stderr"])).not.toBe("");
  });

  test("past its time limit is killed with everything that it started, and its files are captured", async () => {
    const command = "trap '' TERM; (trap '' TERM; setsid sleep 300 &) ; echo kept > /root/kept; sync; sleep 300";
    const operation = await appliance.run(base, command, { timeout: 2 });
    expect(operation.status).toBe("SUCCESS");
    expect(result(operation)).toMatchObject({ exit_code: 137, timed_out: true });
    const kept = await appliance.fetch(`/inspect/${result(operation)["image"]}/download?path=/root/kept`);
    expect(await kept.text()).toBe("kept\n");
  }, 60_000);

  test("that is a fork bomb does not outlive its time limit", async () => {
    const operation = await appliance.run(base, "b() { b | b & }; b; sleep 300", { timeout: 3, disposable: true });
    expect(operation.status).toBe("SUCCESS");
    expect(result(operation)).toMatchObject({ exit_code: 137, timed_out: true });
  }, 60_000);

  test("that uses all memory is killed, and its result says so", async () => {
    const hog = "x=a; while :; do x=$x$x$x$x; done";
    const operation = await appliance.run(base, hog, { timeout: 60, disposable: true });
    expect(operation.status).toBe("SUCCESS");
    expect(result(operation)).toMatchObject({ exit_code: 137, timed_out: false, oom_killed: true });
  }, 90_000);

  test("that fills its disk sees the error, and the run is captured", async () => {
    const operation = await appliance.run(base, "dd if=/dev/zero of=/root/big bs=1M; echo status $?; rm /root/big", {
      resources: { disk_bytes: 64 * 1_048_576 },
      timeout: 60,
    });
    expect(operation.status).toBe("SUCCESS");
    expect(text(result(operation)["stderr"])).toContain("No space left");
    expect(text(result(operation)["stdout"])).toContain("status 1");
  }, 90_000);

  test("that is cancelled ends CANCELLED and leaves no layer", async () => {
    const layers = async () => (await readdir(join(appliance.dataDir, "layers"))).length;
    const before = await layers();
    const id = await appliance.spawn({ image: base, command: "echo x > /root/x; while :; do :; done", shell: true });
    await begun(id);
    const response = await appliance.fetch(`/operations/${id}`, { method: "DELETE" });
    expect(response.status).toBe(202);
    const operation = await appliance.finished(id);
    expect(operation.status).toBe("CANCELLED");
    expect(operation.error?.details).toMatchObject({
      cpu_time_ms: expect.any(Number),
      memory_bytes: expect.any(Number),
    });
    expect(await layers()).toBe(before);
    expect((await appliance.fetch(`/operations/${id}`, { method: "DELETE" })).status).toBe(409);
  }, 60_000);
});

describe("a machine", () => {
  const failure = (operation: object) => (operation as { error: Body }).error;

  test("whose kernel panics fails the operation with that reason", async () => {
    const command = "mount -o remount,rw /proc/sys 2>/dev/null; echo c > /proc/sysrq-trigger; sleep 60";
    const operation = await appliance.run(base, command, { timeout: 30 });
    expect(operation.status).toBe("FAILED");
    expect(failure(operation)["error"]).toBe("unavailable");
    expect(failure(operation)["message"]).toMatch(/kernel panicked|reset itself/);
  }, 60_000);

  test("that dies fails the operation with that reason", async () => {
    const id = await appliance.spawn({ image: base, command: "while :; do :; done", shell: true });
    await begun(id);
    // The machines of the pool die, too.
    killAll(await appliance.machinePids());
    const operation = await appliance.finished(id);
    expect(operation.status).toBe("FAILED");
    expect(failure(operation)["message"]).toBe(
      "the virtual machine ended early: the virtual machine monitor died (QEMU, killed by signal 9)",
    );
    expect(failure(operation)["details"]).toMatchObject({ reason: "vmm_died" });
  }, 60_000);
});

describe("an import", () => {
  const failed = async (registryReference: string, more: Body = {}) =>
    await appliance.finished(await appliance.submitImport(registryReference, more));

  test("of a missing image fails with that reason", async () => {
    const operation = await failed(`${registry.host}/missing/nothing:1`);
    expect(operation).toMatchObject({ status: "FAILED", error: { error: "not_found" } });
    expect((operation as unknown as { error: Body }).error["message"]).toContain("missing/nothing");
  });

  test("from a registry that is down fails with that reason", async () => {
    const operation = await failed(`${down}/a/b:1`, { timeout: 60 });
    expect(operation).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
  }, 90_000);

  test("from a loopback address that the operator did not list is refused", async () => {
    expect(await failed("127.0.0.1:2/a/b:1")).toMatchObject({ status: "FAILED", error: { error: "forbidden" } });
  });
});

test("these tests leave nothing behind", async () => {
  // The pool may have one waiting clone and its replacement.
  await until("only the pool is left", async () => {
    const left = await appliance.leftovers();
    return left.length <= 2 && left.every((name) => name.startsWith("vms/"));
  });
});
