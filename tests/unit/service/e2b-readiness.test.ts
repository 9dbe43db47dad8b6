import { expect, test } from "bun:test";
import { operations } from "../../../src/db/schema.ts";
import { runs } from "../../../src/service/e2b/readiness.ts";
import type { Principal } from "../../../src/service/parts.ts";
import { throwing } from "../../support/failures.ts";
import { ACCOUNT, running, SANDBOX, SandboxScene } from "../../support/sandboxes/scene.ts";

const PRINCIPAL: Principal = { accountId: ACCOUNT, grants: new Set(["*"]), tokenId: "" };

test("a sandbox for which the host has no room is reported in less than the minute that clients wait", async () => {
  const { promise, resolve } = Promise.withResolvers<void>();
  await using scene = await SandboxScene.open({ starting: promise });
  const { id } = await scene.sandboxes.create(ACCOUNT, SANDBOX);
  const waits: number[] = [];
  const settled = async (_id: unknown, _until: unknown, waitMs: number) => void waits.push(waitMs);
  const parts = { db: scene.store.db, sandboxes: { ...scene.sandboxes, settled } as never };
  const refused = async (status: "PENDING" | "EXECUTING") => {
    scene.store.db.orm.update(operations).set({ status }).run();
    waits.length = 0;
    expect(await throwing(runs(parts, PRINCIPAL, id))).toThrow("no room");
  };
  // One whose machine starts has the rest of the minute.
  await refused("EXECUTING");
  expect(waits.reduce((sum, waitMs) => sum + waitMs, 0)).toBeLessThan(60_000);
  await refused("PENDING");
  expect(waits).toHaveLength(1);
  // Clients repeat the request three times, and wait five seconds before each.
  expect(4 * (waits.at(-1) ?? 0) + 3 * 5000).toBeLessThan(60_000);
  resolve();
});

test("a sandbox that runs is not waited for, and one that ended is refused", async () => {
  await using scene = await SandboxScene.open();
  const { sandboxes, store } = scene;
  const { id } = await running(scene);
  expect((await runs({ db: store.db, sandboxes }, PRINCIPAL, id)).state).toBe("running");
  await sandboxes.end(ACCOUNT, id, { keep: false });
  expect(await throwing(runs({ db: store.db, sandboxes }, PRINCIPAL, id))).toThrow("the sandbox is no more");
});
