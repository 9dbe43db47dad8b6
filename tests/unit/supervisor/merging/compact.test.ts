import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync } from "node:fs";
import { layerChain } from "../../../../src/db/images/layers.ts";
import { deleteImage, deleteUnreferencedLayers } from "../../../../src/db/removal.ts";
import { images } from "../../../../src/db/schema.ts";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import type { LayerId } from "../../../../src/domain/ids.ts";
import { layerPath } from "../../../../src/storage/layers/layers.ts";
import { costOf } from "../../../../src/supervisor/operations/scheduler.ts";
import { alice, bob } from "../../../support/database.ts";
import { throwing } from "../../../support/failures.ts";
import { type FakeMerge, LAYER_BYTES, Merging, SHAPE } from "../../../support/images/merging.ts";
import { pause, until } from "../../../support/waiting.ts";

// Every test waits several times for the next check of the compactor.
setDefaultTimeout(60_000);

const COST = costOf(SHAPE);
const never = new AbortController().signal;
/** Longer than the interval between checks of the compactor, in `milliseconds`. */
const A_WHILE_MS = 400;

async function started(merging: Merging, count: number): Promise<FakeMerge> {
  await until(`merge ${count} has begun`, () => merging.merges.length >= count);
  return merging.merges[count - 1] as FakeMerge;
}

async function failed(merging: Merging, count: number): Promise<void> {
  const labels = { urgency: "idle", outcome: "failed" };
  await until(`merge ${count} has failed`, async () => {
    return (await merging.value("coppice_layer_merges_total", labels)) === count;
  });
}

/** Waits until all merges that the compactor may do now have begun. */
async function noMoreThan(merging: Merging, count: number): Promise<void> {
  await pause("the compactor looks again", A_WHILE_MS);
  expect(merging.merges.length).toBe(count);
}

/** Holds the whole budget, with more work that waits. */
async function keepBusy(merging: Merging): Promise<void> {
  const { vcpus } = merging.scheduler.budget;
  for (let at = 0; at < vcpus; at++) await merging.scheduler.admit(bob, { vcpus: 1, memoryBytes: 0 }, never);
  void merging.scheduler.admit(bob, { vcpus: 1, memoryBytes: 0 }, never);
}

function idsOf(merging: Merging, topId: LayerId): LayerId[] {
  return layerChain(merging.db, topId).map(({ id }) => id);
}

/** Accounts whose merged layers may have at most this share. */
const sharing = (max: number) => new Accounts({ mergedLayers: { max } });

describe("the time at which a chain is merged", () => {
  test("three disks are merged after a second without runs, and the merged layer is attached", async () => {
    await using merging = await Merging.start();
    const top = merging.chain(3);
    const ids = idsOf(merging, top);
    expect(await merging.use(top)).toEqual(ids);
    await noMoreThan(merging, 0);
    merging.now += 2000;
    const merge = await started(merging, 1);
    expect(merge.job.layers.ids).toEqual(ids.slice(1));
    expect(merge.weights).toEqual([5]);
    merge.finish();
    await until("it is published", () => merging.rows().length === 1);
    expect(await merging.use(top)).toEqual([ids[0] as LayerId, merging.rows()[0]?.id as LayerId]);
    expect(merging.rows()[0]).toMatchObject({ belowId: ids[0] as LayerId, topId: top });
    merging.now += 2000;
    await noMoreThan(merging, 1);
    expect(await merging.value("coppice_layer_merges_total", { urgency: "idle", outcome: "merged" })).toBe(1);
    expect(await merging.value("coppice_layer_merge_duration_seconds_count", { urgency: "idle" })).toBe(1);
  });

  test("eight disks are merged while runs leave room; fewer are not", async () => {
    await using merging = await Merging.start();
    using _run = await merging.scheduler.admit(bob, COST, never);
    const seven = merging.chain(7);
    await merging.use(seven);
    merging.now += 60_000;
    await noMoreThan(merging, 0);
    await merging.use(merging.chain(1, seven));
    expect((await started(merging, 1)).job.layers.ids.length).toBe(8);
  });

  test("a chain is forgotten in favour of a longer one, and the latest chain is merged first", async () => {
    await using merging = await Merging.start();
    using run = await merging.scheduler.admit(bob, COST, never);
    const first = merging.chain(4);
    await merging.use(first);
    const further = merging.chain(1, first);
    await merging.use(further);
    expect(merging.compactor.waitingCount).toBe(1);
    const second = merging.chain(3);
    await merging.use(second);
    expect(merging.compactor.waitingCount).toBe(2);
    run[Symbol.dispose]();
    merging.now += 2000;
    const latest = await started(merging, 1);
    expect(latest.job.layers.ids).toEqual(idsOf(merging, second).slice(1));
    latest.finish();
    expect((await started(merging, 2)).job.layers.ids).toEqual(idsOf(merging, further).slice(1));
  });

  test("the oldest of many chains is forgotten, and remembered when it is used again", async () => {
    await using merging = await Merging.start();
    using run = await merging.scheduler.admit(bob, COST, never);
    const chains = Array.from({ length: 66 }, () => merging.chain(3));
    for (const top of chains) await merging.use(top);
    expect(merging.compactor.waitingCount).toBe(64);
    await merging.use(chains[0] as LayerId);
    expect(merging.compactor.waitingCount).toBe(64);
    run[Symbol.dispose]();
    merging.now += 2000;
    expect((await started(merging, 1)).job.layers.ids.at(-1)).toBe(chains[0]);
  });

  test("a merge yields its place to a run, and is repeated later", async () => {
    await using merging = await Merging.start(1);
    const top = merging.chain(9);
    await merging.use(top);
    const merge = await started(merging, 1);
    const run = await merging.scheduler.admit(bob, COST, never);
    await until("the merge ends", () => merge.signal.aborted);
    await noMoreThan(merging, 1);
    run[Symbol.dispose]();
    (await started(merging, 2)).finish();
    await until("it is published", () => merging.rows().length === 1);
    expect(await merging.value("coppice_layer_merges_total", { urgency: "idle", outcome: "made_way" })).toBe(1);
    expect(await merging.value("coppice_layer_merges_total", { urgency: "idle", outcome: "merged" })).toBe(1);
  });
});

describe("on a host that is never idle", () => {
  test("a chain of 24 disks is merged while instances run, whose processors it shares", async () => {
    await using merging = await Merging.start(2);
    await keepBusy(merging);
    const short = merging.chain(22);
    await merging.use(short);
    await noMoreThan(merging, 0);
    const top = merging.chain(1, short);
    await merging.use(top);
    const merge = await started(merging, 1);
    expect(merge.job.layers.ids).toEqual(idsOf(merging, top).slice(1));
    // Its memory is counted, and it is not asked to stop.
    expect(merging.scheduler.used.memoryBytes).toBe(COST.memoryBytes);
    expect(merging.scheduler.waitingCount(bob)).toBe(1);
    expect(merge.signal.aborted).toBe(false);
    expect(merge.weights).toEqual([50]);
    let tip = top;
    for (let at = 0; at < 16; at++) {
      tip = merging.chain(1, tip);
      await merging.use(tip);
    }
    expect(merge.weights.at(-1)).toBe(100);
    expect(merge.weights).toEqual(merge.weights.toSorted((a, b) => a - b));
    merge.finish();
    await until("it is published", () => merging.rows().length === 1);
    await until("its place is free", () => merging.scheduler.used.memoryBytes === 0);
    expect((await merging.use(tip)).length).toBe(18);
    expect(await merging.value("coppice_layer_merges_total", { urgency: "urgent", outcome: "merged" })).toBe(1);
  });

  test("a merge waits for scarce memory in turn, like an account without other work", async () => {
    await using merging = await Merging.start(1);
    const run = await merging.scheduler.admit(bob, COST, never);
    const order: string[] = [];
    for (let at = 0; at < 2; at++) void merging.scheduler.admit(bob, COST, never).then(() => order.push("run"));
    await merging.use(merging.chain(30));
    await noMoreThan(merging, 0);
    run[Symbol.dispose]();
    const merge = await started(merging, 1);
    expect(order).toEqual([]);
    merge.finish();
    await until("the run continues", () => order.length === 1);
  });

  test("the longest chain is merged first", async () => {
    await using merging = await Merging.start(2);
    using _held = await merging.scheduler.admit(bob, merging.scheduler.budget, never);
    const chains = [26, 40, 33].map((count) => merging.chain(count));
    for (const top of chains) await merging.use(top);
    merging.scheduler.admit(bob, COST, never).catch(() => undefined);
    _held[Symbol.dispose]();
    const counts: number[] = [];
    for (let at = 1; at <= 3; at++) {
      const merge = await started(merging, at);
      counts.push(merge.job.layers.ids.length);
      merge.finish();
    }
    expect(counts).toEqual([40, 33, 26]);
  });

  test("a chain that grows during each merge keeps few disks, and no run waits", async () => {
    await using merging = await Merging.start(2);
    await keepBusy(merging);
    let tip = merging.chain(0);
    let longest = 0;
    let finishedCount = 0;
    let leftCount = 0;
    for (let run = 0; run < 200; run++) {
      tip = merging.chain(1, tip);
      const { length } = await merging.use(tip);
      longest = Math.max(longest, length);
      if (leftCount === 0 && length >= 24) {
        await started(merging, finishedCount + 1);
        // A merge takes as long as 15 runs.
        leftCount = 15;
      } else if (leftCount > 0 && --leftCount === 0) {
        finishedCount++;
        merging.merges.at(-1)?.finish();
        const urgent = { urgency: "urgent", outcome: "merged" };
        const mergedCount = () => merging.value("coppice_layer_merges_total", urgent);
        await until("it is published", async () => (await mergedCount()) === finishedCount);
      }
    }
    expect(merging.merges.length).toBeGreaterThan(5);
    expect(longest).toBeLessThanOrEqual(48);
    expect(await merging.value("coppice_layer_merges_total", { urgency: "forced", outcome: "merged" })).toBeUndefined();
  });
});

describe("the space of merged layers", () => {
  test("no layer is merged when the share is 0, or beyond the share", async () => {
    await using none = await Merging.start(2, { accounts: sharing(0) });
    await none.use(none.chain(30));
    expect(none.compactor.waitingCount).toBe(0);
    // 30 layers and their base: a share of a quarter has room for 7 of them.
    await using some = await Merging.start(2, { accounts: sharing(0.25) });
    await some.use(some.chain(30));
    some.now += 2000;
    expect((await started(some, 1)).job.layers.ids.length).toBe(7);
  });

  test("a layer that a larger one contains is removed first, once it is not held", async () => {
    await using merging = await Merging.start(2);
    await keepBusy(merging);
    const older = merging.chain(23);
    await merging.use(older);
    (await started(merging, 1)).finish();
    await until("it is published", () => merging.rows().length === 1);
    const [first] = merging.rows();
    const { id } = first as { id: LayerId };
    const top = merging.chain(23, older);
    using held = await merging.compactor.attach(alice, top, never);
    expect(held.ids).toContain(id);
    (await started(merging, 2)).finish(47 * LAYER_BYTES);
    await until("it is published", () => merging.rows().length === 2);
    // Together they are beyond the share; the first is in use.
    await pause("the compactor looks again", A_WHILE_MS);
    expect(merging.rows().length).toBe(2);
    held[Symbol.dispose]();
    merging.now += 10_000;
    await until("the first is gone", () => merging.rows().length === 1);
    expect(merging.rows()[0]?.id).not.toBe(id);
    await until("its file is gone", () => !existsSync(layerPath(merging.layout, id)));
    expect((await merging.use(top)).length).toBe(2);
  });

  test("layers beyond a share that was reduced are removed after the start", async () => {
    await using merging = await Merging.start();
    const top = merging.chain(3);
    await merging.use(top);
    merging.now += 2000;
    (await started(merging, 1)).finish();
    await until("it is published", () => merging.rows().length === 1);
    await merging.compactor[Symbol.asyncDispose]();
    merging.compactor = merging.open({ accounts: sharing(0.1) });
    merging.compactor.start();
    await until("it is gone", () => {
      merging.now += 1000;
      return merging.rows().length === 0;
    });
    expect((await merging.use(top)).length).toBe(4);
  });
});

describe("merges without a result", () => {
  test("a failed merge is retried after a pause that doubles, and the layers above it are merged meanwhile", async () => {
    await using merging = await Merging.start();
    const bad = merging.chain(3);
    await merging.use(bad);
    merging.now += 2000;
    (await started(merging, 1)).fail();
    await failed(merging, 1);
    await merging.use(bad);
    merging.now += 2000;
    await noMoreThan(merging, 1);
    const top = merging.chain(3, bad);
    await merging.use(top);
    merging.now += 2000;
    const above = await started(merging, 2);
    expect(above.job.layers.ids).toEqual(idsOf(merging, top).slice(4));
    above.finish();
    await until("it is published", () => merging.rows().length === 1);
    // A minute later it is tried again, now together with the layers above it; that counts as the same merge.
    merging.now += 60_000;
    await merging.use(top);
    merging.now += 2000;
    const again = await started(merging, 3);
    expect(again.job.layers.ids.length).toBe(4);
    again.fail();
    await failed(merging, 2);
    merging.now += 90_000;
    await merging.use(top);
    await noMoreThan(merging, 3);
    merging.now += 31_000;
    await merging.use(top);
    await started(merging, 4);
  });

  test("a new process retries a failed merge once", async () => {
    await using merging = await Merging.start();
    const top = merging.chain(3);
    for (const count of [1, 2]) {
      await merging.use(top);
      merging.now += 2000;
      (await started(merging, count)).fail();
      await failed(merging, count);
      await merging.use(top);
      merging.now += 2000;
      await noMoreThan(merging, count);
      await merging.compactor[Symbol.asyncDispose]();
      merging.compactor = merging.open();
      merging.compactor.start();
    }
  });

  test("the result is discarded when the image was deleted during the merge", async () => {
    await using merging = await Merging.start();
    const top = merging.chain(3);
    await merging.use(top);
    merging.now += 2000;
    const merge = await started(merging, 1);
    const [image] = merging.db.orm.select({ id: images.id }).from(images).all();
    if (image === undefined) throw new Error("no image");
    expect(deleteImage(merging.db, alice, image.id)).toEqual({ deleted: top });
    merging.db.transaction((tx) => deleteUnreferencedLayers(tx, [top], () => false).layers);
    merge.finish();
    await until("it is given up", () => merge.isDiscarded);
    expect(merging.rows()).toEqual([]);
    await noMoreThan(merging, 1);
    expect(merging.compactor.waitingCount).toBe(0);
    expect(await merging.value("coppice_layer_merges_total", { urgency: "idle", outcome: "not_needed" })).toBe(1);
  });

  test("disposal ends the merge that runs and the one that waits for a place", async () => {
    await using merging = await Merging.start(1);
    await merging.use(merging.chain(9));
    const merge = await started(merging, 1);
    await merging.compactor[Symbol.asyncDispose]();
    expect(merge.signal.aborted).toBe(true);
    merging.compactor = merging.open();
    merging.compactor.start();
    await keepBusy(merging);
    await merging.use(merging.chain(9));
    await noMoreThan(merging, 1);
    await merging.compactor[Symbol.asyncDispose]();
    expect(merging.merges.length).toBe(1);
  });
});

describe("a chain with more disks than a machine can have", () => {
  test("is merged before the run, once for all runs that wait, and a smaller part of it after a failure", async () => {
    await using merging = await Merging.start(2, { accounts: sharing(0) });
    const top = merging.chain(130);
    const both = [merging.use(top), merging.use(top)];
    const merge = await started(merging, 1);
    expect(merge.job.layers.ids.length).toBe(64);
    expect(merge.weights).toEqual([]);
    merge.finish();
    const [first, second] = await Promise.all(both);
    expect(first?.length).toBe(68);
    expect(second).toEqual(first as LayerId[]);
    expect(merging.merges.length).toBe(1);
    expect(await merging.value("coppice_layer_merges_total", { urgency: "forced", outcome: "merged" })).toBe(1);
  });

  test("fails the run when the merge fails; a cancelled run does not wait for it", async () => {
    await using merging = await Merging.start(2, { accounts: sharing(0) });
    const top = merging.chain(130);
    const cancelled = new AbortController();
    const run = merging.use(top);
    const waiting = merging.compactor.attach(alice, top, cancelled.signal);
    const merge = await started(merging, 1);
    cancelled.abort(new Error("cancelled"));
    expect(await throwing(waiting)).toThrow("cancelled");
    merge.fail();
    expect(await throwing(run)).toThrow("the merge failed");
    await run.catch(() => undefined);
  });
});
