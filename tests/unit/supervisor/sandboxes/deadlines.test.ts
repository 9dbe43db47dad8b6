/** Deadlines that requests move, and lives that they choose. */
import { expect, test } from "bun:test";
import type { SandboxId } from "../../../../src/domain/ids.ts";
import { throwing } from "../../../support/failures.ts";
import { ACCOUNT, BASE, becomes, rowOf, running, SANDBOX, SandboxScene } from "../../../support/sandboxes/scene.ts";

const NOW = 1_000_000_000_000;
const clock = () => NOW;

test("a deadline moves to either side, or to the later one only, and the next life is as long as before", async () => {
  await using scene = await SandboxScene.open({ clock });
  const { sandboxes } = scene;
  const { id } = await running(scene, { timeoutSeconds: 600 });
  const ends: (number | null)[] = [];
  for (const [seconds, onlyLater] of [
    [60, false],
    [30, true],
    [90, true],
  ] as const) {
    ends.push(sandboxes.setDeadline(ACCOUNT, id, { seconds, onlyLater }).endsAt);
  }
  expect(ends).toEqual([NOW + 60_000, NOW + 60_000, NOW + 90_000]);
  await sandboxes.pause(ACCOUNT, id);
  await becomes(scene, id, "paused");
  const refused = await throwing(
    Promise.try(() => sandboxes.setDeadline(ACCOUNT, id, { seconds: 1, onlyLater: false })),
  );
  expect(refused).toThrow("the sandbox is paused");
  await sandboxes.resume(ACCOUNT, id, { timeoutSeconds: 45 });
  expect(rowOf(scene, id)).toMatchObject({ endsAt: NOW + 45_000, timeoutMs: 600_000 });
});

test("a deadline of now ends a sandbox, or pauses it", async () => {
  await using scene = await SandboxScene.open({ clock });
  const { sandboxes } = scene;
  for (const [onTimeout, state] of [
    ["end", "ended"],
    ["pause", "paused"],
  ] as const) {
    const { id } = await running(scene, { onTimeout });
    sandboxes.setDeadline(ACCOUNT, id, { seconds: 0, onlyLater: false });
    await becomes(scene, id, state);
  }
});

test("what fails with the insertion of a sandbox undoes it", async () => {
  await using scene = await SandboxScene.open();
  const id = Bun.randomUUIDv7() as SandboxId;
  const inserted = () => {
    throw new Error("a duplicate");
  };
  expect(await throwing(scene.sandboxes.create(ACCOUNT, SANDBOX, { id, inserted }))).toThrow("a duplicate");
  const row = await scene.sandboxes.create(ACCOUNT, SANDBOX, { id });
  expect([row.id, row.imageId]).toEqual([id, BASE]);
});
