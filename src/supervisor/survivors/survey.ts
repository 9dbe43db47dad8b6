import { readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import type { CgroupTree } from "../../cgroup/cgroup.ts";
import type { Database } from "../../db/database.ts";
import { getImage } from "../../db/images/images.ts";
import { executingOperations, type OperationRow } from "../../db/operations.ts";
import { memoryImageOf } from "../../db/sandboxes/memory-images.ts";
import { sandboxesIn } from "../../db/sandboxes/rows.ts";
import type { OperationId } from "../../domain/ids.ts";
import { Spid } from "../../domain/log-event.ts";
import type { Log } from "../../log.ts";
import { eventLogPath } from "../../storage/events/event-file.ts";
import type { LogSummary } from "../../storage/events/log-summary.ts";
import { hasStart } from "../../storage/events/reopen.ts";
import type { LayerStore } from "../../storage/layers/layer-store.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { openCloudHypervisorMachine } from "../../vm/cloud-hypervisor/existing.ts";
import { recordProblem, unwatchedExit } from "../../vm/jail/existing-vmm.ts";
import { homePaths } from "../../vm/jail/jailed-vmm.ts";
import type { UidLease, UidPool } from "../../vm/jail/uid-pool.ts";
import type { HeldRoots } from "../../vm/jail/vmm-roots.ts";
import { machineMemoryBytes } from "../../vm/machine-memory.ts";
import { openQemuMachine } from "../../vm/qemu/existing.ts";
import type { Machine } from "../../vm/vmm.ts";
import { SCRATCH_SERIAL } from "../machines/steps.ts";
import { hostBootId, type InstanceRecord, parseRecord, RECORDED_KINDS } from "./instance-record.ts";
import { readRecordFile } from "./record-file.ts";

/** The kernel rounds limits of memory down to pages of so many `bytes`, or of a multiple of that. */
const PAGE_BYTES_MAX = 65_536;

export interface SurveyOptions {
  readonly db: Database;
  readonly layout: DataLayout;
  readonly cgroups: CgroupTree;
  readonly layers: LayerStore;
  readonly uids: UidPool;
  readonly heldRoots: HeldRoots;
  readonly assets: () => Promise<{ readonly memoryCopier: string }>;
  readonly log: Log;
}

/** The machines of a former process, and the operations without one. */
export interface Survey {
  /** instances whose machines can be continued, as far as files and processes show */
  readonly survivors: ReadonlyMap<OperationId, Survivor>;
  /** reasons why other machines cannot be continued, by their operations */
  readonly problems: ReadonlyMap<OperationId, string>;
  /** operations whose commands have not begun, without a machine that can be continued */
  readonly unbegun: ReadonlySet<OperationId>;
  /** machines of the survivors */
  readonly machines: ReadonlySet<string>;
}

/** The end of an instance whose machine is not continued: a machine ends, and the reason is kept. */
class Problem extends Error {}

/** The command of an instance has not begun: its operation can begin again with another machine. */
export class NotBegunError extends Error {
  override readonly name = "NotBegunError";
}

/** An instance that a former process has left, and what its log says. */
export interface LeftInstance {
  readonly survivor: Survivor;
  /** of the log of its operation */
  readonly summary: LogSummary;
}

/**
 * A machine that a former process has left, with its uid, its layers and the root of its VMM. Disposal ends the machine,
 * unless it was opened: then that object owns it.
 */
export class Survivor implements AsyncDisposable {
  readonly record: InstanceRecord;
  readonly #open: () => Promise<Machine>;
  readonly #end: () => Promise<void>;
  readonly #held: AsyncDisposableStack;
  #isOpen = false;

  constructor(
    record: InstanceRecord,
    { open, end, held }: { open: () => Promise<Machine>; end: () => Promise<void>; held: AsyncDisposableStack },
  ) {
    this.record = record;
    this.#open = open;
    this.#end = end;
    this.#held = held;
  }

  /** To be called once. A machine that cannot be opened is ended. @throws as `openQemuMachine` and `openCloudHypervisorMachine` do */
  async open(): Promise<Machine> {
    this.#isOpen = true;
    return await this.#open();
  }

  /** Disposes of `resource` with the survivor. */
  use(resource: Disposable): void {
    this.#held.use(resource);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isOpen) await this.#end();
    this.#isOpen = true;
    await this.#held.disposeAsync();
  }
}

/**
 * Decides which machines of a former process can be continued: by their records, the database, their processes and files.
 * Nothing may have been swept yet, and no machine may start before the survivors have their uids.
 */
export async function survey(options: SurveyOptions): Promise<Survey> {
  const { db, layout } = options;
  const operations = new Map(executingOperations(db).map((row) => [row.id, row]));
  const running = new Set(sandboxesIn(db, ["running", "pausing"]).map(({ operationId }) => operationId));
  const resuming = new Set(
    sandboxesIn(db, ["resuming"]).flatMap(({ id, operationId }) =>
      memoryImageOf(db, id) === null ? [operationId] : [],
    ),
  );
  const survivors = new Map<OperationId, Survivor>();
  const problems = new Map<OperationId, string>();
  const bootId = hostBootId();
  // The newest first: an older machine of the same operation was replaced.
  for (const id of (await readdir(layout.vms)).sort().reverse()) {
    const read = parseRecord(await readRecordFile(homePaths(join(layout.vms, id)).record), bootId);
    const operationId = read.problem === null ? read.record.operationId : read.operationId;
    try {
      if (read.problem !== null) throw new Problem(read.problem);
      const { record } = read;
      if (record.machine.id !== id) throw new Problem("the record is of another machine");
      if (survivors.has(record.operationId)) throw new Problem("its machine was replaced");
      // Its kept memory goes before its machine runs, and it is `running` a moment later.
      const sandboxes = record.resumed === true ? running.union(resuming) : running;
      checkOperation(record, operations.get(record.operationId), sandboxes);
      survivors.set(record.operationId, await survivorOf(options, record));
    } catch (error) {
      if (!(error instanceof Problem)) options.log.warn("a machine cannot be continued", { machine: id, error });
      const problem = error instanceof Problem ? error.message : "its machine cannot be examined";
      if (operationId !== null && !survivors.has(operationId)) problems.set(operationId, problem);
    }
  }
  const unbegun = new Set<OperationId>();
  for (const row of operations.values()) {
    if (survivors.has(row.id) || !mayBeginAgain(row)) continue;
    if (!(await hasStart(eventLogPath(layout, row.id), Spid.command))) unbegun.add(row.id);
  }
  const machines = new Set([...survivors.values()].map(({ record }) => record.machine.id));
  return { survivors, problems, unbegun, machines };
}

/** True for an operation that begins again with its request when its command has not begun. */
export function mayBeginAgain({ kind, parentId }: Pick<OperationRow, "kind" | "parentId">): boolean {
  return kind === "instance" && parentId === null;
}

/** @throws Problem */
function checkOperation(
  { kind, accountId }: InstanceRecord,
  row: OperationRow | undefined,
  running: ReadonlySet<OperationId | null>,
): void {
  if (row === undefined) throw new Problem("its operation is not running");
  const isOwn = row.kind === kind && row.accountId === accountId && RECORDED_KINDS.some((each) => each === row.kind);
  if (!isOwn) throw new Problem("the record is of another operation");
  if (row.cancelRequestedAt !== null) throw new Problem("it was cancelled");
  if (kind === "sandbox" && !running.has(row.id)) throw new Problem("its sandbox was not running");
}

/** @throws Problem when the machine cannot be continued */
async function survivorOf(options: SurveyOptions, record: InstanceRecord): Promise<Survivor> {
  const { db, layout, cgroups, layers, uids, heldRoots, assets } = options;
  const { machine, accountId, imageId } = record;
  const home = join(layout.vms, machine.id);
  const cgroup = cgroups.open(machine.id);
  const problem = await recordProblem(machine, cgroup);
  if (problem !== null) {
    const exit = await unwatchedExit("the virtual machine monitor", home);
    throw new Problem(exit === null ? problem : `its machine ended while no service ran: ${exit.detail}`);
  }
  const expectedBytes = machineMemoryBytes(machine.shape);
  const limitBytes = cgroup.memoryLimitBytes ?? (cgroups.missing.includes("memory") ? expectedBytes : 0);
  if (limitBytes > expectedBytes || limitBytes <= expectedBytes - PAGE_BYTES_MAX) {
    throw new Problem("its machine has another limit of memory than its shape");
  }
  for (const path of [join(homePaths(home).directory, SCRATCH_SERIAL), homePaths(home).sockets]) {
    if (!(await exists(path))) throw new Problem("a file of its machine is gone");
  }
  for (const id of record.layers) if (!(await layers.has(id))) throw new Problem("a layer of its image is gone");
  const image = getImage(db, accountId, imageId);
  if (image === null) throw new Problem("its image is gone");
  const lease = reserve(uids, machine.uid);
  lease.usedBy(cgroup);
  const held = new AsyncDisposableStack();
  held.use(layers.hold([...record.layers, image.layerId]));
  held.use(heldRoots.hold(machine.root));
  const host = { vmsDirectory: layout.vms, cgroups, heldRoots, uids: { reserve: () => lease } };
  return new Survivor(record, {
    open: async () =>
      machine.vmm === "qemu"
        ? await openQemuMachine({ ...host, assets: await assets() }, machine)
        : await openCloudHypervisorMachine(host, machine),
    end: async () => {
      await cgroup[Symbol.asyncDispose]();
      await rm(home, { recursive: true, force: true });
      await lease[Symbol.asyncDispose]();
    },
    held,
  });
}

/** @throws Problem when another machine has the uid, or it is not one of this service's */
function reserve(uids: UidPool, uid: number): UidLease {
  try {
    return uids.reserve(uid);
  } catch (error) {
    throw new Problem("the user of its machine is not free", { cause: error });
  }
}

async function exists(path: string): Promise<boolean> {
  return await stat(path).then(
    () => true,
    () => false,
  );
}
