/** Requests for all events of a watch up to now. */
import { expect, test } from "bun:test";
import { WatchSyncs } from "../../../src/vm/agent/files/file-session.ts";
import { failureOf } from "../../support/failures.ts";
import { turns } from "../../support/waiting.ts";

test("a request waits until the watch is ready, and later ones for the next answer together", async () => {
  const syncs = new WatchSyncs();
  const answered: string[] = [];
  let sentCount = 0;
  const request = (name: string) => void syncs.request().then(() => answered.push(name));
  request("early");
  syncs.open(() => void sentCount++);
  expect(sentCount).toBe(1);
  request("second");
  request("third");
  expect(sentCount).toBe(1);
  syncs.answer();
  await turns(2);
  expect([answered, sentCount]).toEqual([["early"], 2]);
  syncs.answer();
  // Guests may send what they were not asked for.
  syncs.answer();
  await turns(2);
  expect([answered, sentCount]).toEqual([["early", "second", "third"], 2]);
});

test("a watch that ends fails its requests, and all later ones", async () => {
  const syncs = new WatchSyncs();
  syncs.open(() => undefined);
  const waiting = [syncs.request(), syncs.request()];
  syncs[Symbol.dispose]();
  for (const promise of [...waiting, syncs.request()]) {
    expect((await failureOf(promise)) as Error).toMatchObject({ message: "the watch has ended" });
  }
});
