import { expect, test } from "bun:test";
import type { Database } from "../../src/db/database.ts";
import { Accounts } from "../../src/domain/account/accounts.ts";
import type { ImageId, OperationId } from "../../src/domain/ids.ts";
import { silentLog } from "../../src/log.ts";
import type { Change } from "../../src/service/branches/change-stream.ts";
import { ChangeFeeds } from "../../src/service/branches/changes.ts";
import { AccountChanges } from "../../src/supervisor/account-changes.ts";
import { addExecuting, alice, testDatabase } from "../support/database.ts";

const someId = () => Bun.randomUUIDv7() as ImageId;

test("a row that was read before a resync is not sent after it", async () => {
  const { db } = testDatabase();
  const id = Bun.randomUUIDv7() as OperationId;
  addExecuting(db, { id });
  const changes = new AccountChanges();
  let readsCount = 0;
  /** Announces more changes than are stored, while the row of the operation is on its way to the streams. */
  const watched = {
    get orm() {
      readsCount += 1;
      if (readsCount === 2) for (let n = 0; n < 2000; n++) changes.report(alice, { type: "deleted", id: someId() });
      return db.orm;
    },
    // No image is being removed.
    cached: () => new Set(),
  } as unknown as Database;
  const feeds = new ChangeFeeds({ accounts: new Accounts(), db: watched, changes, log: silentLog });
  const left = new AbortController();
  const principal = { accountId: alice, grants: new Set(["*"]), tokenId: "t" };
  using stream = feeds.open(principal, left.signal);
  expect(await stream.next()).toEqual([{ type: "resync" }]);
  changes.report(alice, { type: "operation", id });
  expect(await stream.next()).toEqual([{ type: "resync" }]);
  const last = someId();
  changes.report(alice, { type: "deleted", id: last });
  const seen: Change[] = [];
  while (!seen.some((change) => change.type === "deleted" && change.id === last)) {
    seen.push(...((await stream.next()) ?? []));
  }
  expect(seen.filter(({ type }) => type !== "deleted")).toEqual([]);
});
