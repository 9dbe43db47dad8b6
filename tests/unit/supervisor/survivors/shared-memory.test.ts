import { expect, test } from "bun:test";
import { Scheduler } from "../../../../src/supervisor/operations/scheduler.ts";
import { countSharedMemory } from "../../../../src/supervisor/survivors/shared-memory.ts";
import { Survivor } from "../../../../src/supervisor/survivors/survey.ts";

interface Machine {
  readonly templateBytes: number;
  readonly templateId?: string;
}

function survivorOf(machine: Machine, more: { readonly resumed?: boolean } = {}): Survivor {
  const nothing = () => Promise.resolve();
  const record = { machine, ...more } as unknown as Survivor["record"];
  return new Survivor(record, {
    open: () => Promise.reject(new Error("there is no machine")),
    end: nothing,
    held: new AsyncDisposableStack(),
  });
}

test("memory that survivors share counts once, until the last of them is gone, and lets nothing else have it", async () => {
  const scheduler = new Scheduler({ memoryBytes: 1000, vcpus: 4 }, () => 0);
  const [first, second, ...others] = [
    survivorOf({ templateId: "a", templateBytes: 300 }),
    survivorOf({ templateId: "a", templateBytes: 300 }),
    survivorOf({ templateId: "b", templateBytes: 200 }),
    survivorOf({ templateBytes: 0 }),
    // Its operation counts this memory.
    survivorOf({ templateId: "c", templateBytes: 400 }, { resumed: true }),
  ] as [Survivor, Survivor, ...Survivor[]];
  countSharedMemory([first, second, ...others], scheduler);
  expect(scheduler.used).toEqual({ memoryBytes: 500, vcpus: 0 });
  expect(scheduler.runningCount).toBe(0);
  let isAdmitted = false;
  const admitted = scheduler
    .admit("one", { memoryBytes: 800, vcpus: 1 }, new AbortController().signal)
    .then((ticket) => {
      isAdmitted = true;
      return ticket;
    });
  await first[Symbol.asyncDispose]();
  for (const other of others) await other[Symbol.asyncDispose]();
  expect([scheduler.used.memoryBytes, isAdmitted]).toEqual([300, false]);
  await second[Symbol.asyncDispose]();
  (await admitted)[Symbol.dispose]();
  expect(scheduler.used).toEqual({ memoryBytes: 0, vcpus: 0 });
});
