import { getOperation } from "../../db/operations.ts";
import { insertSandbox, type SandboxRow } from "../../db/sandboxes/rows.ts";
import type { OperationId, SandboxId } from "../../domain/ids.ts";
import { sandboxConflict } from "../../domain/sandbox.ts";
import { forkInstance, type ForkTools as MachineForkTools } from "../instance/forks/fork-instance.ts";
import type { ForkedStarts } from "../instance/forks/forked-starts.ts";
import type { MemoryFork } from "../kinds/instance-forks.ts";
import { sandboxCostOf } from "../operations/scheduler.ts";
import { copyOf, type ForkTools, namesOf } from "./fork.ts";
import type { SandboxMemoryFork } from "./ports.ts";
import { instanceOf, pickRun, type Transitions } from "./transitions.ts";

export interface MemoryForkTools extends Omit<ForkTools, "scheduler" | "operations">, MachineForkTools {
  readonly clock: () => number;
  readonly starts: ForkedStarts;
  readonly transitions: Transitions;
}

/** As `SandboxesPort.forkMemory`. */
export async function forkWithMemory(
  tools: MemoryForkTools,
  row: SandboxRow,
  request: SandboxMemoryFork,
  abandoned: AbortSignal,
): Promise<MemoryFork<SandboxId>> {
  const { db, sandboxes, starts, transitions } = tools;
  const { accountId } = row;
  const { count, signal } = request;
  const instanceId = instanceOf(row);
  const imageId = getOperation(db, accountId, instanceId)?.imageId ?? null;
  if (imageId === null) throw sandboxConflict(row.state);
  const names = namesOf(tools, row, request);
  sandboxes.requireRoom(accountId, count);
  // A fork whose machine dies begins where its parent would: its machine may lie on an older image.
  const headId = row.headId ?? imageId;
  await using forked = await forkInstance(tools, {
    ...{ accountId, instanceId, count, cost: sandboxCostOf(row.resources), parent: row.id, signal, abandoned },
    ...{ timeoutMs: null, keepsInput: true },
  });
  const { pausedMs, copiedBytes, atEvent, children } = forked;
  const begins = children.map(({ ticket, start }, index) => {
    const name = names[index] ?? row.name;
    const {
      files: _files,
      timeoutSeconds: _life,
      idleTimeoutSeconds: _idle,
      start: _start,
      ...settings
    } = copyOf(row, headId, name);
    const { timeoutMs, idleTimeoutMs } = row;
    const id = Bun.randomUUIDv7() as SandboxId;
    const origin = { parentId: row.id, forkedAtEvent: atEvent, spidLast: start.record.instance.spidLast };
    const insert = (operationId: OperationId) => {
      sandboxes.requireRoom(accountId, 1);
      const now = tools.clock();
      const endsAt = now + timeoutMs;
      const fields = { ...settings, ...origin, id, accountId, operationId, timeoutMs, idleTimeoutMs, endsAt };
      return { row: insertSandbox(db, fields, now), from: null, reason: "request" as const };
    };
    const submission = { sandboxId: id, hostname: name, imageId, files: [], ...pickRun(row) };
    const fork = { parentId: instanceId, atEvent };
    return { sandboxId: id, id: Bun.randomUUIDv7() as OperationId, submission, fork, ticket, insert };
  });
  starts.begin(children, begins, () => transitions.begin(accountId, begins));
  return { pausedMs, copiedBytes, ids: begins.map(({ sandboxId }) => sandboxId) };
}
