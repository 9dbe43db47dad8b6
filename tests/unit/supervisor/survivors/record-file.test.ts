import { afterEach, beforeEach, expect, test } from "bun:test";
import {
  chmodSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { RECORD_BYTES_MAX } from "../../../../src/supervisor/survivors/instance-record.ts";
import { readRecordFile, writeRecordFile } from "../../../../src/supervisor/survivors/record-file.ts";
import { testDirectory } from "../../../support/images/layer-files.ts";

let directory: string;
let path: string;
beforeEach(() => {
  directory = testDirectory("record");
  path = join(directory, "machine.json");
});
afterEach(() => rmSync(directory, { recursive: true }));

test("a record is private, and is replaced whole", async () => {
  expect(await readRecordFile(path)).toBeNull();
  for (const text of ["first", "second", ""]) {
    writeRecordFile(path, text);
    expect(await readRecordFile(path)).toBe(text);
  }
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(readdirSync(directory)).toEqual(["machine.json"]);
});

test("what a failed write has left is not written to, whatever it is", () => {
  const victim = join(directory, "victim");
  for (const leave of [symlinkSync, linkSync]) {
    writeFileSync(victim, "kept", { mode: 0o644 });
    leave(victim, `${path}.new`);
    writeRecordFile(path, "record");
    expect([readFileSync(victim, "utf8"), readFileSync(path, "utf8")]).toEqual(["kept", "record"]);
    expect(statSync(path).mode & 0o777).toBe(0o600);
  }
  mkdirSync(`${path}.new`);
  expect(() => writeRecordFile(path, "next")).toThrow();
  expect(readFileSync(path, "utf8")).toBe("record");
});

test("a file that others could have written or read is not believed", async () => {
  for (const mode of [0o640, 0o604, 0o660, 0o666, 0o400]) {
    writeRecordFile(path, "record");
    chmodSync(path, mode);
    expect(await readRecordFile(path)).toBe("");
  }
  writeRecordFile(path, "record");
  linkSync(path, join(directory, "other"));
  expect(await readRecordFile(path)).toBe("");
});

test("links, directories and files of any size are not read", async () => {
  writeRecordFile(join(directory, "target"), "record");
  symlinkSync(join(directory, "target"), path);
  expect(await readRecordFile(path)).toBe("");
  rmSync(path);
  mkdirSync(path);
  expect(await readRecordFile(path)).toBe("");
  expect(await readRecordFile(join(directory, "target", "machine.json"))).toBeNull();
  rmSync(path, { recursive: true });
  writeRecordFile(path, "record");
  truncateSync(path, RECORD_BYTES_MAX + 1);
  expect(await readRecordFile(path)).toBe("");
});
