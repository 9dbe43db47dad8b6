import { join } from "node:path";
import { ApiError } from "../../../domain/errors.ts";
import type { AccountId, OperationId } from "../../../domain/ids.ts";
import type { LayerStore } from "../../../storage/layers/layer-store.ts";
import { copySparse } from "../../../system/sparse.ts";
import type { MachineShape } from "../../../vm/vmm.ts";
import type { ForkedMachines } from "../../machines/machine-source.ts";
import { disksOf, SCRATCH_SERIAL } from "../../machines/steps.ts";
import type { Cost, Scheduler, Ticket } from "../../operations/scheduler.ts";
import { notRunning } from "../refusals.ts";
import type { InstanceParts, RunningInstances } from "../running-instances.ts";
import { type ChildChanges, childRecord } from "./child-record.ts";
import { notSupported, type ForkTools as PointTools, type TakenFork, takeForkPoint } from "./fork-point.ts";
import type { ForkedChild, ForkedStart, ForkFacts } from "./forked-starts.ts";

/** Bound of the device state of a machine, in `bytes`; that of QEMU takes a tenth of a megabyte. */
const DEVICES_BYTES_MAX = 16_777_216;

export interface ForkTools extends PointTools {
  readonly instances: RunningInstances;
  readonly layers: LayerStore;
  readonly machines: ForkedMachines;
  readonly scheduler: Pick<Scheduler, "admitNow" | "fitsEver">;
}

export interface ForkRequest extends Omit<ChildChanges, "scratchPath">, Pick<ForkFacts, "parent" | "signal"> {
  readonly accountId: AccountId;
  readonly instanceId: OperationId;
  readonly count: number;
  /** the share of the budget of each copy */
  readonly cost: Cost;
  /** abandons the fork; the instance continues */
  readonly abandoned: AbortSignal;
}

/** The copies of one fork. Disposal ends those that have not begun. */
export interface ForkedChildren extends AsyncDisposable {
  readonly pausedMs: number;
  /** guest memory that was copied, in `bytes` */
  readonly copiedBytes: number;
  readonly atEvent: number;
  readonly children: readonly ForkedChild[];
}

/**
 * Copies a running instance with its memory, all copies or none. The budget is taken before anything is paused. The instance
 * continues whatever happens.
 * @throws ApiError `unavailable` when the budget has no room now; as `takeForkPoint` and `ForkedMachines.cloneFork` do
 */
export async function forkInstance(tools: ForkTools, request: ForkRequest): Promise<ForkedChildren> {
  const { instances, layers } = tools;
  const { instanceId, count, abandoned } = request;
  using _claim = instances.claim(instanceId, "fork");
  const instance = instances.find(instanceId);
  const parts = instances.partsOf(instanceId);
  if (instance === null || parts === null) throw notRunning();
  if (instance.machine.prepareFork === undefined) throw notSupported();
  using admitted = new DisposableStack();
  const { ofPoint, ofCopies } = admit(tools.scheduler, request, instance.machine.shape);
  for (const ticket of [ofPoint, ...ofCopies]) admitted.use(ticket);
  // The disks of the parent stay when it ends meanwhile.
  using _disks = layers.hold(parts.image?.ids ?? []);
  const point = { instanceId, copiesCount: count, after: "continues", signal: abandoned } as const;
  await using fork = await takeForkPoint(tools, point);
  holdWhileUsed(fork, ofPoint);
  const starts = await copiesOf(fork, tools, { request, parts });
  admitted.move();
  const children = ofCopies.map((ticket, index) => childOf(starts[index] as ForkedStart, ticket));
  const { pausedMs, copiedBytes } = fork.point;
  return {
    ...{ pausedMs, copiedBytes, atEvent: fork.atEvent, children },
    [Symbol.asyncDispose]: async () => {
      await Promise.all(children.map((child) => child[Symbol.asyncDispose]()));
    },
  };
}

/** The shares of the budget for a fork. @throws ApiError `unavailable` when there is no room for all of them */
function admit(
  scheduler: ForkTools["scheduler"],
  { accountId, count, cost }: ForkRequest,
  { memoryBytes }: MachineShape,
): { readonly ofPoint: Ticket; readonly ofCopies: readonly Ticket[] } {
  // The size of the fork point is known when it is taken; until then it counts with the largest one.
  const pointCost = { memoryBytes: memoryBytes + DEVICES_BYTES_MAX, vcpus: 0 };
  const tickets = scheduler.admitNow(accountId, [pointCost, ...Array<Cost>(count).fill(cost)]);
  const [ofPoint, ...ofCopies] = tickets ?? [];
  if (ofPoint !== undefined) return { ofPoint, ofCopies };
  const sum = { memoryBytes: pointCost.memoryBytes + count * cost.memoryBytes, vcpus: count * cost.vcpus };
  const when = scheduler.fitsEver(sum) ? "now" : "for so many";
  const details = { count, memory_bytes: sum.memoryBytes };
  throw new ApiError("unavailable", `the budget of this host has no room ${when}: nothing was forked`, details);
}

/** Counts the memory of a fork point until it and its last copy are gone. */
export function holdWhileUsed({ point }: Pick<TakenFork, "point">, ticket: Ticket): void {
  ticket.reduce({ memoryBytes: point.memoryBytes, vcpus: 0 });
  void point.released.then(() => ticket[Symbol.dispose]());
}

/** Makes all copies, or none. */
async function copiesOf(
  fork: TakenFork,
  tools: ForkTools,
  { request, parts }: { readonly request: ForkRequest; readonly parts: InstanceParts },
): Promise<ForkedStart[]> {
  const { count, abandoned } = request;
  const scratches = Array.from({ length: count - 1 }, (_, index) => `${fork.scratchPath}-${index}`);
  for (const path of scratches) await copySparse(fork.scratchPath, path, abandoned);
  const results = await Promise.allSettled(
    [...scratches, fork.scratchPath].map((scratchPath, index) =>
      copyOf(fork, tools, { request, parts, scratchPath, index: index + 1 }),
    ),
  );
  const starts = results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
  const failure = results.find((result) => result.status === "rejected");
  if (failure === undefined) return starts;
  await Promise.all(starts.map((start) => start[Symbol.asyncDispose]()));
  throw failure.reason;
}

interface CopyOptions {
  readonly request: ForkRequest;
  readonly parts: InstanceParts;
  readonly scratchPath: string;
  readonly index: number;
}

async function copyOf(
  { point, record, atEvent }: TakenFork,
  { machines, layers }: ForkTools,
  { request, parts, scratchPath, index }: CopyOptions,
): Promise<ForkedStart> {
  const { disks } = record.instance;
  if (disks === null) throw notRunning();
  await using owned = new AsyncDisposableStack();
  const image = owned.use(layers.hold(parts.image?.ids ?? []));
  const attached = disksOf({ ...disks, scratch: { path: scratchPath, use: "root" } });
  const machine = owned.use(await machines.cloneFork(point, attached, request.abandoned));
  const child = childRecord(record, { ...request, scratchPath: join(machine.machine.directory, SCRATCH_SERIAL) });
  const { parent, signal } = request;
  const facts = { parent, atEvent, generation: (parts.generation ?? 0) + 1, index, signal };
  const kept = owned.move();
  return {
    ...child,
    facts,
    machine,
    image,
    hostname: parts.hostname,
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}

function childOf(start: ForkedStart, ticket: Ticket): ForkedChild {
  let isOwn = true;
  return {
    ...{ start, ticket },
    begun: () => {
      isOwn = false;
    },
    [Symbol.asyncDispose]: async () => {
      if (!isOwn) return;
      ticket[Symbol.dispose]();
      await start[Symbol.asyncDispose]();
    },
  };
}
