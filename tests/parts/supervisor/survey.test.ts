/** Which machines of a former process are continued: records of a launcher with a script in place of its monitor. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Cgroup, type CgroupTree, openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { getImage } from "../../../src/db/images/images.ts";
import { insertOperation, requestCancel, startOperation } from "../../../src/db/operations.ts";
import type { AccountId, ImageId, LayerId, OperationId } from "../../../src/domain/ids.ts";
import { silentLog } from "../../../src/log.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { hostBootId, type InstanceRecord } from "../../../src/supervisor/survivors/instance-record.ts";
import { writeRecordFile } from "../../../src/supervisor/survivors/record-file.ts";
import { type Survey, survey } from "../../../src/supervisor/survivors/survey.ts";
import { recordProblem } from "../../../src/vm/jail/existing-vmm.ts";
import { homePaths } from "../../../src/vm/jail/jailed-vmm.ts";
import { processIdentity } from "../../../src/vm/jail/processes.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { HeldRoots } from "../../../src/vm/jail/vmm-roots.ts";
import { machineMemoryBytes } from "../../../src/vm/machine-memory.ts";
import type { MachineRecord } from "../../../src/vm/vmm.ts";
import { childOf, launchScript } from "../../support/guests/busybox-jail.ts";
import { UID_BASE } from "../../support/guests/vm.ts";
import { type OperationsStore, operationsStore } from "../../support/operations.ts";
import { instanceRecord } from "../../support/survivors/record.ts";
import { until } from "../../support/waiting.ts";

const ACCOUNT = "alice" as AccountId;
const IMAGE = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as ImageId;
const SHAPE = { vcpus: 1, memoryBytes: 67_108_864 };
const UID = UID_BASE + 5000;

const owned = new AsyncDisposableStack();
let store: OperationsStore;
let layers: LayerStore;
let cgroups: CgroupTree;
let uids: UidPool;
let heldRoots: HeldRoots;
let directory: string;
afterAll(() => owned.disposeAsync());

beforeAll(async () => {
  directory = await mkdtemp("/tmp/coppice-survey-");
  owned.defer(() => rm(directory, { recursive: true, force: true }));
  cgroups = owned.use(await openCgroupTree({ namespace: `coppice-test-${process.pid}-survey` }));
  store = owned.use(await operationsStore(ACCOUNT, IMAGE));
  owned.use(store.db);
  layers = owned.use(new LayerStore({ layout: store.layout, chainOf: () => [] }));
});

/** A machine with everything that its record names. */
class LeftMachine {
  readonly record: InstanceRecord;
  readonly home: string;
  readonly cgroup: Cgroup;

  private constructor(record: InstanceRecord, home: string, cgroup: Cgroup) {
    this.record = record;
    this.home = home;
    this.cgroup = cgroup;
  }

  /** Starts the operation, its processes and its files; `stack` ends them. */
  static async start(stack: AsyncDisposableStack, kind: "instance" | "sandbox" = "instance"): Promise<LeftMachine> {
    const { db, layout } = store;
    const id = Bun.randomUUIDv7();
    const operationId = addOperation(kind);
    const cgroup = stack.use(await cgroups.create(id, { memoryBytes: machineMemoryBytes(SHAPE) }));
    const launched = await launchScript(stack, directory, "sleep 60", cgroup);
    await until("the program runs", () => childOf(launched.pid) !== null);
    const identity = (pid: number) => processIdentity(pid) ?? { pid, startTicks: 0 };
    const [launcher, monitor] = [identity(launched.pid), identity(childOf(launched.pid) ?? 0)];
    const home = join(layout.vms, id);
    stack.defer(() => rm(home, { recursive: true, force: true }));
    const { directory: own, sockets } = homePaths(home);
    for (const path of [own, sockets]) await mkdir(path, { recursive: true });
    await writeFile(join(own, "S"), "");
    const layer = getImage(db, ACCOUNT, IMAGE)?.layerId as LayerId;
    for (const suffix of ["disk", "index"]) await writeFile(join(layout.layers, `${layer}.${suffix}`), "");
    const base = instanceRecord();
    const machine = { ...base.machine, id, uid: UID, shape: SHAPE, launcher, monitor, root: directory };
    const about = { operationId, kind, accountId: ACCOUNT, imageId: IMAGE, layers: [layer] };
    const left = new LeftMachine({ ...base, ...about, bootId: hostBootId(), machine }, home, cgroup);
    await until("it has its user", async () => (await recordProblem(machine, cgroup)) === null);
    left.write();
    return left;
  }

  write(change: Partial<InstanceRecord> = {}): void {
    writeRecordFile(homePaths(this.home).record, JSON.stringify({ ...this.record, ...change }));
  }

  writeMachine(change: Partial<MachineRecord>): void {
    this.write({ machine: { ...this.record.machine, ...change } });
  }
}

function addOperation(kind: "instance" | "sandbox" | "image_import", account = ACCOUNT): OperationId {
  const { db } = store;
  const id = Bun.randomUUIDv7() as OperationId;
  const request = { body: {}, resources: { ...SHAPE, diskBytes: 1 } };
  insertOperation(db, { id, accountId: account, kind, request, hadCredentials: false, now: 1 });
  startOperation(db, id, 1);
  return id;
}

async function surveyed(change: { readonly uids?: UidPool } = {}): Promise<Survey> {
  const assets = async () => ({ memoryCopier: "" });
  const options = { ...store, layers, cgroups, heldRoots, uids, assets, log: silentLog, ...change };
  return await survey(options);
}

beforeEach(() => {
  uids = new UidPool(UID_BASE, 10_000);
  heldRoots = new HeldRoots();
});

describe("a machine of which all is as recorded", () => {
  test("survives with its user, its root and its layers, and ends with its survivor", async () => {
    await using stack = new AsyncDisposableStack();
    const { record, home, cgroup } = await LeftMachine.start(stack);
    const { survivors, problems, unbegun, machines } = await surveyed();
    expect([problems.size, unbegun.has(record.operationId)]).toEqual([0, false]);
    expect([...machines]).toEqual([record.machine.id]);
    const survivor = survivors.get(record.operationId);
    expect(survivor?.record).toEqual(record);
    expect(heldRoots.has(directory)).toBe(true);
    expect(() => uids.reserve(UID)).toThrow("is taken");

    await survivor?.[Symbol.asyncDispose]();
    expect([existsSync(home), await cgroup.pids(), heldRoots.has(directory)]).toEqual([false, [], false]);
    await uids.reserve(UID)[Symbol.asyncDispose]();
  });
});

describe("a machine is not continued, with the reason, when", () => {
  const stack = owned;
  let left: LeftMachine;
  beforeAll(async () => {
    left = await LeftMachine.start(stack);
  });
  beforeEach(() => left.write());

  async function problem(change: Parameters<typeof surveyed>[0] = {}): Promise<string | undefined> {
    const { survivors, problems, machines } = await surveyed(change);
    expect([survivors.size, machines.size]).toEqual([0, 0]);
    // Nothing was ended or taken: that is the sweep's, once all are known.
    expect(await left.cgroup.pids()).toHaveLength(2);
    expect(heldRoots.has(directory)).toBe(false);
    await uids.reserve(UID)[Symbol.asyncDispose]();
    return problems.get(left.record.operationId);
  }

  test("its record was written by another process: it cannot be read", async () => {
    await chmod(homePaths(left.home).record, 0o644);
    expect(await problem()).toBeUndefined();
    await rm(homePaths(left.home).record);
    await symlink("/dev/null", homePaths(left.home).record);
    expect(await problem()).toBeUndefined();
  });

  test("its record is damaged, of another boot, or of another machine", async () => {
    left.write({ layers: [] });
    expect(await problem()).toBe("the record of its machine cannot be read");
    left.write({ bootId: "other" });
    expect(await problem()).toBe("its machine is of another boot of the host");
    left.writeMachine({ id: Bun.randomUUIDv7() });
    expect(await problem()).toBe("the record is of another machine");
  });

  test("its operation is not the one of the record", async () => {
    left.write({ accountId: "bob" as AccountId });
    expect(await problem()).toBe("the record is of another operation");
    left.write({ kind: "sandbox" });
    expect(await problem()).toBe("the record is of another operation");
    for (const kind of ["image_import", "instance"] as const) {
      const operationId = addOperation(kind, "bob" as AccountId);
      left.write({ operationId });
      const { problems } = await surveyed();
      expect(problems.get(operationId)).toBe("the record is of another operation");
    }
    const operationId = Bun.randomUUIDv7() as OperationId;
    left.write({ operationId });
    expect((await surveyed()).problems.get(operationId)).toBe("its operation is not running");
  });

  test("it is of a sandbox that was not running", async () => {
    const operationId = addOperation("sandbox");
    left.write({ operationId, kind: "sandbox" });
    expect((await surveyed()).problems.get(operationId)).toBe("its sandbox was not running");
  });

  test("its processes are others than recorded", async () => {
    const { launcher, monitor } = left.record.machine;
    left.writeMachine({ launcher: { ...launcher, startTicks: launcher.startTicks + 1 } });
    expect(await problem()).toBe("the machine's launcher has ended");
    left.writeMachine({ monitor: { ...monitor, pid: process.pid } });
    expect(await problem()).toBe("the machine's monitor has ended");
    left.writeMachine({ uid: UID + 1 });
    expect(await problem()).toBe("the machine's launcher has another user");
    left.writeMachine({ launcher: monitor });
    expect(await problem()).toBe("the machine's control group has other processes than recorded");
    left.writeMachine({ root: "/nowhere" });
    expect(await problem()).toBe("the root directory of the machine's monitor is gone");
  });

  test("its launcher has reported its end meanwhile", async () => {
    const { report } = homePaths(left.home);
    await writeFile(report, JSON.stringify({ status: 3, signal: null, stderr: "no memory\n" }));
    const { launcher } = left.record.machine;
    left.writeMachine({ launcher: { ...launcher, startTicks: launcher.startTicks + 1 } });
    expect(await problem()).toBe(
      "its machine ended while no service ran: the virtual machine monitor ended with exit code 3: no memory",
    );
    await rm(report);
  });

  test("its limit of memory is not that of its shape", async () => {
    if (cgroups.missing.includes("memory")) return;
    for (const memoryBytes of [SHAPE.memoryBytes / 2, SHAPE.memoryBytes * 2]) {
      left.writeMachine({ shape: { ...SHAPE, memoryBytes } });
      expect(await problem()).toBe("its machine has another limit of memory than its shape");
    }
  });

  test("a file of it is gone, or a layer, or its image", async () => {
    const { directory: own, sockets } = homePaths(left.home);
    await rm(join(own, "S"));
    expect(await problem()).toBe("a file of its machine is gone");
    await writeFile(join(own, "S"), "");
    await rm(sockets, { recursive: true });
    expect(await problem()).toBe("a file of its machine is gone");
    await mkdir(sockets);
    left.write({ layers: [...left.record.layers, Bun.randomUUIDv7() as LayerId] });
    expect(await problem()).toBe("a layer of its image is gone");
    left.write({ imageId: Bun.randomUUIDv7() as ImageId });
    expect(await problem()).toBe("its image is gone");
  });

  test("its user is of another range, or of another machine", async () => {
    expect(await problem({ uids: new UidPool(UID + 1, 10) })).toBe("the user of its machine is not free");
    const others = new UidPool(UID_BASE, 10_000);
    others.reserve(UID);
    expect(await problem({ uids: others })).toBe("the user of its machine is not free");
  });

  test("it was cancelled", async () => {
    requestCancel(store.db, ACCOUNT, left.record.operationId, 1);
    expect(await problem()).toBe("it was cancelled");
  });
});

test("of two machines of an operation, the later one continues; other entries are ignored", async () => {
  await using stack = new AsyncDisposableStack();
  const older = await LeftMachine.start(stack);
  const { operationId } = older.record;
  const later = await LeftMachine.start(stack);
  later.write({ operationId });
  await writeFile(join(store.layout.vms, "file"), "");
  await mkdir(join(store.layout.vms, "directory"));
  const { survivors, machines } = await surveyed();
  expect([...machines]).toEqual([later.record.machine.id]);
  await survivors.get(operationId)?.[Symbol.asyncDispose]();
  expect(await older.cgroup.pids()).toHaveLength(2);
});

test("an operation without a machine begins again when its command has not begun", async () => {
  const [instance, sandbox, image] = [addOperation("instance"), addOperation("sandbox"), addOperation("image_import")];
  const { unbegun, survivors, problems } = await surveyed();
  expect([instance, sandbox, image].map((id) => unbegun.has(id))).toEqual([true, false, false]);
  expect([survivors.size, problems.has(instance)]).toEqual([0, false]);
});
