/** Deadlines that requests move, and lives that they choose. */
import { describe, expect, test } from "bun:test";
import { eq } from "drizzle-orm";
import { sandboxes } from "../../../../src/db/sandboxes/schema.ts";
import type { SandboxId } from "../../../../src/domain/ids.ts";
import { silentLog } from "../../../../src/log.ts";
import { Deadlines } from "../../../../src/supervisor/sandboxes/deadlines.ts";
import { throwing } from "../../../support/failures.ts";
import { ACCOUNT, BASE, becomes, rowOf, running, SANDBOX, SandboxScene } from "../../../support/sandboxes/scene.ts";

import { until } from "../../../support/waiting.ts";

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

describe("the idle time of a sandbox that a former process has left running", () => {
  interface Watched extends AsyncDisposable {
    readonly scene: SandboxScene;
    readonly deadlines: Deadlines;
    /** resolves with the milliseconds until it was paused, since `since` */
    paused(since: number): Promise<number>;
  }

  /** Watches the sandboxes of a scene, as the next process does. */
  async function watched(returnMs: number): Promise<Watched> {
    const scene = await SandboxScene.open();
    const { db } = scene.store;
    const { promise, resolve } = Promise.withResolvers<number>();
    const deadlines = new Deadlines({
      ...{ db, clock: Date.now, log: silentLog, journal: scene.lives.journal, instances: { find: () => null } },
      ...{ pause: () => resolve(performance.now()), end: () => undefined, returnMs },
    });
    return {
      ...{ scene, deadlines, paused: async (since) => (await promise) - since },
      [Symbol.asyncDispose]: async () => {
        deadlines[Symbol.dispose]();
        await scene[Symbol.asyncDispose]();
      },
    };
  }

  /** A sandbox that was used so many `milliseconds` ago, and continues. */
  async function continued({ scene }: Watched, agoMs: number): Promise<number> {
    const { db } = scene.store;
    const { id } = await running(scene, { idleTimeoutSeconds: 3000 });
    const stateAt = Date.now() - 100_000;
    const usedAt = Date.now() - agoMs;
    db.orm.update(sandboxes).set({ stateAt, usedAt, idleTimeoutMs: 3000 }).where(eq(sandboxes.id, id)).run();
    scene.lives.journal.continue(rowOf(scene, id));
    return performance.now();
  }

  test("continues from the last use", async () => {
    await using watch = await watched(0);
    const ms = await watch.paused(await continued(watch, 2600));
    expect(ms).toBeGreaterThan(200);
    expect(ms).toBeLessThan(2500);
  });

  test("leaves its users time to come back", async () => {
    await using watch = await watched(1000);
    expect(await watch.paused(await continued(watch, 90_000))).toBeGreaterThan(900);
  });

  test("begins with a use, whose time is stored while it lasts", async () => {
    await using watch = await watched(0);
    const { scene, deadlines } = watch;
    const { id } = await running(scene, { idleTimeoutSeconds: 4 });
    const usedAt = () => rowOf(scene, id).usedAt;
    expect(usedAt()).toBeNull();
    const before = Date.now();
    using _use = deadlines.use(id);
    await until("it is stored", () => (usedAt() ?? 0) >= before);
    // A use that begins later is stored soon, too.
    const next = Date.now() + 1000;
    await until("its time has come", () => Date.now() > next);
    using _later = deadlines.use(id);
    await until("it is stored", () => (usedAt() ?? 0) >= next);
    await scene.sandboxes.pause(ACCOUNT, id);
    await becomes(scene, id, "paused");
    expect(usedAt()).toBeNull();
  });
});
