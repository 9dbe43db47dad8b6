import { expect, test } from "bun:test";
import { defaultsOf } from "../../../src/oci/image-config.ts";

test("keeps the well-formed variables of a config, and the last one of each name", () => {
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

test("an empty config adds nothing to the image", () => {
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

test("omits values beyond an image's limits", () => {
  const Env = Array.from({ length: 3000 }, (_, n) => `V${n}=${"x".repeat(200)}`);
  const { variables } = defaultsOf({ Env });
  const bytes = Object.entries(variables).reduce((sum, [name, value]) => sum + name.length + value.length, 0);
  expect(bytes).toBeLessThanOrEqual(131_072);
  expect(Object.keys(variables).length).toBeGreaterThan(600);
  expect(Object.keys(defaultsOf({ Env: Env.map((entry) => entry.slice(0, 8)) }).variables)).toHaveLength(1000);
});

test("reads the directory of this service's images from a label, which must be a path", () => {
  const cwd = (text: unknown) => defaultsOf({ Labels: { "coppice.cwd": text } }).cwd;
  expect(cwd("/work//dir")).toBe("/work/dir");
  for (const text of ["relative", "", "/a/../b", `/${"x".repeat(5000)}`, "/a\0", 1, null]) expect(cwd(text)).toBeNull();
});
