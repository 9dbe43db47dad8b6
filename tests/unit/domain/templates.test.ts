import { describe, expect, test } from "bun:test";
import { BuildLog, LOG_ENTRIES_COUNT_MAX, OutputLines } from "../../../src/domain/templates/build-log.ts";
import { newTemplateId, parseTemplateName, requireTemplateTag } from "../../../src/domain/templates/names.ts";
import { absolutePath, type BuildStep, plainSource, stepKey } from "../../../src/domain/templates/steps.ts";

describe("the key of a step", () => {
  const run: BuildStep = { kind: "run", command: "make", user: null, force: false };
  const copy: BuildStep = {
    ...{ kind: "copy", source: "a", target: "b", owner: null, mode: null, force: false },
    filesHash: "1".repeat(64),
  };
  const origin = { layerId: "layer", state: { user: "user", cwd: null, env: { A: "1", B: "2" } } };
  const { state } = origin;

  test("differs with everything that the files depend on", () => {
    const keys = [
      stepKey(run, origin),
      stepKey({ ...run, command: "make all" }, origin),
      stepKey({ ...run, user: "root" }, origin),
      stepKey(run, { ...origin, layerId: "other" }),
      stepKey(run, { ...origin, state: { ...state, user: "root" } }),
      stepKey(run, { ...origin, state: { ...state, cwd: "/" } }),
      stepKey(run, { ...origin, state: { ...state, env: { A: "1", B: "3" } } }),
      stepKey(run, { ...origin, state: { ...state, env: { A: "1" } } }),
      stepKey(copy, origin),
      stepKey({ ...copy, filesHash: "2".repeat(64) }, origin),
      stepKey({ ...copy, mode: "755" }, origin),
      stepKey({ ...copy, source: "ab", target: "" }, origin),
    ];
    expect(new Set(keys).size).toBe(keys.length);
    for (const key of keys) expect(key).toMatch(/^[0-9a-f]{64}$/);
  });

  test("is the same for the same step, forced or not, whatever the order of its variables", () => {
    const other = { ...origin, state: { ...state, env: { B: "2", A: "1" } } };
    expect(stepKey({ ...run, force: true }, other)).toBe(stepKey(run, origin));
  });
});

test.each([
  ["folder/*", { path: "folder", isPattern: true }],
  ["./folder/", { path: "folder", isPattern: false }],
  [".", { path: "", isPattern: false }],
  ["a/**/b.txt", { path: "a", isPattern: true }],
  ["*.txt", { path: "", isPattern: true }],
  ["a/b/c.txt", { path: "a/b/c.txt", isPattern: false }],
])("the path of %j before its pattern", (source, parts) => {
  expect(plainSource(source)).toEqual(parts);
});

test.each([
  ["/srv//x/./y/", null, "/srv/x/y"],
  ["app", "/srv", "/srv/app"],
  ["app", null, "/app"],
  ["../../../etc", "/srv/x", "/etc"],
])("the directory %j from %j", (path, cwd, absolute) => {
  expect(absolutePath(path, cwd)).toBe(absolute);
});

test("the name of a template has a tag or not, and its own account or not", () => {
  expect(parseTemplateName("Web", "alice")).toEqual({ name: "web", tag: null });
  expect(parseTemplateName("alice/web:v1.2", "alice")).toEqual({ name: "web", tag: "v1.2" });
  for (const text of ["", "bob/web", "a:", ":a", "a:b:c", "-a", "a b", `${"a".repeat(100)}:${"b".repeat(100)}`]) {
    expect([text, parseTemplateName(text, "alice")]).toEqual([text, null]);
  }
  expect(requireTemplateTag("web:v1", "web")).toBe("v1");
  expect(() => requireTemplateTag("other:v1", "web")).toThrow("tag 'other:v1' must have only");
  expect(newTemplateId()).toMatch(/^[a-z0-9]{20}$/);
});

describe("the log of a build", () => {
  test("takes no more output when it is full, but every line of the build itself", () => {
    const log = new BuildLog(() => 5);
    for (let count = 0; count < 2 * LOG_ENTRIES_COUNT_MAX; count++) log.output("1", "x");
    log.say("1", "failed", "error");
    expect(log.entries).toHaveLength(LOG_ENTRIES_COUNT_MAX + 2);
    expect(log.entries.slice(-2)).toEqual([
      { at: 5, level: "warn", step: "1", message: "the log is full: further output is not kept" },
      { at: 5, level: "error", step: "1", message: "failed" },
    ]);
  });

  test("is bounded in characters, and so is each line", () => {
    const log = new BuildLog(() => 5);
    const lines = new OutputLines((line) => log.output("1", line));
    for (let count = 0; count < 100; count++) lines.take(Buffer.alloc(65_536, "x"));
    lines.end();
    const lengths = log.entries.map(({ message }) => message.length);
    expect(lengths.reduce((sum, length) => sum + length, 0)).toBeLessThan(1_200_000);
    expect(Math.max(...lengths)).toBeLessThanOrEqual(4096);
  });

  test("has the lines of output, however they are cut", () => {
    const text: string[] = [];
    const lines = new OutputLines((line) => text.push(line));
    for (const byte of Buffer.from("é one\r\ntwo\n\nrest")) lines.take(new Uint8Array([byte]));
    lines.end();
    expect(text).toEqual(["é one", "two", "", "rest"]);
  });
});
