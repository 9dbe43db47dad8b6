/** Logs of sandboxes that lack the last changes of a daemon that was killed. */
import { expect, test } from "bun:test";
import { changeState, findSandbox } from "../../../../src/db/sandboxes/rows.ts";
import type { SandboxState, SandboxTransition } from "../../../../src/domain/sandbox.ts";
import { operationsStore } from "../../../support/operations.ts";
import { ACCOUNT, BASE, SANDBOX, SandboxScene } from "../../../support/sandboxes/scene.ts";
import { impossibleSteps } from "../../../support/sandboxes/story.ts";

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
