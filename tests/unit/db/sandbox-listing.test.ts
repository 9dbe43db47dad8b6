import { expect, test } from "bun:test";
import { sql } from "drizzle-orm";
import { listSandboxes, type SandboxFilter, SEARCHED_COUNT_MAX } from "../../../src/db/sandboxes/rows.ts";
import type { AccountId, ImageId, SandboxId } from "../../../src/domain/ids.ts";
import { operationsStore } from "../../support/operations.ts";

const ALICE = "alice" as AccountId;
const IMAGE = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as ImageId;

test("a search has pages for a bounded number of sandboxes each", async () => {
  await using store = await operationsStore(ALICE, IMAGE);
  using db = store.db;
  const count = 2 * SEARCHED_COUNT_MAX + 5;
  db.orm.run(sql`
    with recursive n(i) as (select 1 union all select i + 1 from n where i < ${count})
    insert into sandboxes (id, account_id, name, head_seq, state, timeout_ms, on_timeout, auto_resume, env, env_names,
      resources, metadata, public_ports, spid_last, created_at, state_at, ended_at)
    select printf('%036d', i), ${ALICE}, 'box-' || i, 0, 'ended', 1, 'pause', 1, '{}', '[]',
      '{}', json_object('number', cast(i as text)), '[]', 1, i / 2, i, i from n`);
  for (const search of [{ name: "box-3" }, { metadata: { number: "3" } }]) {
    const filter: SandboxFilter = { states: ["ended"], limit: 10, ...search };
    const first = listSandboxes(db, ALICE, filter);
    expect([first.rows, first.searchedTo?.id]).toEqual([[], String(SEARCHED_COUNT_MAX + 6).padStart(36, "0") as never]);
    const second = listSandboxes(db, ALICE, { ...filter, after: first.searchedTo ?? undefined });
    expect([second.rows, second.searchedTo?.id]).toEqual([[], String(6).padStart(36, "0") as never]);
    const last = listSandboxes(db, ALICE, { ...filter, after: second.searchedTo ?? undefined });
    expect([last.rows.map(({ name }) => name), last.searchedTo]).toEqual([["box-3"], null]);
  }
  expect(listSandboxes(db, ALICE, { states: ["ended"], limit: 10 }).searchedTo).toBeNull();
});

test("a listing begins at either end, and at a time", async () => {
  await using store = await operationsStore(ALICE, IMAGE);
  using db = store.db;
  db.orm.run(sql`
    with recursive n(i) as (select 1 union all select i + 1 from n where i < 9)
    insert into sandboxes (id, account_id, name, head_seq, state, timeout_ms, on_timeout, auto_resume, env, env_names,
      resources, metadata, public_ports, spid_last, created_at, state_at)
    select i, ${ALICE}, 'box-' || i, 0, 'running', 1, 'pause', 1, '{}', '[]', '{}', '{}', '[]', 1, i / 2, i from n`);
  const listed = (filter: Partial<SandboxFilter>) =>
    listSandboxes(db, ALICE, { states: [], limit: 3, ...filter }).rows.map(({ id }) => Number(id));
  expect(listed({})).toEqual([9, 8, 7]);
  expect(listed({ order: "oldest first" })).toEqual([1, 2, 3]);
  const after = { createdAt: 1, id: "3" as SandboxId };
  expect([listed({ after }), listed({ after, order: "oldest first" })]).toEqual([
    [2, 1],
    [4, 5, 6],
  ]);
  expect(listed({ sinceMs: 3, order: "oldest first" })).toEqual([6, 7, 8]);
});
