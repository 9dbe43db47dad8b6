/** Requests whose machine another request ends. */
import { expect, test } from "bun:test";
import { ApiError } from "../../../src/domain/errors.ts";
import type { SandboxState } from "../../../src/domain/sandbox.ts";
import { onMachine } from "../../../src/service/running/running.ts";
import { failureOf } from "../../support/failures.ts";
import { ACCOUNT, SANDBOX, SandboxScene } from "../../support/sandboxes/scene.ts";

const FOREVER_MS = 60_000;
const NEVER = new AbortController().signal;
const LOST = new ApiError("unavailable", "the virtual machine ended early");

test("a request whose machine another one ended conflicts with it, and one whose machine died says so", async () => {
  const held = Promise.withResolvers<void>();
  await using scene = await SandboxScene.open({ capturing: held.promise });
  const { sandboxes, store, machines } = scene;
  const becomes = (state: SandboxState) => sandboxes.settled(id, (now) => now === state, FOREVER_MS, NEVER);
  const { id } = await sandboxes.create(ACCOUNT, SANDBOX);
  await becomes("running");
  const machine = { id: scene.operationOf(id) };
  const fails = async (error = LOST) => {
    const lost = await failureOf(onMachine(store, { sandbox: id }, machine, () => Promise.reject(error)));
    return [(lost as ApiError).code, (lost as ApiError).details];
  };
  expect(await fails()).toEqual(["unavailable", {}]);
  await sandboxes.rollback(ACCOUNT, id, { target: { head: 0 }, keep: false });
  expect(await fails()).toEqual(["conflict", { state: "resuming" }]);
  await becomes("running");
  expect(await fails()).toEqual(["conflict", { state: "resuming" }]);
  expect(await fails(new ApiError("not_found", "no such file"))).toEqual(["not_found", {}]);
  machines.get(scene.operationOf(id))?.die();
  await becomes("failed");
  expect(await fails()).toEqual(["unavailable", {}]);
  await sandboxes.resume(ACCOUNT, id);
  await becomes("running");
  await sandboxes.pause(ACCOUNT, id);
  expect(await fails()).toEqual(["conflict", { state: "pausing" }]);
  held.resolve();
});
