import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { gunzipSync } from "node:zlib";
import { Api } from "../../support/api/api.ts";
import type { LayerFixture } from "../../support/api/layers.ts";
import { cli } from "../../support/cli/cli.ts";

const BASE: readonly LayerFixture[] = [
  { path: "etc", type: "d" },
  { path: "etc/motd", type: "f", content: "hello\nworld\n" },
];
const STEP: readonly LayerFixture[] = [
  { path: "etc", type: "d" },
  { path: "etc/motd", type: "f", content: "changed\n" },
  { path: "etc/new\nline", type: "f", content: "x" },
];

let api: Api;
let base = "";
let left = "";
let below = "";
let right = "";
beforeAll(async () => {
  api = await Api.start();
  base = await api.addImage([BASE], { tag: "base" });
  left = await api.addRun(base, STEP, { origin: { command: ["/bin/sh", "-c", "make; ls"], exitCode: 2 }, at: 1000 });
  below = await api.addRun(left, [], { origin: { command: ["echo", "it's", "\x1b[31m"], exitCode: 0 }, at: 2000 });
  right = await api.addRun(base, STEP, { origin: { command: ["true"], timedOut: true }, at: 3000 });
});
afterAll(() => api[Symbol.asyncDispose]());

const run = (...argv: string[]) =>
  cli(argv, { environment: { COPPICE_URL: api.url, COPPICE_TOKEN: api.token, HOME: "/nonexistent" } });
const printed = async (...argv: string[]) => {
  const { code, stdout, stderr } = await run(...argv);
  if (code !== 0) throw new Error(stderr);
  return stdout.toString();
};

describe("coppice image", () => {
  test("tree draws branches with commands and sizes", async () => {
    const text = (await printed("image", "tree", "tag:base")).replaceAll(/ {2}[\d.]+ (B|KiB) {2}/g, "  SIZE  ");
    expect(text).toBe(
      `${base}  SIZE  [base] an import\n` +
        `├─ ${left}  SIZE  make; ls (exit 2)\n` +
        `│  └─ ${below}  SIZE  echo 'it'\\''s' '\\033[31m'\n` +
        `└─ ${right}  SIZE  true (timed out)\n`,
    );
    expect(JSON.parse(await printed("image", "tree", base, "--json"))).toHaveLength(4);
  });

  test("show lists the steps back to the import", async () => {
    const lines = (await printed("image", "show", below)).trim().split("\n");
    expect(lines.slice(1).map((line) => line.slice(0, 36))).toEqual([below, left, base]);
    expect(JSON.parse(await printed("image", "show", below, "--json"))).toMatchObject({ parent: left });
  });

  test("rm deletes, and reports what it could not delete", async () => {
    const doomed = await api.addRun(base, []);
    expect(await printed("image", "rm", doomed)).toBe("");
    expect((await run("image", "rm", doomed)).stderr).toContain("no such image");
    expect((await run("image", "rm")).code).toBe(2);
  });
});

test("coppice diff has a line for each path", async () => {
  expect(await printed("diff", left)).toBe("C            8 /etc/motd\nA            1 /etc/new\\012line\n");
  expect(await printed("diff", left, "--against", right)).toContain("/etc/motd");
  expect(await printed("diff", "tag:base", "--against", left)).toContain("D            1 /etc/new\\012line\n");
});

test("coppice log and blame name the steps that changed a path", async () => {
  const rows = (text: string) =>
    text
      .trim()
      .split("\n")
      .slice(1)
      .map((row) => row.split(/ {2,}/));
  const changes = rows(await printed("log", below, "--", "/etc/motd"));
  expect(changes.map(([uuid, , ...rest]) => [uuid, ...rest])).toEqual([
    [left, "modified", "8 B", "2", "make; ls"],
    [base, "added", "12 B", "-", "an import"],
  ]);
  expect(rows(await printed("log", below, "--limit", "1", "--", "/etc/motd"))).toHaveLength(1);
  const lines = (await printed("log", below, "--json", "--", "/etc")).trim().split("\n");
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([
    { change: "modified", below: true },
    { change: "added" },
  ]);
  const blamed = rows(await printed("blame", below, "/etc"));
  expect(blamed.map(([uuid, , change, name]) => [uuid, change, name])).toContainEqual([left, "added", "new\\012line"]);
  expect((await run("blame", below, "/none")).stderr).toContain("no such file or directory");
  expect((await run("log", below, "--", "/none")).stderr).toContain("no state of the image has this path");
  expect((await run("log", below)).stderr).toContain("PATH is missing");
});

test("coppice grep prints path, number and line, and exits 1 when there is none", async () => {
  expect(await printed("grep", "tag:base", "w.r", "/etc")).toBe("/etc/motd:2:world\n");
  expect((await run("grep", "tag:base", "nothing")).code).toBe(1);
  const limited = await run("grep", "tag:base", ".", "--limit", "1");
  expect(limited.stderr).toContain("limit");
});

test("coppice grep takes the usual options of a search", async () => {
  const grep = (...argv: string[]) => printed("grep", "tag:base", ...argv);
  expect(await grep("-e", "HELLO", "-e", "W.R", "-i", "/etc/motd", "/etc")).toBe(
    "/etc/motd:1:hello\n/etc/motd:2:world\n".repeat(2),
  );
  expect(await grep("-m1", "-C1", "-g", "motd", "l", "/etc")).toBe("/etc/motd:1:hello\n/etc/motd-2-world\n");
  expect(await grep("-B1", "world", "/etc")).toBe("/etc/motd-1-hello\n/etc/motd:2:world\n");
  expect(await grep("--glob", "mo*", "--json", "-S", "w", "-A", "3")).toContain('"text":"world"');
  expect((await run("grep", "tag:base", "-S", "W")).code).toBe(1);
  const { code, stderr } = await run("grep", "tag:base");
  expect([code, stderr]).toEqual([2, expect.stringContaining("PATTERN is missing")]);
});

test("coppice archive writes the archive, compressed when it is asked to", async () => {
  const { stdout } = await run("archive", "tag:base", "/etc");
  expect(stdout.length % 512).toBe(0);
  expect(stdout.toString("latin1")).toContain("./motd");
  expect(gunzipSync((await run("archive", "tag:base", "/etc", "--gzip")).stdout).equals(stdout)).toBe(true);
});
