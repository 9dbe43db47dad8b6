/** Limits of time, and work that must not hold other work back. */
import { expect, spyOn, test } from "bun:test";
import { eq } from "drizzle-orm";
import { getImage } from "../../../../src/db/images/images.ts";
import { statesOf } from "../../../../src/db/sandboxes/states.ts";
import { operations } from "../../../../src/db/schema.ts";
import type { ImageId } from "../../../../src/domain/ids.ts";
import {
  ACCOUNT,
  BASE,
  becomes,
  FOREVER_MS,
  NEVER,
  rowOf,
  running,
  SandboxScene,
} from "../../../support/sandboxes/scene.ts";
import { pause, until } from "../../../support/waiting.ts";

test("changes of other sandboxes do not put the check of a deadline off", async () => {
  let now = 1_000_000_000_000;
  await using scene = await SandboxScene.open({ clock: () => now });
  const { sandboxes } = scene;
  const [{ id }, other] = [await running(scene, { timeoutSeconds: 60 }), await running(scene)];
  now += 60_000;
  // Each change asks for a check, and comes before the one that the last change asked for.
  for (let count = 0; count < 2000 && rowOf(scene, id).state === "running"; count++) {
    await sandboxes.change(ACCOUNT, other.id, { metadata: { count: `${count}` } });
    await pause("each change comes well before the check that the last one asked for", 1);
  }
  expect(rowOf(scene, id).state).not.toBe("running");
});

test("a capture may take longer than the end of the processes", async () => {
  const held = Promise.withResolvers<void>();
  await using scene = await SandboxScene.open({ capturing: held.promise, endMsMax: 1 });
  const { sandboxes } = scene;
  const [captured, deaf] = [await running(scene), await running(scene)];
  const machine = scene.machines.get(scene.operationOf(deaf.id));
  if (machine === undefined) throw new Error("a sandbox without a machine");
  using _signal = spyOn(machine.command, "signal").mockImplementation(() => undefined);
  await sandboxes.pause(ACCOUNT, captured.id);
  await sandboxes.pause(ACCOUNT, deaf.id);
  // Its time began after that of the other one.
  expect((await becomes(scene, deaf.id, "failed")).error?.message).toContain("did not end the processes");
  expect(rowOf(scene, captured.id).state).toBe("pausing");
  held.resolve();
  expect((await becomes(scene, captured.id, "paused")).headId).not.toBe(BASE);
});

test("states that are in use do not keep later ones", async () => {
  await using scene = await SandboxScene.open({ keepStates: 2 });
  const { id } = await running(scene);
  const { db } = scene.store;
  for (let turn = 0; turn < 40; turn++) {
    const operation = await scene.sandboxes.checkpoint(ACCOUNT, id, { tag: null, timeoutSeconds: 9 });
    await scene.operations.waitForEnd(operation, FOREVER_MS, NEVER);
    // As an instance that runs on the image.
    if (turn < 12)
      db.orm
        .update(operations)
        .set({ imageId: rowOf(scene, id).headId, status: "EXECUTING", finishedAt: null })
        .where(eq(operations.id, operation))
        .run();
  }
  expect(statesOf(db, id)).toHaveLength(12 + 2);
});

test("a sandbox that ends without its pauses leaves what has a name, and what others use", async () => {
  await using scene = await SandboxScene.open();
  const { sandboxes, operations } = scene;
  const { db } = scene.store;
  const hasImage = (image: ImageId | null) => image !== null && getImage(db, ACCOUNT, image) !== null;
  const { id } = await running(scene, { discardsPauses: true });
  const heads: (ImageId | null)[] = [];
  for (const tag of [null, "kept", null]) {
    const checkpoint = await sandboxes.checkpoint(ACCOUNT, id, { tag, timeoutSeconds: 9 });
    await operations.waitForEnd(checkpoint, FOREVER_MS, NEVER);
    heads.push(rowOf(scene, id).headId);
    await sandboxes.pause(ACCOUNT, id);
    heads.push((await becomes(scene, id, "paused")).headId);
    if (heads.length < 6) await sandboxes.resume(ACCOUNT, id);
    await becomes(scene, id, heads.length < 6 ? "running" : "paused");
  }
  // A fork of the last pause lives.
  await sandboxes.fork(ACCOUNT, id, { count: 1 }, NEVER);
  await sandboxes.end(ACCOUNT, id, { keep: false });
  expect(heads.map(hasImage)).toEqual([true, false, true, false, true, true]);
});

test("a running sandbox that ends without its pauses gives them up when its machine is gone", async () => {
  await using scene = await SandboxScene.open();
  const { sandboxes } = scene;
  const { id } = await running(scene, { discardsPauses: true });
  await sandboxes.pause(ACCOUNT, id);
  const { headId } = await becomes(scene, id, "paused");
  await sandboxes.resume(ACCOUNT, id);
  await becomes(scene, id, "running");
  const { db } = scene.store;
  await sandboxes.end(ACCOUNT, id, { keep: false });
  await until("its pause is gone", () => headId !== null && getImage(db, ACCOUNT, headId) === null);
  expect(getImage(db, ACCOUNT, BASE)).not.toBeNull();
});

test("a sandbox that ends at its deadline gives its pauses up, too", async () => {
  await using scene = await SandboxScene.open();
  const { sandboxes } = scene;
  const { id } = await running(scene, { discardsPauses: true, onTimeout: "end" });
  await sandboxes.pause(ACCOUNT, id);
  const { headId } = await becomes(scene, id, "paused");
  await sandboxes.resume(ACCOUNT, id);
  await becomes(scene, id, "running");
  sandboxes.setDeadline(ACCOUNT, id, { seconds: 0, onlyLater: false });
  await until("its pause is gone", () => headId !== null && getImage(scene.store.db, ACCOUNT, headId) === null);
});

test("pauses that follow each other are given up together", async () => {
  await using scene = await SandboxScene.open();
  const { sandboxes, operations } = scene;
  const { id } = await running(scene, { discardsPauses: true });
  const { db } = scene.store;
  const pauses: (ImageId | null)[] = [];
  for (let count = 0; count < 3; count++) {
    await sandboxes.pause(ACCOUNT, id);
    pauses.push((await becomes(scene, id, "paused")).headId);
    await sandboxes.resume(ACCOUNT, id);
    await becomes(scene, id, "running");
  }
  const checkpoint = await sandboxes.checkpoint(ACCOUNT, id, { tag: "kept", timeoutSeconds: 9 });
  await operations.waitForEnd(checkpoint, FOREVER_MS, NEVER);
  const { headId } = rowOf(scene, id);
  await sandboxes.end(ACCOUNT, id, { keep: false });
  await operations.idle();
  expect(pauses.map((image) => image !== null && getImage(db, ACCOUNT, image) !== null)).toEqual([false, false, false]);
  expect(headId === null ? null : getImage(db, ACCOUNT, headId)?.parentId).toBe(BASE);
});
