import { expect, test } from "bun:test";
import { insertOperation } from "../../src/db/operations.ts";
import type { OperationId } from "../../src/domain/ids.ts";
import { pacedRequestLines, REQUESTS_COUNT } from "../../src/service/request-lines.ts";
import { alice, testDatabase } from "../support/database.ts";

test("a few requests are read in each turn of the event loop", async () => {
  const { db } = testDatabase();
  const ids = Array.from({ length: 5 * REQUESTS_COUNT }, (_, n) => {
    const id = Bun.randomUUIDv7() as OperationId;
    const request = { body: { argv: [`command-${n}`], shell: false } };
    insertOperation(db, { id, accountId: alice, kind: "instance", request, hadCredentials: false, now: n });
    return id;
  });
  let turnsCount = 0;
  let isDone = false;
  const lines = pacedRequestLines(db, ids).finally(() => {
    isDone = true;
  });
  while (!isDone) {
    await new Promise((resolve) => setImmediate(resolve));
    turnsCount += 1;
  }
  expect([...(await lines).values()].sort()).toEqual(ids.map((_, n) => `command-${n}`).sort());
  expect(turnsCount).toBeGreaterThanOrEqual(5);
});
