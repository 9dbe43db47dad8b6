import { expect, test } from "bun:test";
import { tmpdir } from "node:os";
import { inodeRoom, requireSpace } from "../../../src/storage/free-space.ts";

test("a twentieth of the inodes is reserved, at most 20,000", () => {
  expect(inodeRoom({ files: 1000, ffree: 70 })).toEqual({ total: 1000, free: 70, reserve: 50 });
  expect(inodeRoom({ files: 10_000_000, ffree: 5 })).toEqual({ total: 10_000_000, free: 5, reserve: 20_000 });
});

test("a file system without a limit of inodes never lacks them", () => {
  expect(inodeRoom({ files: 0, ffree: 0 })).toBeNull();
});

test("a disk has enough space, or an error tells what it lacks", () => {
  expect(() => requireSpace(tmpdir(), 1)).not.toThrow();
  expect(() => requireSpace(tmpdir(), Number.MAX_SAFE_INTEGER)).toThrow("the disk of the service is nearly full");
});
