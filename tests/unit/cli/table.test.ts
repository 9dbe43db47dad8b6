import { describe, expect, test } from "bun:test";
import { drawTree } from "../../../src/cli/history.ts";
import { portsOf } from "../../../src/cli/running/forward.ts";
import { cut, table } from "../../../src/cli/table.ts";
import type { ImageStep } from "../../../src/client/types.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";

describe("a table on a terminal", () => {
  const header = ["ID", "STATUS", "CREATED", "OUTCOME"];
  const rows = [
    [ID, "FAILED", "2026-11-20T10:30:00.000Z", "unavailable: no machine could be had for the instance in its time"],
    [ID, "SUCCESS", "2026-11-20T10:30:00.000Z", "exit 0"],
  ];

  test.each([60, 80, 99, 132])("is at most %d characters wide, with complete ids", (columns) => {
    const lines = table(header, rows, columns).trimEnd().split("\n");
    expect(Math.max(...lines.map((line) => Bun.stringWidth(line)))).toBe(columns);
    for (const line of lines.slice(1)) expect(line).toStartWith(ID);
  });

  test("cuts the widest columns first", () => {
    const lines = table(header, rows, 100).split("\n");
    expect(lines[1]).toContain("FAILED   2026-11-20T10:30:00.000Z  unavailable: no");
    expect(lines[1]).toEndWith("…");
    expect(lines[2]).toEndWith("exit 0");
  });

  test("is as wide as necessary where it fits, and in a file", () => {
    expect(table(header, rows, 500)).toBe(table(header, rows));
    expect(table(header, rows)).not.toContain("…");
  });

  test("that is narrower than an id does not exceed its width", () => {
    for (const line of table(header, rows, 20).trimEnd().split("\n")) expect(Bun.stringWidth(line)).toBeLessThan(21);
  });
});

test("characters are counted as a terminal shows them", () => {
  expect(cut("日本語のテスト", 7)).toBe("日本語…");
  expect(cut("cafe\u0301s", 5)).toBe("cafe\u0301s");
  expect(cut("👩‍👩‍👧‍👦 family", 5)).toBe("👩‍👩‍👧‍👦 f…");
  expect(cut("abc", 3)).toBe("abc");
});

test("draws a tree within the width", () => {
  const step = (uuid: string, parent?: string) =>
    ({
      uuid,
      size_bytes: 1,
      deleted: false,
      kind: "instance",
      command: ["echo", "x".repeat(200)],
      parent,
    }) as ImageStep;
  const steps = [step(ID), step(ID.replace("0197", "0198"), ID)];
  const lines = drawTree(steps, 80).trimEnd().split("\n");
  expect(lines.map((line) => [...line].length)).toEqual([80, 80]);
  expect(drawTree(steps)).toContain("x".repeat(200));
});

describe("ports of forward", () => {
  test.each([
    ["8080:80", { local: 8080, remote: 80 }],
    ["0:80", { local: 0, remote: 80 }],
    ["443", { local: 443, remote: 443 }],
  ])("%s", (rule, ports) => {
    expect(portsOf(rule)).toEqual(ports);
  });

  test.each(["", "x", "80:", ":80", "0", "1:0", "65536", "1:65536", "1:2:3", "-1:2"])("%p is not a port", (rule) => {
    expect(() => portsOf(rule)).toThrow("two port numbers");
  });
});
