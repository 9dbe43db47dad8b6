import { afterEach, beforeEach, expect, test } from "bun:test";
import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../../src/log.ts";
import { DiskGuard, type DiskUse } from "../../../src/supervisor/disk-guard.ts";
import { untilAborted } from "../../../src/system/waiting.ts";
import { pause, until } from "../../support/waiting.ts";

const MIB = 1_048_576;
const RESERVE_BYTES = 16 * MIB;
const NEVER = new AbortController().signal;

let directory: string;
let owned: DisposableStack;
/** free space before the writers of a test */
let roomBytes: number;
let looksCount: number;
let guard: DiskGuard;
let files: Map<string, number>;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "disk-guard-"));
  owned = new DisposableStack();
  owned.defer(() => rmSync(directory, { recursive: true }));
  files = new Map();
  roomBytes = 100 * MIB;
  looksCount = 0;
  const freeBytes = () => {
    looksCount += 1;
    return roomBytes - [...files.values()].reduce((sum, bytes) => sum + bytes, 0);
  };
  guard = owned.use(new DiskGuard({ directory, reserveBytes: RESERVE_BYTES, log: silentLog, freeBytes }));
});

afterEach(() => owned.dispose());

const path = (name: string) => join(directory, name);

/** A writer of a file, which others may also write. */
function writer(name: string, isExpendable = false): DiskUse {
  const use = owned.use(guard.watch({ name, isExpendable }));
  writeFileSync(path(name), "");
  files.set(name, 0);
  use.add(path(name));
  return use;
}

function write(name: string, mib: number): void {
  appendFileSync(path(name), Buffer.alloc(mib * MIB, 7));
  files.set(name, (files.get(name) ?? 0) + mib * MIB);
}

function remove(name: string): void {
  rmSync(path(name));
  files.delete(name);
}

const looks = async (count: number) => {
  const before = looksCount;
  await until("the guard looks", () => looksCount >= before + count);
};
const ended = (use: DiskUse) => untilAborted(new Promise<never>(() => undefined), use.full).catch((error) => error);

test("below the reserve the largest writer is ended with an error that states its use; the others continue", async () => {
  const [small, hog] = [writer("small"), writer("hog")];
  write("small", 4);
  write("hog", 60);
  await looks(4);
  expect(hog.full.aborted).toBe(false);
  write("hog", 24);
  expect(await ended(hog)).toMatchObject({
    code: "insufficient_storage",
    details: { reserve_bytes: RESERVE_BYTES, used_bytes: 84 * MIB },
  });
  // While its space is being freed, and afterwards.
  await looks(4);
  remove("hog");
  hog[Symbol.dispose]();
  await guard.settled(NEVER);
  await looks(4);
  expect(small.full.aborted).toBe(false);
});

test("a second writer is ended when the space of the first is not enough", async () => {
  const [first, second] = [writer("first"), writer("second")];
  write("first", 40);
  write("second", 30);
  roomBytes = 40 * MIB;
  await ended(first);
  remove("first");
  first[Symbol.dispose]();
  await ended(second);
});

test("a second writer is ended when it uses up the rest while the space of the first is being freed", async () => {
  const [first, second, bystander] = [writer("first"), writer("second"), writer("bystander")];
  write("first", 60);
  write("second", 10);
  roomBytes = 85 * MIB;
  await ended(first);
  await looks(4);
  expect(second.full.aborted).toBe(false);
  write("bystander", 1);
  write("second", 9);
  await ended(second);
  await looks(4);
  expect(bystander.full.aborted).toBe(false);
});

test("when other programs fill the disk, runs can use the reserve to finish", async () => {
  const run = writer("run");
  write("run", 1);
  roomBytes = RESERVE_BYTES / 2;
  await looks(20);
  expect(run.full.aborted).toBe(false);
  // Only a part of it.
  write("run", 4);
  await ended(run);
});

test("a writer that has stopped is spared when another one still writes", async () => {
  const [old, hog] = [writer("old"), writer("hog")];
  write("old", 50);
  // The first look takes the first sample, which contains all of it.
  await looks(2);
  write("hog", 40);
  await ended(hog);
  expect(old.full.aborted).toBe(false);
});

test("expendable work is ended first", async () => {
  const [run, merge] = [writer("run"), writer("merge", true)];
  write("run", 50);
  write("merge", 20);
  roomBytes = 80 * MIB;
  await ended(merge);
  expect(run.full.aborted).toBe(false);
});

test("a directory tree is measured when the watched files do not explain the loss of space", async () => {
  const [run, tree] = [writer("run"), owned.use(guard.watch({ name: "tree" }))];
  write("run", 1);
  let countedCount = 0;
  tree.addTree(async () => {
    countedCount += 1;
    return 90 * MIB;
  });
  await looks(2);
  expect(countedCount).toBe(0);
  roomBytes = 10 * MIB;
  expect(await ended(tree)).toMatchObject({ details: { used_bytes: 90 * MIB } });
  expect(run.full.aborted).toBe(false);
});

test("the guard does not check while there are no writers", async () => {
  const use = writer("run");
  await looks(2);
  use[Symbol.dispose]();
  const before = looksCount;
  await pause("a guard that looked would do so several times", 50);
  expect(looksCount).toBeLessThanOrEqual(before + 3);
  using _again = guard.watch({ name: "another" });
  await looks(1);
});
