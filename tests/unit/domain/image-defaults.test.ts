import { describe, expect, test } from "bun:test";
import {
  checkVariables,
  fittingVariables,
  haveSameDefaults,
  type ImageDefaults,
  inheritedVariables,
  onImage,
  resultDefaults,
  VARIABLES_BYTES_MAX,
  VARIABLES_COUNT_MAX,
} from "../../../src/domain/image-defaults.ts";
import { ARGUMENT_BYTES_MAX } from "../../../src/domain/instance.ts";
import { type CheckedSpawn, checkSpawn, type SpawnInput } from "../../../src/domain/spawn.ts";

const LIMITS = {
  ...{ instanceTimeoutSecondsMax: 3600, vcpusDefault: 1, vcpusMax: 1, memoryBytesDefault: 1, memoryBytesMax: 1 },
  ...{ diskBytesDefault: 1, diskBytesMax: 1 },
};
const checked = (fields: Partial<SpawnInput>): CheckedSpawn =>
  checkSpawn({ image: "tag:base", command: "echo hi", inherit: true, ...fields }, LIMITS);
const image: ImageDefaults = {
  variables: { PATH: "/opt/bin", HOME: "/home/app", LANG: "C", ["__proto__"]: "own" },
  cwd: "/srv",
};
const none: ImageDefaults = { variables: {}, cwd: null };

describe("a command that inherits", () => {
  test("gets all variables of the image with a shell, and only PATH without one", () => {
    expect(inheritedVariables(checked({ shell: true }), image)).toEqual(image.variables);
    expect(Object.keys(inheritedVariables(checked({ shell: true }), image))).toContain("__proto__");
    expect(inheritedVariables(checked({}), image)).toEqual({ PATH: "/opt/bin" });
    expect(inheritedVariables(checked({ shell: true, unset: ["LANG", "NOT_THERE"] }), image)).not.toHaveProperty(
      "LANG",
    );
    expect(inheritedVariables(checked({ unset: ["PATH"] }), image)).toEqual({});
    expect(inheritedVariables(checked({}), { ...image, variables: { PATH: "" } })).toEqual({});
    expect(inheritedVariables(checked({ shell: true, inherit: false }), image)).toEqual({});
  });

  test("starts in its own directory, in that of the image, or at the root", () => {
    expect(onImage(checked({ cwd: "/own/" }), image).cwd).toBe("/own");
    expect(onImage(checked({}), image).cwd).toBe("/srv");
    expect(onImage(checked({}), none).cwd).toBe("/");
    expect(onImage(checked({ inherit: false }), image).cwd).toBe("/root");
  });

  test("has the shell that SHELL names in the request or the image", () => {
    const bash = { ...image, variables: { SHELL: "/bin/bash" } };
    const argv = (fields: Partial<SpawnInput>, on: ImageDefaults = bash) =>
      onImage(checked({ shell: true, ...fields }), on).argv;
    expect(argv({})).toEqual(["/bin/bash", "-c", "echo hi"]);
    expect(argv({ args: ["a", "b"] })).toEqual(["/bin/bash", "-c", "echo hi", "/bin/bash", "a", "b"]);
    expect(argv({ env: { SHELL: "/bin/ash" } })[0]).toBe("/bin/ash");
    expect(argv({ env: { SHELL: "" } })[0]).toBe("/bin/sh");
    expect(argv({ unset: ["SHELL"] })[0]).toBe("/bin/sh");
    expect(argv({}, image)[0]).toBe("/bin/sh");
    expect(argv({ shell: false })).toEqual(["echo hi"]);
    expect(argv({ inherit: false })[0]).toBe("/bin/sh");
  });

  test("must fit execve together with the variables of the image", () => {
    const args = Array.from({ length: 15 }, () => "x".repeat(ARGUMENT_BYTES_MAX));
    const much = { variables: { A: "x".repeat(130_000) }, cwd: null };
    expect(onImage(checked({ args, shell: true }), none).argv).toHaveLength(19);
    expect(() => onImage(checked({ args, shell: true }), much)).toThrow("args and env must be at most");
    expect(onImage(checked({ args }), much).argv).toHaveLength(16);
  });
});

describe("the image of a run", () => {
  const result = (fields: Partial<SpawnInput>) => resultDefaults(checked(fields), image);

  test("has what its parent has", () => {
    expect(result({ env: { NEW: "1" }, unset: ["LANG"], cwd: "/own" })).toEqual(image);
    expect(haveSameDefaults(result({ cwd: "/own" }), image)).toBe(true);
  });

  test("keeps variables and the directory of a run that requests it", () => {
    const { LANG: _lang, ...rest } = image.variables;
    const env = { NEW: "1", HOME: "/root" };
    expect(result({ env, unset: ["LANG"], preserveEnv: true })).toEqual({
      variables: { ...rest, ...env },
      cwd: "/srv",
    });
    expect(result({ cwd: "/own", preserveCwd: true })).toEqual({ ...image, cwd: "/own" });
    expect(result({ env: { LANG: "de" }, unset: ["LANG"], preserveEnv: true }).variables["LANG"]).toBe("de");
  });

  test("is another one only if something is different", () => {
    const isSame = (fields: Partial<SpawnInput>) => haveSameDefaults(result(fields), image);
    expect(isSame({ env: { LANG: "C" }, preserveEnv: true, cwd: "/srv", preserveCwd: true })).toBe(true);
    expect(isSame({ env: { LANG: "D" }, preserveEnv: true })).toBe(false);
    expect(isSame({ env: { X: "" }, preserveEnv: true })).toBe(false);
    expect(isSame({ unset: ["LANG"], preserveEnv: true })).toBe(false);
    expect(isSame({ unset: ["LANG"], env: { MORE: "C" }, preserveEnv: true })).toBe(false);
    expect(isSame({ cwd: "/", preserveCwd: true })).toBe(false);
    // The value of a name that the other has not, and that every object inherits.
    expect(haveSameDefaults({ variables: { toString: "x" }, cwd: null }, { variables: { a: "x" }, cwd: null })).toBe(
      false,
    );
  });
});

describe("the variables of an image", () => {
  const many = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, n) => [`V${n}`, "x"]));

  test("are bounded", () => {
    expect(() => checkVariables(many(VARIABLES_COUNT_MAX))).not.toThrow();
    expect(() => checkVariables(many(VARIABLES_COUNT_MAX + 1))).toThrow("at most 1000 variables");
    expect(() => checkVariables({ A: "x".repeat(65_535), B: "x".repeat(VARIABLES_BYTES_MAX - 65_537) })).not.toThrow();
    expect(() => checkVariables({ A: "x".repeat(65_535), B: "x".repeat(VARIABLES_BYTES_MAX - 65_536) })).toThrow(
      "131072 bytes",
    );
    // One that execve cannot take.
    expect(() => checkVariables({ A: "x".repeat(ARGUMENT_BYTES_MAX - 1) })).toThrow();
  });

  test("fit one by one", () => {
    const [big, small] = [["A", "x".repeat(131_000)] as const, ["C", "1"] as const];
    expect(fittingVariables([big, ["B", "x".repeat(1000)], small])).toEqual([big, small]);
  });
});

test("names to unset are texts that execve could take", () => {
  const long = Array.from({ length: 21 }, (_, n) => String(n).padEnd(100_000, "x"));
  expect(checked({ unset: long.slice(0, 20) }).unset).toHaveLength(20);
  expect(() => checked({ unset: long })).toThrow("env must be at most");
  expect(() => checked({ unset: ["A\0"] })).toThrow("NUL");
});
