/** The samples of what running sandboxes use: which are taken, how many are kept, and when they are given back. */

import { expect, test } from "bun:test";
import type { OperationId, SandboxId } from "../../../../src/domain/ids.ts";
import { SANDBOX_SAMPLES_COUNT_MAX, type SandboxState } from "../../../../src/domain/sandbox.ts";
import { silentLog } from "../../../../src/log.ts";
import type { SandboxJournal, StateChange } from "../../../../src/supervisor/sandboxes/journal.ts";
import { Samples } from "../../../../src/supervisor/sandboxes/samples.ts";
import { pause, until } from "../../../support/waiting.ts";

type Usage = { cpuTimeMs: number; diskBytes: number } | null;

/** Sandboxes whose states and usage the test sets. */
class Scene implements Disposable {
  readonly samples: Samples;
  readonly usages = new Map<string, Usage | Error>();
  /** number of the readings of all instances */
  readings = 0;
  nowMs = 1000;
  #listener: (change: StateChange) => void = () => undefined;

  constructor(intervalMs: number) {
    const journal = {
      listen: (listener: (change: StateChange) => void) => {
        this.#listener = listener;
        return { [Symbol.dispose]: () => undefined };
      },
    } as unknown as SandboxJournal;
    const usage = async (id: OperationId) => {
      this.readings += 1;
      const now = this.usages.get(id) ?? null;
      if (now instanceof Error) throw now;
      return now && { ...now, memoryBytes: 7, memoryPeakBytes: 9, cacheBytes: 3, pids: 1 };
    };
    this.samples = new Samples({ journal, instances: { usage }, clock: () => this.nowMs, log: silentLog, intervalMs });
  }

  change(id: string, state: SandboxState, operationId: string | null = id): void {
    this.#listener({ row: { id, state, operationId }, from: null, reason: "request" } as unknown as StateChange);
  }

  of(id: string) {
    return this.samples.of(id as SandboxId);
  }

  [Symbol.dispose](): void {
    this.samples[Symbol.dispose]();
  }
}

test("a sandbox is sampled when it begins to run, and has no samples before and afterwards", async () => {
  using scene = new Scene(3_600_000);
  scene.usages.set("a", { cpuTimeMs: 50, diskBytes: 4096 });
  scene.change("a", "starting");
  expect(scene.of("a")).toEqual([]);
  scene.change("a", "running");
  await until("the readings", () => scene.of("a").length > 0);
  expect(scene.of("a")).toEqual([{ at: 1000, cpuPercent: 0, memoryBytes: 7, cacheBytes: 3, diskBytes: 4096 }]);
  scene.change("a", "pausing");
  expect(scene.of("a")).toEqual([]);
});

test("later samples have the processor time since the one before, and a new life begins at none", async () => {
  using scene = new Scene(1);
  scene.usages.set("a", { cpuTimeMs: 50, diskBytes: 0 });
  scene.change("a", "running");
  await until("the readings", () => scene.of("a").length > 0);
  scene.nowMs = 3000;
  scene.usages.set("a", { cpuTimeMs: 4050, diskBytes: 0 });
  await until("the readings", () => scene.of("a").some(({ at }) => at === 3000));
  expect(scene.of("a").find(({ at }) => at === 3000)?.cpuPercent).toBe(200);
  scene.usages.set("b", { cpuTimeMs: 1, diskBytes: 0 });
  scene.change("a", "paused", null);
  scene.change("a", "running", "b");
  await until("the readings", () => scene.of("a").length > 0);
  expect(scene.of("a")[0]?.cpuPercent).toBe(0);
});

test("a sandbox keeps a bounded number of samples, the latest in their order", async () => {
  using scene = new Scene(0);
  let at = 0;
  Object.defineProperty(scene, "nowMs", { get: () => at++ });
  scene.usages.set("a", { cpuTimeMs: 1, diskBytes: 0 });
  scene.change("a", "running");
  await until("the readings", () => scene.readings > SANDBOX_SAMPLES_COUNT_MAX + 50);
  const times = scene.of("a").map((sample) => sample.at);
  expect(times).toHaveLength(SANDBOX_SAMPLES_COUNT_MAX);
  const [first = 0] = times;
  expect(first).toBeGreaterThan(0);
  expect(times).toEqual(Array.from(times, (_, index) => first + index));
});

test("an instance without figures, and one whose reading fails, leave the others theirs", async () => {
  using scene = new Scene(1);
  scene.usages.set("a", null).set("b", new Error("no cgroup")).set("c", { cpuTimeMs: 1, diskBytes: 0 });
  for (const id of ["a", "b", "c"]) scene.change(id, "running");
  await until("the readings", () => scene.of("c").length > 2);
  expect([scene.of("a"), scene.of("b")]).toEqual([[], []]);
});

test("nothing is read while no sandbox runs, nor after the disposal", async () => {
  using scene = new Scene(1);
  scene.change("a", "running");
  await until("the readings", () => scene.readings > 1);
  scene.change("a", "ended", null);
  await pause("readings that must not come", 20);
  const { readings } = scene;
  await pause("readings that must not come", 20);
  expect(scene.readings).toBe(readings);
  scene.change("b", "running");
  await until("the readings", () => scene.readings > readings);
  scene.samples[Symbol.dispose]();
  await pause("readings that must not come", 20);
  const last = scene.readings;
  await pause("readings that must not come", 20);
  expect(scene.readings).toBe(last);
});
