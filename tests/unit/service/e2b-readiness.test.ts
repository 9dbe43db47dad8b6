import { expect, test } from "bun:test";
import { operations } from "../../../src/db/schema.ts";
import type { ApiError } from "../../../src/domain/errors.ts";
import { ROOM_MS_MAX, runs } from "../../../src/service/e2b/readiness.ts";
import type { Principal } from "../../../src/service/parts.ts";
import { failureOf } from "../../support/failures.ts";
import { ACCOUNT, NEVER, running, SANDBOX, SandboxScene } from "../../support/sandboxes/scene.ts";

const PRINCIPAL: Principal = { accountId: ACCOUNT, grants: new Set(["*"]), tokenId: "" };

test("a sandbox for which the host has no room is reported in less than the minute that clients wait", async () => {
  const { promise, resolve } = Promise.withResolvers<void>();
  await using scene = await SandboxScene.open({ starting: promise });
  const { id } = await scene.sandboxes.create(ACCOUNT, SANDBOX);
  const waits: number[] = [];
  const settled = async (_id: unknown, _until: unknown, waitMs: number) => void waits.push(waitMs);
  const limits = { roomMsMax: ROOM_MS_MAX };
  const parts = { db: scene.store.db, limits, sandboxes: { ...scene.sandboxes, settled } as never } as never;
  const refusal = async (status: "PENDING" | "EXECUTING") => {
    scene.store.db.orm.update(operations).set({ status }).run();
    waits.length = 0;
    const { code, details } = (await failureOf(runs(parts, PRINCIPAL, id, NEVER))) as ApiError;
    expect(code).toBe("too_many_requests");
    return Number(details["retry_after_seconds"]) * 1000;
  };
  // One whose machine starts has the rest of the minute.
  await refusal("EXECUTING");
  expect(waits.reduce((sum, waitMs) => sum + waitMs, 0)).toBeLessThan(60_000);
  const pauseMs = await refusal("PENDING");
  expect(waits).toHaveLength(1);
  // Clients that repeat requests report the refusal when their next one would come after the minute.
  expect((waits.at(-1) ?? 0) + pauseMs).toBeGreaterThanOrEqual(60_000);
  resolve();
});

test("a sandbox that runs is not waited for, and one that ended is refused", async () => {
  await using scene = await SandboxScene.open();
  const { sandboxes, store } = scene;
  const { id } = await running(scene);
  const parts = { db: store.db, sandboxes, limits: { roomMsMax: ROOM_MS_MAX } } as never;
  expect((await runs(parts, PRINCIPAL, id, NEVER)).state).toBe("running");
  await sandboxes.end(ACCOUNT, id, { keep: false });
  expect(await failureOf(runs(parts, PRINCIPAL, id, NEVER))).toMatchObject({ message: "the sandbox is no more" });
});
