import { expect, test } from "bun:test";
import type { Database } from "../../../src/db/database.ts";
import { beginBuild, buildLogOf, endBuild, insertBuild } from "../../../src/db/templates/builds.ts";
import { ensureTemplate } from "../../../src/db/templates/templates.ts";
import { NO_CONFIG } from "../../../src/service/templates/resolve.ts";
import { alice, bob, databasePerTest } from "../../support/database.ts";

let db: Database;
databasePerTest((opened) => {
  db = opened.db;
});

function endedBuild(accountId: typeof alice, now: number): string {
  const { id: templateId } = ensureTemplate(db, accountId, `t${now % 3}`, now);
  const id = crypto.randomUUID();
  insertBuild(db, { id, templateId, tags: [], config: NO_CONFIG }, now);
  beginBuild(db, id);
  endBuild(db, id, { reason: { message: "no" } }, { log: [{ message: "a line" }], now });
  return id;
}

test("the logs of the newest 100 builds of an account are kept", () => {
  const foreign = endedBuild(bob, 0);
  const builds = Array.from({ length: 105 }, (_, at) => endedBuild(alice, at));
  const isKept = (id: string) => buildLogOf(db, id).length > 0;
  expect([builds.map(isKept).indexOf(true), builds.filter(isKept).length, isKept(foreign)]).toEqual([5, 100, true]);
});
