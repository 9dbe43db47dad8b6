import { expect, test } from "bun:test";
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
  expect(await throwing(runs(parts, PRINCIPAL, id))).toThrow("no room");
  expect(waits).toEqual([expect.any(Number)]);
  expect(waits[0]).toBeLessThan(60_000);
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
