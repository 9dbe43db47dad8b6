/** Checkpoints of sandboxes whose machines die meanwhile. */
import { expect, test } from "bun:test";
import { getOperation } from "../../../../src/db/operations.ts";
import { statesOf } from "../../../../src/db/sandboxes/states.ts";
import type { ImageId, SandboxId } from "../../../../src/domain/ids.ts";
import { failureOf } from "../../../support/failures.ts";
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
import { until } from "../../../support/waiting.ts";

const REQUEST = { tag: null, timeoutSeconds: 9 };

type Change = (scene: SandboxScene, id: SandboxId) => Promise<unknown>;

/** Lets the machine of a sandbox die, and waits until it has failed. */
async function die(scene: SandboxScene, id: SandboxId): Promise<void> {
  scene.machines.get(scene.operationOf(id))?.die();
  await becomes(scene, id, "failed");
}

/** Lets the machine die during a checkpoint, makes a change, and returns the image of the checkpoint. */
async function checkpointed(change: Change): Promise<{ head: ImageId | null; image: unknown; reasons: string[] }> {
  const held = Promise.withResolvers<void>();
  await using scene = await SandboxScene.open({ checkpointing: held.promise });
  const { id } = await running(scene);
  const checkpoint = await scene.sandboxes.checkpoint(ACCOUNT, id, REQUEST);
  const operation = () => getOperation(scene.store.db, ACCOUNT, checkpoint);
  await until("it executes", () => operation()?.status === "EXECUTING");
  await die(scene, id);
  await change(scene, id);
  held.resolve();
  await scene.operations.waitForEnd(checkpoint, FOREVER_MS, NEVER);
  expect(operation()?.status).toBe("SUCCESS");
  const { headId, headSeq } = rowOf(scene, id);
  const states = statesOf(scene.store.db, id);
  expect(states.find(({ seq }) => seq === headSeq)?.imageId).toBe(headId ?? undefined);
  return { head: headId, image: operation()?.result?.["image"], reasons: states.map(({ reason }) => reason) };
}

test("a checkpoint is the head of a sandbox that has failed meanwhile", async () => {
  const { head, image, reasons } = await checkpointed(async () => undefined);
  expect(head).toBe(image as ImageId);
  expect(reasons).toEqual(["start", "checkpoint"]);
});

const later: Readonly<Record<string, Change>> = {
  "was resumed": async ({ sandboxes }, id) => await sandboxes.resume(ACCOUNT, id),
  "was rolled back": async ({ sandboxes }, id) =>
    await sandboxes.rollback(ACCOUNT, id, { target: { head: 0 }, keep: false }),
  "has failed again": async (scene, id) => {
    await scene.sandboxes.resume(ACCOUNT, id);
    const { stateAt } = await becomes(scene, id, "running");
    await until("the clock moves", () => Date.now() > stateAt);
    await die(scene, id);
  },
};

test.each(Object.entries(later))("but not of one that %s since", async (_, change) => {
  const { head, reasons } = await checkpointed(change);
  expect([head, reasons]).toEqual([BASE, ["start"]]);
});

test("a checkpoint is refused as temporary while the state says that a machine runs which has just died", async () => {
  await using scene = await SandboxScene.open();
  const { id } = await running(scene);
  const machine = scene.machines.get(scene.operationOf(id));
  scene.machines.delete(scene.operationOf(id));
  const error = await failureOf(scene.sandboxes.checkpoint(ACCOUNT, id, REQUEST));
  expect(error).toMatchObject({ code: "unavailable", details: { state: "running" } });
  machine?.die();
  await becomes(scene, id, "failed");
});
