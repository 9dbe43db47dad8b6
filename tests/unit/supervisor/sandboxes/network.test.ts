/** The network of a sandbox that changes, over the real database; the machines are simulated. */

import { expect, test } from "bun:test";
import { findSandbox, updateSandbox } from "../../../../src/db/sandboxes/rows.ts";
import { ApiError } from "../../../../src/domain/errors.ts";
import type { SandboxId } from "../../../../src/domain/ids.ts";
import type { NetworkRequest } from "../../../../src/domain/network.ts";
import { type SandboxContext, sandboxKind } from "../../../../src/supervisor/kinds/sandbox.ts";
import { failureOf } from "../../../support/failures.ts";
import { rule } from "../../../support/network-scene.ts";
import { ACCOUNT, BASE, SANDBOX, SandboxScene } from "../../../support/sandboxes/scene.ts";

const NEVER = new AbortController().signal;
const OLD: NetworkRequest = { allow: [rule("old.example")], tls: "sni", record: false };
const NEW: NetworkRequest = { ...OLD, allow: [rule("new.example")] };

async function running(scene: SandboxScene): Promise<SandboxId> {
  const { id } = await scene.sandboxes.create(ACCOUNT, { ...SANDBOX, network: OLD });
  await scene.sandboxes.settled(id, (state) => state === "running", 60_000, NEVER);
  return id;
}
const networkOf = ({ store }: SandboxScene, id: SandboxId) => findSandbox(store.db, id)?.network;

test("a change is in the row before the instance has it, so that one that begins meanwhile reads it", async () => {
  await using scene = await SandboxScene.open();
  const id = await running(scene);
  const seen: unknown[] = [];
  scene.setNetwork = async (operationId, network) => {
    seen.push([operationId, network, networkOf(scene, id)]);
    return true;
  };
  const { network, operationId } = await scene.sandboxes.change(ACCOUNT, id, { network: NEW });
  expect([network, seen]).toEqual([NEW, [[operationId, NEW, NEW]]]);
  await scene.sandboxes.change(ACCOUNT, id, { name: "other" });
  expect(seen).toHaveLength(1);
  await scene.sandboxes.pause(ACCOUNT, id);
  await scene.sandboxes.settled(id, (state) => state === "paused", 60_000, NEVER);
  expect((await scene.sandboxes.change(ACCOUNT, id, { network: null })).network).toBeNull();
  expect(seen).toHaveLength(1);
});

test("a change that the guest does not adopt is undone, unless there was another one meanwhile", async () => {
  await using scene = await SandboxScene.open();
  const id = await running(scene);
  const failure = new ApiError("unavailable", "the guest did not adopt its network in time");
  scene.setNetwork = () => Promise.reject(failure);
  expect(await failureOf(scene.sandboxes.change(ACCOUNT, id, { network: NEW, name: "other" }))).toBe(failure);
  expect([networkOf(scene, id), findSandbox(scene.store.db, id)?.name === "other"]).toEqual([OLD, false]);
  scene.setNetwork = () => {
    updateSandbox(scene.store.db, id, { network: null });
    return Promise.reject(failure);
  };
  await failureOf(scene.sandboxes.change(ACCOUNT, id, { network: NEW }));
  expect(networkOf(scene, id)).toBeNull();
});

test("an instance begins with the network that its sandbox has then, and not when it was submitted", async () => {
  await using scene = await SandboxScene.open();
  const id = await running(scene);
  const { db } = scene.store;
  const opened: unknown[] = [];
  const enough = new Error("enough");
  const context = {
    ...{ db, layers: { hold: () => ({ files: [{ index: "" }], [Symbol.dispose]: () => undefined }) } },
    compactor: {
      attach: async () => {
        updateSandbox(db, id, { network: NEW });
        return { [Symbol.dispose]: () => undefined };
      },
    },
    starts: { take: () => null },
    diskGuard: { watch: () => ({ add: () => undefined, full: NEVER, [Symbol.dispose]: () => undefined }) },
    networks: {
      open: (_: unknown, network: unknown) => {
        opened.push(network);
        throw enough;
      },
    },
    lives: {
      begin: async () => ({
        ...{ events: { path: "", failed: NEVER }, numbers: {}, abort: NEVER, ending: null },
        ...{ started: () => undefined, [Symbol.asyncDispose]: async () => undefined },
      }),
    },
  } as unknown as SandboxContext;
  const run = { sandboxId: id, hostname: "box", imageId: BASE, files: [], network: OLD, resources: SANDBOX.resources };
  const operation = { id: scene.operationOf(id), accountId: ACCOUNT, kind: "sandbox" as const };
  const work = { signal: NEVER, laps: {}, events: { path: "", failed: NEVER }, auditNetwork: () => undefined };
  const prepared = sandboxKind.worker(context).prepare(operation, run, work as never);
  expect([await failureOf(prepared), opened]).toEqual([enough, [NEW]]);
});
