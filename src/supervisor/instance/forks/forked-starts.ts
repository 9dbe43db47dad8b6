import type { OperationId } from "../../../domain/ids.ts";
import { Spid } from "../../../domain/log-event.ts";
import { parseGuestPathText } from "../../../domain/tree/guest-path.ts";
import type { LayerChain } from "../../../storage/layers/layer-store.ts";
import { continueCopy } from "../../../vm/copy-agent.ts";
import type { ReadyMachine } from "../../machines/machine-source.ts";
import type { OperationChanges } from "../../operations/changes.ts";
import type { Ticket } from "../../operations/scheduler.ts";
import { type InstanceOutcome, resume } from "../execute.ts";
import type { RunningInstance } from "../running-instance.ts";
import type { InstanceJob, InstanceTools } from "../start-instance.ts";
import type { ChildRecord } from "./child-record.ts";

/** The file in which programs see that they run in a copy. */
const FORK_FILE = parseGuestPathText("/run/coppice/fork");
/** Limit of the wait for a guest to write that file, in `milliseconds`. */
const FORK_FILE_MS_MAX = 30_000;

/** The facts of a fork before its machine runs. */
export interface ForkFacts {
  /** id of the sandbox or of the operation whose machine was forked */
  readonly parent: string;
  /** id of the parent's last event before the fork */
  readonly atEvent: number;
  /** number of forks between the first of its machines and this one */
  readonly generation: number;
  /** number among the copies of the same fork, from 1 */
  readonly index: number;
  /** signal for its processes, which tells them of the fork; null: none */
  readonly signal: number | null;
}

/** A copy of a running instance that has not run yet. Disposal ends its machine. */
export interface ForkedStart extends ChildRecord, AsyncDisposable {
  readonly facts: ForkFacts;
  /** a copy of the parent's machine */
  readonly machine: Omit<ReadyMachine, "agent">;
  /** the attached layers; the operation that takes the start disposes of them */
  readonly image: LayerChain;
  /** hostname of the guest, which is that of the parent */
  readonly hostname: string;
}

/** A copy whose operation has not begun. Disposal ends it, unless `begun` was called. */
export interface ForkedChild extends AsyncDisposable {
  readonly start: ForkedStart;
  /** its share of the budget */
  readonly ticket: Ticket;
  /** To be called when its operation has begun, which owns both then. */
  begun(): void;
}

/** Machines for operations that begin as copies of others. Those of operations that end without a start are ended. */
export class ForkedStarts {
  readonly #starts = new Map<OperationId, ForkedStart>();

  /**
   * Calls `begin`, which begins the operations, the first with the first of the children.
   * @throws as `begin` does; the children stay the caller's then
   */
  begin(
    children: readonly ForkedChild[],
    operations: readonly { readonly id: OperationId }[],
    begin: () => void,
  ): void {
    const ids = operations.map(({ id }) => id);
    for (const [index, { start }] of children.entries()) this.#starts.set(ids[index] as OperationId, start);
    try {
      begin();
    } catch (error) {
      for (const id of ids) this.#starts.delete(id);
      throw error;
    }
    for (const child of children) child.begun();
  }

  /** The start of an operation, which is the caller's from now on; null: it begins as others do. */
  take(id: OperationId): ForkedStart | null {
    const start = this.#starts.get(id) ?? null;
    this.#starts.delete(id);
    return start;
  }

  /** Ends the machines of operations that end, or are put off, before they have taken them. */
  follow(changes: OperationChanges): Disposable {
    return changes.subscribe((change) => {
      if (change.type !== "ended" && change.type !== "postponed") return;
      void this.take(change.operation.id)?.[Symbol.asyncDispose]();
    });
  }
}

/** Runs a copy of an instance to its end, as `execute` runs an instance. @throws as `execute` does */
export async function runForked(
  tools: InstanceTools,
  job: InstanceJob,
  start: ForkedStart,
  signal: AbortSignal,
): Promise<InstanceOutcome> {
  const { machine, record, facts, hostname } = start;
  const { events } = tools;
  // The log of a sandbox has the fork already.
  if (job.idle === undefined) events.append(Spid.agent, "fork", { parent: facts.parent, at_event: facts.atEvent });
  return await resume(
    tools,
    { ...job, image: start.image },
    {
      ...{ record, machine, hostname, generation: facts.generation, outlives: "when_started" },
      continueAgent: (from, options) => continueCopy(machine.machine, from, { ...options, signal }),
      onResumed: (instance, connections) => {
        for (const connection of connections) connection.reset();
        for (const spid of start.inputEnds) void endInput(instance, spid, signal);
        // The command of a sandbox's machine only keeps the machine.
        const firstSpid = job.idle === undefined ? Spid.command : Spid.command + 1;
        return announce(instance, tools, { ...facts, firstSpid });
      },
    },
    signal,
  );
}

/** Never throws: the process has ended then. */
async function endInput(instance: RunningInstance, spid: number, signal: AbortSignal): Promise<void> {
  await instance
    .process(spid)
    ?.input.close(signal)
    .catch(() => undefined);
}

/** Tells the programs of a copy that they run in one. Never throws: a guest may have no room for the file. */
async function announce(
  instance: RunningInstance,
  { log }: Pick<InstanceTools, "log">,
  { generation, index, signal, firstSpid }: ForkFacts & { readonly firstSpid: number },
): Promise<void> {
  const text = `generation=${generation}\nindex=${index}\n`;
  const options = { parents: true, atomic: true, mode: 0o644, signal: AbortSignal.timeout(FORK_FILE_MS_MAX) };
  try {
    await instance.files.use((files) => files.write({ path: FORK_FILE, user: "" }, options, contentOf(text)));
  } catch (error) {
    log.info("the guest was not told that it is a fork", { error });
  }
  if (signal === null) return;
  for (const process of instance.processes) {
    if (process.spid < firstSpid) continue;
    try {
      process.signal(signal);
    } catch {
      // Expected: the guest takes no more frames.
    }
  }
}

async function* contentOf(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}
