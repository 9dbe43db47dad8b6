import { expect, test } from "bun:test";
import type { AccountId, OperationId } from "../../../src/domain/ids.ts";
import { leftFinding, restartFinding } from "../../../src/supervisor/health/restart.ts";

const operation = (kind: "instance" | "sandbox" | "image_import") => ({
  id: Bun.randomUUIDv7() as OperationId,
  accountId: "alice" as AccountId,
  kind,
  sandbox: null,
});
const operations = [operation("instance"), operation("sandbox"), operation("image_import")];

test("doctor says how many instances a restart leaves or ends; an import is none", () => {
  expect(restartFinding({ leavesInstances: true, operations })).toMatchObject({
    state: "ok",
    summary: "2 instances run; a restart leaves them",
  });
  expect(restartFinding({ leavesInstances: false, operations })).toMatchObject({
    state: "note",
    summary: "2 instances run; a stop or restart ends them",
  });
  expect(restartFinding({ leavesInstances: true, operations: [] }).summary).toStartWith("no instances run");
});

test("doctor names machines that run without an appliance", () => {
  expect(leftFinding(1)).toMatchObject({ state: "note", summary: "1 instance runs without an appliance" });
  expect(leftFinding(0)).toMatchObject({ state: "ok", summary: "no instance runs" });
});
