import { describe, expect, test } from "bun:test";
import type { AccountId, OperationId } from "../../../../src/domain/ids.ts";
import type { OperationKind } from "../../../../src/domain/operation.ts";
import { instancesIn, lossesOfRestart, type RunningOperation } from "../../../../src/domain/operator/restart.ts";

const accountId = "alice" as AccountId;
const operation = (id: string, kind: OperationKind, sandbox: string | null = null): RunningOperation => ({
  id: id as OperationId,
  accountId,
  kind,
  sandbox,
});
const machine = (id: string, problem: string | null = null) => ({ operationId: id as OperationId, problem });
const reasons = (losses: ReturnType<typeof lossesOfRestart>) =>
  Object.fromEntries(losses.map(({ operation: { id }, reason }) => [id, reason]));

const operations = [
  operation("run", "instance"),
  operation("box", "sandbox", "dev"),
  operation("import", "image_import"),
  operation("checkpoint", "checkpoint"),
];

describe("a restart", () => {
  test("ends what needs the daemon, and leaves recorded instances and sandboxes", () => {
    const losses = lossesOfRestart({ leavesInstances: true, operations }, [machine("run"), machine("box")]);
    expect(reasons(losses)).toEqual({
      import: "an import cannot continue without the daemon",
      checkpoint: "a checkpoint cannot continue without the daemon",
    });
    expect(instancesIn({ operations }).map(({ id }) => String(id))).toEqual(["run", "box"]);
  });

  test("ends an instance whose record has a problem, with that reason, and one without a record", () => {
    const problem = "its agent speaks protocol version 4, and this service 5";
    const losses = lossesOfRestart({ leavesInstances: true, operations }, [machine("box", problem), machine("other")]);
    expect(reasons(losses)).toMatchObject({ box: problem, run: "its machine has no record yet" });
  });

  test("ends every instance of a daemon that leaves none, whatever its record says", () => {
    const losses = lossesOfRestart({ leavesInstances: false, operations }, [machine("run"), machine("box")]);
    expect(losses).toHaveLength(4);
    expect(reasons(losses)["run"]).toBe("the running daemon ends its instances when it stops");
  });

  test("ends nothing where nothing runs", () => {
    expect(lossesOfRestart({ leavesInstances: false, operations: [] }, [machine("run")])).toEqual([]);
  });
});
