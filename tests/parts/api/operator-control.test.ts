import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  askForRunning,
  askToHold,
  askToStop,
  listenForOperator,
  OlderDaemonError,
  type OperatorCommands,
} from "../../../src/api/operator/control.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import type { RunningWork } from "../../../src/domain/operator/restart.ts";
import { silentLog } from "../../../src/log.ts";
import { type ScratchDirectory, scratchDirectory } from "../../../src/system/scratch.ts";
import { operatorCommands } from "../../support/api/operator-commands.ts";
import { throwing } from "../../support/failures.ts";
import { until } from "../../support/waiting.ts";

let directory: ScratchDirectory;
let path: string;
beforeEach(async () => {
  directory = await scratchDirectory(tmpdir(), "coppice-control-");
  path = join(directory.path, "control.sock");
});
afterEach(async () => await directory[Symbol.asyncDispose]());

const listening = (given: Partial<OperatorCommands>) => listenForOperator(path, operatorCommands(given), silentLog);
const call = (method: string, command: string) => fetch(`http://localhost/${command}`, { method, unix: path });

/** A daemon whose present holds are in `holds`. */
function holding(holds: Set<number>): Promise<AsyncDisposable> {
  let last = 0;
  const hold = async () => {
    const number = ++last;
    holds.add(number);
    return { [Symbol.dispose]: () => void holds.delete(number) };
  };
  return listening({ hold });
}

describe("the control socket", () => {
  test("refuses other commands, with the reason, and calls nothing", async () => {
    await using _daemon = await listening({});
    const cases: readonly (readonly [method: string, command: string, status: number, error: string])[] = [
      ["POST", "reboot", 404, "not_found"],
      ["POST", "__proto__", 404, "not_found"],
      ["POST", "", 404, "not_found"],
      ["GET", "stop", 405, "method_not_allowed"],
      ["POST", "running", 405, "method_not_allowed"],
      ["DELETE", "hold", 405, "method_not_allowed"],
      ["POST", "stop?all=yes", 400, "validation_error"],
      ["POST", "stop?all=", 400, "validation_error"],
      ["POST", "stop?everything=true", 400, "validation_error"],
      ["POST", "stop?all=true&all=false", 400, "validation_error"],
      ["POST", "stop?awaits_signal=1", 400, "validation_error"],
      ["POST", "gc?dry_run=maybe", 400, "validation_error"],
      ["GET", "running?all=true", 400, "validation_error"],
    ];
    for (const [method, command, status, error] of cases) {
      const response = await call(method, command);
      const body = (await response.json()) as { readonly error: string };
      expect({ command, status: response.status, error: body.error }).toEqual({ command, status, error });
    }
  });

  test("answers what runs, and passes stops on", async () => {
    const work: RunningWork = { version: "1.2.3", pid: 7, leavesInstances: true, operations: [] };
    const stops: unknown[] = [];
    await using _daemon = await listening({
      running: async () => work,
      stop: async (stop) => void stops.push(stop),
    });
    expect(await askForRunning(path)).toEqual(work);
    expect(await askToStop(path, { all: true, awaitsSignal: false })).toBe(true);
    expect((await call("POST", "stop")).status).toBe(202);
    expect(stops).toEqual([
      { all: true, awaitsSignal: false },
      { all: false, awaitsSignal: false },
    ]);
  });

  test("tells the caller why a stop is refused", async () => {
    const stop = () => Promise.reject(new ApiError("conflict", "the appliance stops already"));
    await using _daemon = await listening({ stop });
    expect(await throwing(askToStop(path, { all: true, awaitsSignal: false }))).toThrow("the appliance stops already");
  });

  test("holds for as long as a client stays, and each of several clients counts", async () => {
    const holds = new Set<number>();
    await using _daemon = await holding(holds);
    const [first, second] = await Promise.all([askToHold(path), askToHold(path)]);
    expect(holds.size).toBe(2);
    first?.[Symbol.dispose]();
    await until("one has left", () => holds.size === 1);
    // Another command does not wait for the holds.
    expect((await call("POST", "reboot")).status).toBe(404);
    second?.[Symbol.dispose]();
    await until("both have left", () => holds.size === 0);
  });

  test("ends the hold of a client that was killed", async () => {
    const holds = new Set<number>();
    await using _daemon = await holding(holds);
    const code = `const { askToHold } = await import(${JSON.stringify(join(import.meta.dir, "../../../src/api/operator/control.ts"))});
      await askToHold(${JSON.stringify(path)}); console.log("held"); setInterval(() => undefined, 60_000);`;
    const client = Bun.spawn([process.execPath, "-e", code], { stdout: "pipe", stderr: "inherit", timeout: 30_000 });
    const reader = client.stdout.getReader();
    await reader.read();
    expect(holds.size).toBe(1);
    client.kill("SIGKILL");
    await client.exited;
    await until("the hold is over", () => holds.size === 0);
  });
});

test("without a daemon, there is no answer", async () => {
  expect(await askForRunning(path)).toBeNull();
  expect(await askToHold(path)).toBeNull();
  expect(await askToStop(path, { all: true, awaitsSignal: true })).toBe(false);
});

test("a daemon that knows no such command is an older one", async () => {
  using _daemon = Bun.serve({ unix: path, fetch: () => new Response(null, { status: 404 }) });
  for (const asked of [askForRunning(path), askToHold(path), askToStop(path, { all: false, awaitsSignal: false })]) {
    expect(await throwing(asked)).toThrow(OlderDaemonError);
  }
});
