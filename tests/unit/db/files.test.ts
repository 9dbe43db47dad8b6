import { expect, test } from "bun:test";
import { listFiles, upsertFile } from "../../../src/db/files.ts";
import { LARGE_OFFSET_MIN } from "../../../src/db/scans/scans.ts";
import { files } from "../../../src/db/schema.ts";
import type { FileId } from "../../../src/domain/ids.ts";
import { alice, bob, databasePerTest, newId, type TestDatabase } from "../../support/database.ts";

let opened: TestDatabase;
databasePerTest((each) => {
  opened = each;
});

const upload = (sha256: string, now: number, accountId = alice) =>
  upsertFile(opened.db, { accountId, sha256, sizeBytes: 1, now });
const names = async (window = {}) =>
  (await listFiles(opened.db, alice, { limit: 100, offset: 0, ...window })).map(({ sha256 }) => sha256);

test("files are listed by their last upload, in pages", async () => {
  for (const [index, name] of ["a", "b", "c"].entries()) upload(name, index);
  upload("theirs", 5, bob);
  expect(await names()).toEqual(["c", "b", "a"]);
  const again = upload("a", 9);
  expect(again).toMatchObject({ createdAt: 0, uploadedAt: 9 });
  expect(await names()).toEqual(["a", "c", "b"]);
  expect(await names({ limit: 1, offset: 1 })).toEqual(["c"]);
  expect(await names({ offset: 3 })).toEqual([]);
  // The bounds are about the last upload, and inclusive.
  expect(await names({ sinceMs: 2 })).toEqual(["a", "c"]);
  expect(await names({ untilMs: 2 })).toEqual(["c", "b"]);
});

test("files of the same time are sorted by their ids, and a page far behind is found in the thread", async () => {
  const { id: _id, sha256: _sha256, ...like } = upload("first", 1);
  const rows = Array.from({ length: LARGE_OFFSET_MIN + 19 }, (_, n) => ({
    ...like,
    id: newId<FileId>(),
    sha256: `${n}`,
  }));
  opened.db.transaction((tx) => {
    for (const row of rows) tx.insert(files).values(row).run();
  });
  const all = await listFiles(opened.db, alice, { limit: LARGE_OFFSET_MIN + 20, offset: 0 });
  expect(all.map(({ id }) => id)).toEqual(
    all
      .map(({ id }) => id)
      .toSorted()
      .reverse(),
  );
  const far = await listFiles(opened.db, alice, { limit: 10, offset: LARGE_OFFSET_MIN + 15 });
  expect(far).toEqual(all.slice(-5));
});
