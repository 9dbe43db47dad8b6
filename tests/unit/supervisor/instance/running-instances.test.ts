import { expect, test } from "bun:test";
import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { CgroupGoneError } from "../../../../src/cgroup/stats.ts";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import type { LayerId, OperationId } from "../../../../src/domain/ids.ts";
import { NO_DEFAULTS } from "../../../../src/domain/image-defaults.ts";
import type { InstanceStats } from "../../../../src/domain/instance.ts";
import { silentLog } from "../../../../src/log.ts";
import { EventFile } from "../../../../src/storage/events/event-file.ts";
import { type EventLog, EventLogs } from "../../../../src/storage/events/event-logs.ts";
import { IndexMemory } from "../../../../src/storage/index/index-memory.ts";
import { LayerStore } from "../../../../src/storage/layers/layer-store.ts";
import { dataLayout } from "../../../../src/storage/layout.ts";
import { execute } from "../../../../src/supervisor/instance/execute.ts";
import type { RunningInstance } from "../../../../src/supervisor/instance/running-instance.ts";
import { RunningInstances } from "../../../../src/supervisor/instance/running-instances.ts";
import { TimeLimit } from "../../../../src/supervisor/instance/time-limit.ts";
import type { ScratchDisks } from "../../../../src/supervisor/machines/scratch-disks.ts";
import { Laps } from "../../../../src/supervisor/operations/laps.ts";
import { wallClock } from "../../../../src/system/wall-clock.ts";
import { Pool } from "../../../../src/vm/pool.ts";
import { TemplateStore } from "../../../../src/vm/templates.ts";
import { allEvents } from "../../../support/events.ts";
import { failureOf } from "../../../support/failures.ts";
import { FakeVmm } from "../../../support/guests/fake-vmm.ts";
import { testDirectory } from "../../../support/images/layer-files.ts";
import { quietNetwork } from "../../../support/instance-network.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as OperationId;
const SHAPE = { vcpus: 1, memoryBytes: 256 * 1_048_576 };
const never = new AbortController().signal;

const parts = { limit: new TimeLimit(1000), hostname: "box", events: {} as EventLog, network: quietNetwork() };

/** An instance that uses `memoryBytes` until its machine is lost. */
function fake(memoryBytes: number, hasBegun = false) {
  let isLost = false;
  const stats = async () => {
    if (isLost) throw new CgroupGoneError("gone");
    return { cpuTimeMs: 5, memoryBytes, memoryPeakBytes: memoryBytes, cacheBytes: 0, pids: 1 };
  };
  const lose = () => {
    isLost = true;
  };
  return { instance: { stats, hasBegun, listen: () => undefined } as unknown as RunningInstance, lose };
}

const follow = (instances: RunningInstances, signal = never): AsyncIterator<InstanceStats> => {
  const samples = instances.stats(ID, signal);
  if (samples === null) throw new Error("there is no instance");
  return samples[Symbol.asyncIterator]();
};

test("figures continue when a lost machine is replaced before the command begins", async () => {
  const instances = new RunningInstances();
  expect([instances.find(ID), instances.stats(ID, never)]).toEqual([null, null]);
  const run = instances.open(ID, parts);
  expect(instances.stats(ID, never)).toBeNull();
  const first = fake(1);
  const entered = run.enter(first.instance);
  expect(instances.find(ID)).toBe(first.instance);
  const samples = follow(instances);
  expect((await samples.next()).value).toMatchObject({ memoryBytes: 1 });
  first.lose();
  entered[Symbol.dispose]();
  expect(instances.find(ID)).toBeNull();
  const late = follow(instances);
  const [after, lateAfter] = [samples.next(), late.next()];
  const second = fake(2);
  using _second = run.enter(second.instance);
  expect((await after).value).toMatchObject({ memoryBytes: 2, cpuPercent: 0 });
  expect((await lateAfter).value).toMatchObject({ memoryBytes: 2 });
  expect(instances.find(ID)).toBe(second.instance);
  second.lose();
  const over = samples.next();
  run[Symbol.dispose]();
  expect((await over).done).toBe(true);
  expect(instances.stats(ID, never)).toBeNull();
});

test("figures end with the machine once the command has begun, and when the reader leaves", async () => {
  const instances = new RunningInstances();
  using run = instances.open(ID, parts);
  const lost = fake(1);
  using _lost = run.enter(lost.instance);
  const left = new AbortController();
  const leaving = follow(instances, left.signal);
  await leaving.next();
  lost.lose();
  const waiting = leaving.next();
  left.abort();
  expect((await waiting).done).toBe(true);
  const begun = fake(2, true);
  using _begun = run.enter(begun.instance);
  begun.lose();
  expect((await follow(instances).next()).done).toBe(true);
});

test("an instance registers its machine, and the replacement of a lost one", async () => {
  const directory = testDirectory("running-instances");
  using _directory = { [Symbol.dispose]: () => rmSync(directory, { recursive: true }) };
  const layout = dataLayout(directory);
  for (const path of [layout.tmp, layout.events]) mkdirSync(path, { recursive: true });
  const vmm = new FakeVmm();
  await using templates = new TemplateStore({ vmm, log: silentLog });
  await using pool = new Pool({ vmm, templates, shape: SHAPE, size: 0, log: silentLog });
  const take = pool.take.bind(pool);
  const machines = { take, takeUnpooled: take, launcher: async () => "/launch" };
  const instances = new RunningInstances();
  const looks: AsyncIterator<InstanceStats>[] = [];
  const memory: unknown[] = [];
  const scratchDisks = {
    create: async () => {
      // The first look lasts over both machines.
      looks.push(follow(instances));
      memory.push((await looks[0]?.next())?.value?.memoryBytes);
    },
  } as unknown as ScratchDisks;
  vmm.killedAt.push("attach");
  const submission = {
    ...{ imageId: "i", argv: ["true"], env: {}, cwd: "/", timeoutSeconds: 1, files: [], truncateOutputAtBytes: 1 },
    ...{ uid: 0, gid: 0, stdinOpen: false, terminal: null },
    ...{ stdin: null, hostname: null, disposable: true, resources: { ...SHAPE, diskBytes: 1 } },
  } as unknown as Parameters<typeof execute>[1]["submission"];
  using layers = new LayerStore({ layout, chainOf: () => ["a" as LayerId] });
  using image = layers.open("a" as LayerId);
  const tools = { layout, layers, machines, scratchDisks, instances, log: silentLog, laps: new Laps() };
  using events = new EventLogs(layout, new Accounts(), wallClock()).open(ID);
  const more = {
    diskUse: { add: () => undefined },
    indexMemory: new IndexMemory(),
    events,
    network: quietNetwork(),
    uninvited: () => undefined,
  };
  const job = { operationId: ID, submission, image, parentIndex: "/index", defaults: NO_DEFAULTS };
  // The second machine refuses to mount.
  expect(await failureOf(execute({ ...tools, ...more }, job, never))).toMatchObject({ details: { errno: 22 } });
  expect(memory).toHaveLength(2);
  expect(memory[0]).not.toBe(memory[1]);
  expect((await looks[0]?.next())?.done).toBe(true);
  await events.end();
  using file = EventFile.open(events.path);
  const logged = file === null ? [] : await Array.fromAsync(allEvents(file));
  expect(logged.map(({ spid, type }) => [spid, type])).toEqual([
    [0, "init"],
    [0, "shutdown"],
    [0, "init"],
    [0, "shutdown"],
  ]);
  expect([instances.find(ID), instances.stats(ID, never), vmm.live.size]).toEqual([null, null, 0]);
});

test("the usage of an instance has the space of its scratch, and is none once its machine is gone", async () => {
  const directory = testDirectory("usage");
  using _directory = { [Symbol.dispose]: () => rmSync(directory, { recursive: true }) };
  const path = join(directory, "scratch");
  await Bun.write(path, Buffer.alloc(10_000, 1));
  const instances = new RunningInstances();
  expect(await instances.usage(ID)).toBeNull();
  using run = instances.open(ID, parts);
  const { instance, lose } = fake(7);
  using _entered = run.enter(instance);
  expect(await instances.usage(ID)).toMatchObject({ cpuTimeMs: 5, memoryBytes: 7, diskBytes: 0 });
  Object.assign(instance, { disks: { scratch: { path } } });
  expect((await instances.usage(ID))?.diskBytes).toBeGreaterThanOrEqual(10_000);
  lose();
  expect(await instances.usage(ID)).toBeNull();
});
