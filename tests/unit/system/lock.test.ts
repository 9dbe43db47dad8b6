import { expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { awaitLock, lockFile } from "../../../src/system/lock.ts";

test("a file is held by one owner at a time", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-lock-"));
  const path = join(directory, "lock");
  const first = lockFile(path);
  expect(first).not.toBeNull();
  expect(lockFile(path)).toBeNull();
  first?.[Symbol.dispose]();
  const second = lockFile(path);
  expect(second).not.toBeNull();
  second?.[Symbol.dispose]();
  await rm(directory, { recursive: true });
});

test("waits for a lock, but only for a short time", async () => {
  await using stack = new AsyncDisposableStack();
  const directory = await mkdtemp(join(tmpdir(), "coppice-lock-"));
  stack.defer(() => rm(directory, { recursive: true }));
  const path = join(directory, "lock");
  const first = lockFile(path);
  expect(await awaitLock(path, 120)).toBeNull();
  const waiting = awaitLock(path, 10_000);
  first?.[Symbol.dispose]();
  using second = await waiting;
  expect(second).not.toBeNull();
  expect(lockFile(path)).toBeNull();
});
