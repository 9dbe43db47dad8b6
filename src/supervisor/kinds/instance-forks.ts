import type { Database } from "../../db/database.ts";
import { getOperation } from "../../db/operations.ts";
import { ApiError } from "../../domain/errors.ts";
import type { AccountId, OperationId } from "../../domain/ids.ts";
import type { ForkTools as MachineForkTools } from "../instance/forks/fork-instance.ts";
import { forkInstance } from "../instance/forks/fork-instance.ts";
import type { ForkedStarts } from "../instance/forks/forked-starts.ts";
import { notRunning } from "../instance/refusals.ts";
import type { Operations } from "../operations/operations.ts";
import type { Requests } from "../operations/requests.ts";
import { costOf } from "../operations/scheduler.ts";
import { copyOfInstance, instanceKind } from "./instance.ts";

export interface InstanceForkTools extends MachineForkTools {
  readonly db: Database;
  readonly requests: Pick<Requests, "stored">;
  readonly operations: Pick<Operations, "begin">;
  readonly starts: ForkedStarts;
}

export interface InstanceForkRequest {
  readonly count: number;
  /** for the processes of each copy, which tells them of the fork; null: none */
  readonly signal: number | null;
  /** time limit of the command from the fork, in `seconds`; null: what is left of the parent's */
  readonly timeoutSeconds: number | null;
  /** absent: as the parent */
  readonly disposable?: boolean | undefined;
  /** true: standard input that was open stays open for clients of the copy */
  readonly stdinOpen: boolean;
}

/** The copies of a fork with memory. */
export interface MemoryFork<Id> {
  /** time for which the parent stood still, in `milliseconds` */
  readonly pausedMs: number;
  /** guest memory that was copied, in `bytes` */
  readonly copiedBytes: number;
  readonly ids: readonly Id[];
}

/** Forks of running instances with their memory. */
export class InstanceForks {
  readonly #tools: InstanceForkTools;

  constructor(tools: InstanceForkTools) {
    this.#tools = tools;
  }

  /**
   * Copies a running instance with its processes and files, all copies or none; each is an operation. The instance continues.
   * @param abandoned abandons the fork before any copy begins
   * @throws as `forkInstance` and `Operations.begin` do
   */
  async fork(
    accountId: AccountId,
    id: OperationId,
    request: InstanceForkRequest,
    abandoned: AbortSignal,
  ): Promise<MemoryFork<OperationId>> {
    const { db, requests, operations, starts } = this.#tools;
    const { count, signal, timeoutSeconds, disposable, stdinOpen } = request;
    const imageId = getOperation(db, accountId, id)?.imageId ?? null;
    if (imageId === null) throw notRunning();
    const parent = requests.stored(id);
    const { resources } = parent;
    if (resources === null) throw new ApiError("unavailable", "the request of the instance is gone");
    const network = this.#tools.instances.partsOf(id)?.network.policy ?? null;
    const submission = copyOfInstance(parent, { network, timeoutSeconds, disposable, stdinOpen });
    await using forked = await forkInstance(this.#tools, {
      ...{ accountId, instanceId: id, count, cost: costOf(resources), parent: id, signal, abandoned },
      ...{ timeoutMs: timeoutSeconds === null ? null : timeoutSeconds * 1000, keepsInput: stdinOpen },
    });
    const { pausedMs, copiedBytes, atEvent, children } = forked;
    const fork = { parentId: id, atEvent };
    const begins = children.map(({ ticket }) => {
      return { id: Bun.randomUUIDv7() as OperationId, submission: { ...submission, imageId }, fork, ticket };
    });
    starts.begin(children, begins, () => operations.begin(accountId, instanceKind, begins));
    return { pausedMs, copiedBytes, ids: begins.map(({ id }) => id) };
  }
}
