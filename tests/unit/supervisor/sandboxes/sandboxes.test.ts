/** Sandboxes over the real operations and database; the machines are simulated. */
import { expect, test } from "bun:test";
import { expiredImages } from "../../../../src/db/expiry.ts";
import { deleteImage } from "../../../../src/db/removal.ts";
import { listSandboxes, type SandboxRow } from "../../../../src/db/sandboxes/rows.ts";
import { movedHead, statesOf } from "../../../../src/db/sandboxes/states.ts";
import { images } from "../../../../src/db/schema.ts";
import { ApiError } from "../../../../src/domain/errors.ts";
import type { ImageId, OperationId, SandboxId } from "../../../../src/domain/ids.ts";
import type { SandboxState } from "../../../../src/domain/sandbox.ts";
import { failureOf } from "../../../support/failures.ts";
import { operationsStore } from "../../../support/operations.ts";
import { seededRandom } from "../../../support/random.ts";
import {
  ACCOUNT,
  BASE,
  becomes,
  FOREVER_MS,
  NEVER,
  rowOf,
  running,
  SANDBOX,
  SandboxScene,
} from "../../../support/sandboxes/scene.ts";
import { impossibleSteps } from "../../../support/sandboxes/story.ts";
import { turns, until } from "../../../support/waiting.ts";

async function paused(scene: SandboxScene): Promise<SandboxRow> {
  const { id } = await running(scene);
  await scene.sandboxes.pause(ACCOUNT, id);
  return await becomes(scene, id, "paused");
}

/** Brings a sandbox into each state. */
const INTO: Readonly<Record<SandboxState, (scene: SandboxScene) => Promise<SandboxRow>>> = {
  starting: async ({ sandboxes }) => await sandboxes.create(ACCOUNT, SANDBOX),
  running,
  pausing: async (scene) => {
    const { id } = await running(scene);
    await scene.sandboxes.pause(ACCOUNT, id);
    return rowOf(scene, id);
  },
  paused,
  resuming: async (scene) => {
    const { id } = await paused(scene);
    await scene.sandboxes.resume(ACCOUNT, id);
    return rowOf(scene, id);
  },
  failed: async (scene) => {
    const { id, operationId } = await running(scene);
    scene.machines.get(operationId ?? ("" as never))?.die();
    return await becomes(scene, id, "failed");
  },
  ended: async (scene) => {
    const { id } = await running(scene);
    await scene.sandboxes.end(ACCOUNT, id, { keep: false });
    return rowOf(scene, id);
  },
};

/** Each request, with the states that allow it and the state that it leads to at once. */
const REQUESTS: Readonly<Record<string, (scene: SandboxScene, id: SandboxId) => Promise<unknown>>> = {
  pause: ({ sandboxes }, id) => sandboxes.pause(ACCOUNT, id),
  resume: ({ sandboxes }, id) => sandboxes.resume(ACCOUNT, id),
  rollback: ({ sandboxes }, id) => sandboxes.rollback(ACCOUNT, id, { target: { head: 0 }, keep: false }),
  checkpoint: ({ sandboxes }, id) => sandboxes.checkpoint(ACCOUNT, id, { tag: null, timeoutSeconds: 9 }),
  end: ({ sandboxes }, id) => sandboxes.end(ACCOUNT, id, { keep: false }),
};
const OUTCOMES: Readonly<Record<string, Readonly<Partial<Record<SandboxState, SandboxState>>>>> = {
  pause: { running: "pausing" },
  resume: { paused: "resuming", failed: "resuming" },
  rollback: { running: "resuming", paused: "paused", failed: "paused" },
  checkpoint: { running: "running" },
  end: { starting: "ended", running: "ended", pausing: "ended", paused: "ended", resuming: "ended", failed: "ended" },
};

for (const [name, request] of Object.entries(REQUESTS)) {
  for (const [state, into] of Object.entries(INTO)) {
    const to = OUTCOMES[name]?.[state as SandboxState];
    test(`${name} of a sandbox that is ${state} ${to === undefined ? "is refused" : `makes it ${to}`}`, async () => {
      const held = Promise.withResolvers<void>();
      const hold = {
        starting: { starting: held.promise },
        pausing: { capturing: held.promise },
        resuming: { resuming: held.promise },
      };
      await using scene = await SandboxScene.open(hold[state as keyof typeof hold]);
      const { id } = await into(scene);
      expect(rowOf(scene, id).state).toBe(state as SandboxState);
      if (to === undefined) {
        const error = (await failureOf(request(scene, id))) as ApiError;
        expect([error.code, error.details["state"]]).toEqual(["conflict", state]);
        expect(rowOf(scene, id).state).toBe(state as SandboxState);
      } else {
        await request(scene, id);
        expect(rowOf(scene, id).state).toBe(to);
      }
      held.resolve();
    });
  }
}

test("two requests that contend have one winner", async () => {
  await using scene = await SandboxScene.open();
  const { id } = await paused(scene);
  const resumes = await Promise.allSettled([1, 2, 3].map(() => scene.sandboxes.resume(ACCOUNT, id)));
  const refusals = resumes.flatMap((outcome) => (outcome.status === "rejected" ? [outcome.reason as ApiError] : []));
  expect(refusals.map(({ code, details }) => [code, details["state"]])).toEqual([
    ["conflict", "resuming"],
    ["conflict", "resuming"],
  ]);
  expect((await becomes(scene, id, "running")).state).toBe("running");
});

test("each saved state is the child of the one before, also after a rollback", async () => {
  await using scene = await SandboxScene.open();
  const { id } = await running(scene);
  const parentOf = (image: ImageId | null) =>
    scene.store.db.orm
      .select()
      .from(images)
      .all()
      .find((row) => row.id === image)?.parentId;
  const save = async (): Promise<ImageId | null> => {
    const operation = await scene.sandboxes.checkpoint(ACCOUNT, id, { tag: null, timeoutSeconds: 9 });
    await scene.operations.waitForEnd(operation, FOREVER_MS, NEVER);
    return rowOf(scene, id).headId;
  };
  const [first, second] = [await save(), await save()];
  expect([parentOf(first), parentOf(second)]).toEqual([BASE, first]);
  await scene.sandboxes.rollback(ACCOUNT, id, { target: { head: 1 }, keep: false });
  expect((await becomes(scene, id, "running")).headId).toBe(first);
  const third = await save();
  expect(parentOf(third)).toBe(first);
  expect(statesOf(scene.store.db, id).map(({ seq, parentSeq }) => [seq, parentSeq])).toEqual([
    [0, null],
    [1, 0],
    [2, 1],
    [3, 1],
  ]);
});

test("a head does not move to another state that has the number of a deleted one", async () => {
  await using scene = await SandboxScene.open();
  const row = await paused(scene);
  const { db } = scene.store;
  const head = db.transaction(() => movedHead(db, row, { seq: row.headSeq, imageId: BASE }, 1));
  expect(head).toEqual({ headId: BASE, headSeq: row.headSeq + 1 });
  expect(statesOf(db, row.id).at(-1)).toMatchObject({ imageId: BASE, parentSeq: row.headSeq, reason: "rollback" });
});

test("the image of a head cannot be deleted while its sandbox lives, and variables are deleted at its end", async () => {
  await using scene = await SandboxScene.open();
  const { id, headId } = await paused(scene);
  const { db } = scene.store;
  expect([deleteImage(db, ACCOUNT, headId as ImageId), deleteImage(db, ACCOUNT, BASE)]).toEqual(["in_use", "in_use"]);
  expect(rowOf(scene, id).env).toEqual({ SECRET: "canary" });
  expect(await expiredImages(db, 1e15, 9)).toEqual([]);
  await scene.sandboxes.end(ACCOUNT, id, { keep: false });
  expect([rowOf(scene, id).env, rowOf(scene, id).envNames]).toEqual([{}, ["SECRET"]]);
  expect((await expiredImages(db, 1e15, 9)).sort()).toEqual([BASE, headId as ImageId].sort());
  expect(deleteImage(db, ACCOUNT, headId as ImageId)).not.toBe("in_use");
  expect([rowOf(scene, id).headId, statesOf(db, id).length]).toEqual([null, 1]);
});

test("a hundred turns of checkpoint and rollback leave the newest states, those with a tag, and nothing else", async () => {
  await using scene = await SandboxScene.open({ keepStates: 5 });
  const { id } = await running(scene);
  for (let turn = 0; turn < 100; turn++) {
    const tag = turn === 10 ? "kept" : null;
    const operation = await scene.sandboxes.checkpoint(ACCOUNT, id, { tag, timeoutSeconds: 9 });
    await scene.operations.waitForEnd(operation, FOREVER_MS, NEVER);
    await scene.sandboxes.rollback(ACCOUNT, id, { target: { head: turn % 2 }, keep: false });
    await becomes(scene, id, "running");
  }
  await scene.sandboxes.pause(ACCOUNT, id);
  const { headId, headSeq } = await becomes(scene, id, "paused");
  const states = statesOf(scene.store.db, id);
  expect(states.length).toBeLessThanOrEqual(5 + 1 + 1);
  const existing = scene.store.db.orm.select().from(images).all();
  const kept = new Set([BASE, ...states.map(({ imageId }) => imageId)]);
  expect(existing.map((row) => row.id).sort()).toEqual([...kept].sort());
  expect(states.find(({ seq }) => seq === headSeq)?.imageId).toBe(headId as ImageId);
  // Each state and each image that is left has its parent among those that are left.
  const seqs = new Set(states.map(({ seq }) => seq));
  expect(states.filter(({ parentSeq }) => parentSeq !== null && !seqs.has(parentSeq))).toEqual([]);
  expect(existing.filter((row) => row.id !== BASE && row.parentId === null)).toEqual([]);
});

test("an account has a limit of sandboxes, and a fork is made as a whole or not at all", async () => {
  await using scene = await SandboxScene.open();
  const { id } = await paused(scene);
  const error = (await failureOf(scene.sandboxes.fork(ACCOUNT, id, { count: 256 }, NEVER))) as ApiError;
  expect([error.code, error.details]).toEqual(["too_many_requests", { limit: 256 }]);
  await scene.sandboxes.create(ACCOUNT, { ...SANDBOX, name: "taken" });
  const names = ["one", "two", "taken"];
  const refused = (await failureOf(scene.sandboxes.fork(ACCOUNT, id, { count: 3, names }, NEVER))) as ApiError;
  expect(refused.code).toBe("conflict");
  const forks = await scene.sandboxes.fork(ACCOUNT, id, { count: 2, names: ["one", "two"] }, NEVER);
  expect(forks.map((fork) => rowOf(scene, fork).name)).toEqual(["one", "two"]);
  const namesOf = async () =>
    (await scene.sandboxes.fork(ACCOUNT, id, { count: 2 }, NEVER)).map((fork) => rowOf(scene, fork).name);
  const { name } = rowOf(scene, id);
  expect([await namesOf(), await namesOf()]).toEqual([
    [`${name}-1`, `${name}-2`],
    [`${name}-3`, `${name}-4`],
  ]);
});

test("a fork whose names are taken leaves its sandbox as it was", async () => {
  await using scene = await SandboxScene.open();
  const { id } = await running(scene);
  await scene.sandboxes.create(ACCOUNT, { ...SANDBOX, name: "taken" });
  const names = ["free", "taken"];
  const refused = (await failureOf(scene.sandboxes.fork(ACCOUNT, id, { count: 2, names }, NEVER))) as ApiError;
  expect([refused.code, statesOf(scene.store.db, id).length]).toEqual(["conflict", 1]);
  expect(listSandboxes(scene.store.db, ACCOUNT, { states: ["ended"], limit: 10 })).toMatchObject({ rows: [] });
});

test("an end that saves the files does not give up a capture that is under way", async () => {
  const held = Promise.withResolvers<void>();
  await using scene = await SandboxScene.open({ capturing: held.promise });
  const { id } = await running(scene);
  await scene.sandboxes.pause(ACCOUNT, id);
  const refused = (await failureOf(scene.sandboxes.end(ACCOUNT, id, { keep: true }))) as ApiError;
  expect([refused.code, refused.details]).toEqual(["conflict", { state: "pausing" }]);
  held.resolve();
  expect((await becomes(scene, id, "paused")).headId).not.toBe(BASE);
});

test("who waits for the end of a sandbox finds it in the log", async () => {
  await using scene = await SandboxScene.open();
  const { id } = await running(scene);
  await scene.sandboxes.end(ACCOUNT, id, { keep: true });
  await becomes(scene, id, "ended");
  expect([scene.sandboxes.logged(id), (await scene.story(id)).at(-1)?.to]).toEqual([null, "ended"]);
});

test("an instance that begins after the end of its sandbox does not open the log again", async () => {
  await using scene = await SandboxScene.open();
  const { id, operationId } = await running(scene);
  await scene.sandboxes.end(ACCOUNT, id, { keep: false });
  await scene.operations.idle();
  const late = { id: operationId as OperationId, accountId: ACCOUNT, kind: "sandbox" as const };
  expect(((await failureOf(scene.lives.begin(late, id))) as ApiError).code).toBe("conflict");
  expect(scene.eventLogs.counts.feeds).toBe(0);
});

test("a use resumes a paused sandbox, and waits until it runs", async () => {
  await using scene = await SandboxScene.open();
  const { id } = await paused(scene);
  const refused = (await failureOf(scene.sandboxes.use(ACCOUNT, id, NEVER, { resumes: false }))) as ApiError;
  expect(refused.details["state"]).toBe("paused");
  const uses = await Promise.all([1, 2, 3].map(() => scene.sandboxes.use(ACCOUNT, id, NEVER)));
  expect(new Set(uses.map(({ instance }) => instance))).toEqual(new Set([rowOf(scene, id).operationId as never]));
  for (const use of uses) use[Symbol.dispose]();
  await scene.sandboxes.change(ACCOUNT, id, { autoResume: false });
  await scene.sandboxes.pause(ACCOUNT, id);
  await becomes(scene, id, "paused");
  expect(((await failureOf(scene.sandboxes.use(ACCOUNT, id, NEVER))) as ApiError).details["state"]).toBe("paused");
});

test("a deadline follows the wall clock when that jumps, and is announced a minute before", async () => {
  let now = 1_000_000_000_000;
  await using scene = await SandboxScene.open({ clock: () => now });
  const { sandboxes } = scene;
  const { id, endsAt } = await running(scene, { timeoutSeconds: 600 });
  expect(endsAt).toBe(now + 600_000);
  // Each change of the settings makes the deadlines be checked soon.
  now -= 3_600_000;
  await sandboxes.change(ACCOUNT, id, { metadata: { a: "1" } });
  now += 3_600_000 + 560_000;
  await sandboxes.change(ACCOUNT, id, { metadata: { a: "2" } });
  await until("it is announced", async () => (await scene.types(id)).includes("ends_soon"));
  expect(rowOf(scene, id).state).toBe("running");
  now += 3_600_000;
  await sandboxes.change(ACCOUNT, id, { metadata: { a: "3" } });
  expect((await becomes(scene, id, "paused")).endsAt).toBeNull();
  // A resume begins the time again.
  await sandboxes.resume(ACCOUNT, id);
  expect((await becomes(scene, id, "running")).endsAt).toBe(now + 600_000);
  await sandboxes.change(ACCOUNT, id, { timeoutSeconds: 60, onTimeout: "end" });
  expect(rowOf(scene, id).endsAt).toBe(now + 60_000);
  now += 60_000;
  await sandboxes.change(ACCOUNT, id, { metadata: {} });
  expect((await becomes(scene, id, "ended")).state).toBe("ended");
  expect((await scene.types(id)).filter((type) => type === "ends_soon")).toHaveLength(1);
});

test("an idle sandbox is paused, but not while it is used", async () => {
  await using scene = await SandboxScene.open();
  const { sandboxes } = scene;
  const { id } = await running(scene);
  const use = await sandboxes.use(ACCOUNT, id, NEVER);
  await sandboxes.change(ACCOUNT, id, { idleTimeoutSeconds: 1 });
  const idle = await running(scene, { idleTimeoutSeconds: 1 });
  expect((await becomes(scene, idle.id, "paused")).state).toBe("paused");
  expect(rowOf(scene, id).state).toBe("running");
  use[Symbol.dispose]();
  expect((await becomes(scene, id, "paused")).state).toBe("paused");
});

for (const state of ["starting", "running", "pausing", "paused", "resuming", "failed", "ended"] as const) {
  test(`a daemon that is killed while a sandbox is ${state} leaves it truthful, with its head`, async () => {
    const held = Promise.withResolvers<void>();
    const hold = {
      starting: { starting: held.promise },
      pausing: { capturing: held.promise },
      resuming: { resuming: held.promise },
    };
    const store = await operationsStore(ACCOUNT, BASE);
    const killed = new SandboxScene(store, hold[state as keyof typeof hold]);
    const { id } = await INTO[state](killed);
    const before = rowOf(killed, id);
    expect(before.state).toBe(state);
    killed.sandboxes[Symbol.dispose]();
    // The second daemon begins with the rows that the first has left at this moment.
    await using scene = new SandboxScene(store);
    scene.sandboxes.recover();
    scene.operations.recover();
    const after = rowOf(scene, id);
    const isStill = state === "paused" || state === "failed" || state === "ended";
    expect([after.state, after.headId, after.operationId]).toEqual([isStill ? state : "failed", before.headId, null]);
    if (!isStill) {
      expect(after.error).toMatchObject({
        error: "unavailable",
        message: "the appliance was restarted while the sandbox was running",
      });
    }
    if (state !== "ended") {
      if (state !== "paused" && state !== "failed") expect(after.endsAt).toBeNull();
      await scene.sandboxes.resume(ACCOUNT, id);
      expect((await becomes(scene, id, "running")).headId).toBe(before.headId);
    }
    held.resolve();
    await killed.operations[Symbol.asyncDispose]();
  });
}

test("requests at random tell a story that could have happened", async () => {
  await using scene = await SandboxScene.open({ keepStates: 4 });
  const random = seededRandom(24);
  const ids = (await Promise.all([1, 2, 3].map(() => running(scene)))).map(({ id }) => id);
  const pick = <T>(items: readonly T[]): T => items[random.below(items.length)] as T;
  const requests = [
    ...Object.entries(REQUESTS).flatMap(([name, request]) => (name === "end" ? [] : [request])),
    async ({ sandboxes }: SandboxScene, id: SandboxId) => {
      const target = { head: random.below(4) };
      await sandboxes.rollback(ACCOUNT, id, { target, keep: random.below(2) === 0 });
    },
    async ({ sandboxes }: SandboxScene, id: SandboxId) => (await sandboxes.use(ACCOUNT, id, NEVER))[Symbol.dispose](),
    async ({ machines }: SandboxScene, id: SandboxId) => {
      if (random.below(3) === 0) machines.get(rowOf(scene, id).operationId as never)?.die();
    },
  ];
  const refusals = new Map<string, number>();
  const thread = async (): Promise<void> => {
    for (let round = 0; round < 60; round++) {
      await turns(random.below(30));
      try {
        await pick(requests)(scene, pick(ids));
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        refusals.set(error.code, (refusals.get(error.code) ?? 0) + 1);
      }
    }
  };
  await Promise.all(Array.from({ length: 8 }, thread));
  expect([...refusals.keys()].filter((code) => code !== "conflict" && code !== "not_found")).toEqual([]);
  for (const id of ids) await scene.sandboxes.end(ACCOUNT, id, { keep: false });
  await scene.operations.idle();
  await scene.lives[Symbol.asyncDispose]();
  for (const id of ids) {
    const steps = await scene.story(id);
    expect(steps.length).toBeGreaterThan(10);
    expect(impossibleSteps(steps)).toEqual([]);
    expect(steps.at(-1)?.to).toBe("ended");
  }
});
