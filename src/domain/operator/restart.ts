import type { AccountId, OperationId } from "../ids.ts";
import { KIND_FACTS, type OperationKind } from "../operation.ts";

/** An operation that runs now. */
export interface RunningOperation {
  readonly id: OperationId;
  readonly accountId: AccountId;
  readonly kind: OperationKind;
  /** name of the sandbox whose machine it is; null for all others */
  readonly sandbox: string | null;
}

/** The present work of an appliance, for its operator. */
export interface RunningWork {
  readonly version: string;
  /** of the daemon */
  readonly pid: number;
  /** whether a stop of the daemon leaves its instances to the next one */
  readonly leavesInstances: boolean;
  readonly operations: readonly RunningOperation[];
}

/** The machine of an operation, as the next daemon reads its record. */
export interface RecordedMachine {
  readonly operationId: OperationId;
  /** why it cannot be taken over; null when nothing is known against it */
  readonly problem: string | null;
}

/** An operation that a restart would end. */
export interface Loss {
  readonly operation: RunningOperation;
  readonly reason: string;
}

/** Kinds of operations whose machines run without a daemon. */
const LASTING: ReadonlySet<OperationKind> = new Set(["instance", "sandbox"]);

/** The operations whose machines run without a daemon. */
export function instancesIn({ operations }: Pick<RunningWork, "operations">): RunningOperation[] {
  return operations.filter(({ kind }) => LASTING.has(kind));
}

/**
 * The operations that a restart of the daemon would end, with the reasons; all others continue.
 * @param machines those that exist, as the next daemon reads their records
 */
export function lossesOfRestart(
  { leavesInstances, operations }: Pick<RunningWork, "leavesInstances" | "operations">,
  machines: readonly RecordedMachine[],
): Loss[] {
  const recorded = new Map(machines.map(({ operationId, problem }) => [operationId, problem]));
  return operations.flatMap((operation) => {
    const { id, kind } = operation;
    const reason = LASTING.has(kind)
      ? machineProblem(leavesInstances, recorded.get(id))
      : `${KIND_FACTS[kind].noun} cannot continue without the daemon`;
    return reason === null ? [] : [{ operation, reason }];
  });
}

/** @param recorded undefined: there is no record */
function machineProblem(leavesInstances: boolean, recorded: string | null | undefined): string | null {
  if (!leavesInstances) return "the running daemon ends its instances when it stops";
  return recorded === undefined ? "its machine has no record yet" : recorded;
}
