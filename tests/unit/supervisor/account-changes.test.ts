import { expect, test } from "bun:test";
import { setTag } from "../../../src/db/images/tags.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import type { ImageId, OperationId } from "../../../src/domain/ids.ts";
import { silentLog } from "../../../src/log.ts";
import { type AccountChange, AccountChanges } from "../../../src/supervisor/account-changes.ts";
import { OperationChanges } from "../../../src/supervisor/operations/changes.ts";
import { addExecuting, alice, bob, importImage, someImage, someLayer, testDatabase } from "../../support/database.ts";

/** The changes that a listener receives until its disposal. */
function heardBy(changes: AccountChanges) {
  const heard: (AccountChange | "stopped")[] = [];
  const listening = changes.listen(alice, {
    changed: (change) => void heard.push(change),
    stopped: () => void heard.push("stopped"),
  });
  return { heard, listening };
}

test("listeners receive the changes of their account until they leave", () => {
  const changes = new AccountChanges();
  const { heard, listening } = heardBy(changes);
  const change = { type: "deleted", id: "i" as ImageId } as const;
  changes.report(alice, change);
  changes.report(bob, change);
  listening[Symbol.dispose]();
  changes.report(alice, change);
  expect(heard).toEqual([change]);
});

test("a stop is reported to present and to later listeners", () => {
  const changes = new AccountChanges();
  const { heard } = heardBy(changes);
  changes[Symbol.dispose]();
  expect([heard, heardBy(changes).heard]).toEqual([["stopped"], ["stopped"]]);
});

test("every event of an operation is a change, and so is the tag that its result moved away from another image", () => {
  const changes = new AccountChanges();
  const events = new OperationChanges(silentLog);
  const following = changes.follow(events);
  const { heard } = heardBy(changes);
  const operation = { id: "o" as OperationId, accountId: alice, kind: "instance" } as const;
  const ended = { type: "ended", operation, status: "SUCCESS", error: null, phases: [] } as const;
  events.emit({ type: "accepted", operation });
  events.emit({ type: "started", operation });
  events.emit({ ...ended, untagged: "i" as ImageId });
  following[Symbol.dispose]();
  events.emit(ended);
  const change = { type: "operation", id: operation.id };
  expect(heard as unknown[]).toEqual([change, change, change, { type: "image", id: "i" }]);
});

test("a publication returns the image that has lost its tag to it", () => {
  using store = testDatabase();
  const { db } = store;
  const before = importImage(db, { tag: "t" });
  const publish = (tag: string) => {
    const layer = someLayer();
    const image = someImage(layer.id);
    const operationId = addExecuting(db);
    return { id: image.id, published: publishOperation(db, { operationId, result: {}, now: 1, layer, image, tag }) };
  };
  const publication = publish("t");
  expect(publication.published).toEqual({ hasOwnLayer: true, untagged: before });
  expect(publish("u").published).toEqual({ hasOwnLayer: true });
  setTag(db, alice, publication.id, { name: "v", change: "added", now: 2 });
  expect(publish("v").published).toEqual({ hasOwnLayer: true, untagged: publication.id });
});
