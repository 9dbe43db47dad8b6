/** Sandboxes whose clients know no `failed`. */
import { expect, test } from "bun:test";
import { operationsStore } from "../../../support/operations.ts";
import { ACCOUNT, BASE, becomes, rowOf, running, SandboxScene } from "../../../support/sandboxes/scene.ts";
import { impossibleSteps } from "../../../support/sandboxes/story.ts";

test("a sandbox that discards its pauses stays paused when it cannot resume, also when the daemon is killed", async () => {
  const held = Promise.withResolvers<void>();
  const store = await operationsStore(ACCOUNT, BASE);
  const killed = new SandboxScene(store, { resuming: held.promise });
  const { id } = await running(killed, { discardsPauses: true });
  await killed.sandboxes.pause(ACCOUNT, id);
  const { headId } = await becomes(killed, id, "paused");
  await killed.sandboxes.resume(ACCOUNT, id);
  killed.operations.cancel(ACCOUNT, killed.operationOf(id));
  expect(await becomes(killed, id, "paused")).toMatchObject({
    headId,
    operationId: null,
    error: { error: "conflict" },
  });
  await killed.sandboxes.resume(ACCOUNT, id);
  expect(rowOf(killed, id)).toMatchObject({ state: "resuming", error: null });
  killed.sandboxes[Symbol.dispose]();
  await using scene = new SandboxScene(store);
  scene.sandboxes.recover();
  scene.operations.recover();
  expect(rowOf(scene, id)).toMatchObject({ state: "paused", headId, operationId: null });
  await scene.sandboxes.resume(ACCOUNT, id);
  await becomes(scene, id, "running");
  expect(impossibleSteps(await scene.story(id))).toEqual([]);
  held.resolve();
  await killed.operations[Symbol.asyncDispose]();
});
