import { expect, test } from "bun:test";
import { tmpdir } from "node:os";
import { inodeRoom, requireSpace } from "../../../src/storage/free-space.ts";

test("files that must be left are a twentieth where there are few, and 20,000 where there are many", () => {
  expect(inodeRoom({ files: 1000, ffree: 70 })).toEqual({ total: 1000, free: 70, reserve: 50 });
  expect(inodeRoom({ files: 10_000_000, ffree: 5 })).toEqual({ total: 10_000_000, free: 5, reserve: 20_000 });
});

test("a file system without a bound of files is never short of them", () => {
  expect(inodeRoom({ files: 0, ffree: 0 })).toBeNull();
});

test("a disk has room, or its lack is said", () => {
  expect(() => requireSpace(tmpdir(), 1)).not.toThrow();
  expect(() => requireSpace(tmpdir(), Number.MAX_SAFE_INTEGER)).toThrow("the disk of the service is nearly full");
});
