import { expect, test } from "bun:test";
import { defaultsOf } from "../../../src/oci/image-config.ts";

test("variables of a config are kept as far as they are well-formed, the last of a name", () => {
  const Env = [
    "PATH=/bin",
    "EMPTY=",
    "EQUAL=a=b",
    "NO_VALUE",
    "=x",
    "N\0=1",
    "V=\0",
    7,
    null,
    "A=1",
    "A=2",
    "__proto__=x",
  ];
  const { variables, cwd } = defaultsOf({ Env, WorkingDir: "/kept", Entrypoint: ["/x"] });
  expect(Object.entries(variables)).toEqual([
    ["PATH", "/bin"],
    ["EMPTY", ""],
    ["EQUAL", "a=b"],
    ["A", "2"],
    ["__proto__", "x"],
  ]);
  expect(cwd).toBeNull();
});

test("a config without anything brings nothing along", () => {
  for (const config of [
    undefined,
    null,
    1,
    "x",
    [],
    {},
    { Env: null },
    { Env: "A=1" },
    { Env: { A: 1 }, Labels: [] },
  ]) {
    expect(defaultsOf(config)).toEqual({ variables: {}, cwd: null });
  }
});

test("more than an image may have is left out", () => {
  const Env = Array.from({ length: 3000 }, (_, n) => `V${n}=${"x".repeat(200)}`);
  const { variables } = defaultsOf({ Env });
  const bytes = Object.entries(variables).reduce((sum, [name, value]) => sum + name.length + value.length, 0);
  expect(bytes).toBeLessThanOrEqual(131_072);
  expect(Object.keys(variables).length).toBeGreaterThan(600);
  expect(Object.keys(defaultsOf({ Env: Env.map((entry) => entry.slice(0, 8)) }).variables)).toHaveLength(1000);
});

test("the directory of an image of this service is in a label, and must be a path", () => {
  const cwd = (text: unknown) => defaultsOf({ Labels: { "coppice.cwd": text } }).cwd;
  expect(cwd("/work//dir")).toBe("/work/dir");
  for (const text of ["relative", "", "/a/../b", `/${"x".repeat(5000)}`, "/a\0", 1, null]) expect(cwd(text)).toBeNull();
});
