/** Logs of sandboxes that lack the last changes of a daemon that was killed. */
import { expect, test } from "bun:test";
import { insertMemoryImage } from "../../../../src/db/sandboxes/memory-images.ts";
import { changeState, findSandbox } from "../../../../src/db/sandboxes/rows.ts";
import type { ImageId, MemoryImageId } from "../../../../src/domain/ids.ts";
import type { SandboxState, SandboxTransition } from "../../../../src/domain/sandbox.ts";
import { operationsStore } from "../../../support/operations.ts";
import { ACCOUNT, BASE, becomes, rowOf, running, SANDBOX, SandboxScene } from "../../../support/sandboxes/scene.ts";
import { impossibleSteps } from "../../../support/sandboxes/story.ts";
import { until } from "../../../support/waiting.ts";

const MISSING = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c16" as ImageId;
const FOREVER_MS = 60_000;
const NEVER = new AbortController().signal;

const GAPS: readonly (readonly [readonly SandboxTransition[], readonly SandboxState[]])[] = [
  [[], []],
  [["pause"], ["pausing", "failed"]],
  [
    ["pause", "paused"],
    ["pausing", "paused"],
  ],
  [["fail"], ["failed"]],
  [["end"], ["ended"]],
];

test.each(GAPS)("a log that lacks %p is completed by the next daemon", async (lost, states) => {
  const store = await operationsStore(ACCOUNT, BASE);
  const killed = new SandboxScene(store);
  const { id } = await killed.sandboxes.create(ACCOUNT, SANDBOX);
  await killed.sandboxes.settled(id, (now) => now === "running", FOREVER_MS, NEVER);
  if (lost.length === 0) await killed.sandboxes.pause(ACCOUNT, id);
  if (lost.length === 0) await killed.sandboxes.settled(id, (now) => now === "paused", FOREVER_MS, NEVER);
  const before = await killed.story(id);
  for (const transition of lost) store.db.transaction(() => changeState(store.db, id, transition, { now: Date.now() }));
  await using scene = new SandboxScene(store);
  scene.sandboxes.recover();
  await scene.lives[Symbol.asyncDispose]();
  const story = await scene.story(id);
  expect(impossibleSteps(story)).toEqual([]);
  expect(story.slice(before.length).map(({ to }) => to)).toEqual([...states]);
  expect(story.at(-1)?.to).toBe(findSandbox(store.db, id)?.state as SandboxState);
  await killed.stop();
});

const MEMORY: readonly (readonly [string, readonly SandboxTransition[], readonly unknown[]])[] = [
  ["paused", ["pause", "paused"], [{ to: "pausing" }, { to: "paused", memory: true }]],
  ["resuming", ["pause", "paused", "resume"], [{ to: "resuming" }, { to: "paused", memory: true }]],
];

test.each(MEMORY)("the next daemon says that processes are kept with the memory of one that was %s", async (...gap) => {
  const [, lost, states] = gap;
  const store = await operationsStore(ACCOUNT, BASE);
  const { db } = store;
  const killed = new SandboxScene(store);
  const { id } = await running(killed);
  const before = await killed.story(id);
  const image = { id: Bun.randomUUIDv7() as MemoryImageId, accountId: ACCOUNT, imageId: BASE };
  for (const transition of lost) {
    db.transaction(() => {
      changeState(db, id, transition, { now: Date.now() });
      if (transition === "paused") insertMemoryImage(db, id, { ...image, sizeBytes: 1, memoryBytes: 1 }, Date.now());
    });
  }
  await using scene = new SandboxScene(store);
  scene.sandboxes.recover();
  await scene.lives[Symbol.asyncDispose]();
  const story = await scene.story(id);
  expect(findSandbox(db, id)?.state).toBe("paused");
  expect(story.slice(before.length)).toMatchObject([...states]);
  await killed.stop();
});

test("the next daemon says that processes continued when a sandbox was resumed with its memory", async () => {
  const store = await operationsStore(ACCOUNT, BASE);
  const { db } = store;
  const held = Promise.withResolvers<void>();
  const killed = new SandboxScene(store, { resuming: held.promise });
  const { id } = await running(killed);
  await killed.sandboxes.pause(ACCOUNT, id);
  await becomes(killed, id, "paused");
  const image = { id: Bun.randomUUIDv7() as MemoryImageId, accountId: ACCOUNT, imageId: BASE };
  db.transaction(() => insertMemoryImage(db, id, { ...image, sizeBytes: 1, memoryBytes: 1 }, Date.now()));
  await killed.sandboxes.resume(ACCOUNT, id);
  const before = await killed.story(id);
  db.transaction(() => changeState(db, id, "start", { now: Date.now() }));
  await using scene = new SandboxScene(store);
  const row = rowOf(scene, id);
  scene.lives.journal.complete(row);
  await scene.lives[Symbol.asyncDispose]();
  expect((await scene.story(id)).slice(before.length)).toMatchObject([
    { from: "resuming", to: "running", memory: true },
  ]);
  held.resolve();
  await killed.stop();
});

test.each([
  [{ request: "end" }, "ended", null],
  [{ request: "rollback", target: { imageId: BASE } }, "running", null],
  [{ request: "rollback", target: { imageId: MISSING } }, "paused", null],
  [null, "paused", null],
] as const)(
  "a request that has saved the files, %p, is completed by the next daemon, once",
  async (then, state, ending) => {
    const store = await operationsStore(ACCOUNT, BASE);
    const killed = new SandboxScene(store);
    const { id } = await killed.sandboxes.create(ACCOUNT, SANDBOX);
    await killed.sandboxes.settled(id, (now) => now === "running", FOREVER_MS, NEVER);
    const stored = { reason: "keep", tag: null, then } as const;
    store.db.transaction(() => changeState(store.db, id, "pause", { ending: stored, now: 1 }));
    expect(findSandbox(store.db, id)?.ending).toEqual(stored);
    store.db.transaction(() => changeState(store.db, id, "paused", { now: 1 }));
    await using scene = new SandboxScene(store);
    scene.sandboxes.recover();
    await until("it is complete", () => {
      const row = findSandbox(store.db, id);
      return row?.state === state && row.ending === ending;
    });
    await killed.stop();
  },
);
