import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { DEBIAN_PACKAGES, missingPackages } from "../../../src/supervisor/health/programs.ts";

test("the missing packages are those of the programs that the host lacks, each once", () => {
  expect(missingPackages(() => null)).toEqual([...DEBIAN_PACKAGES]);
  expect(missingPackages((name) => `/usr/bin/${name}`)).toEqual([]);
  const lacks = ["qemu-system-x86_64", "mke2fs", "umoci"];
  expect(missingPackages((name) => (lacks.includes(name) ? null : `/usr/bin/${name}`))).toEqual([
    "e2fsprogs",
    "qemu-system-x86",
    "umoci",
  ]);
});

test("make installs for a demonstration what doctor asks for", () => {
  const makefile = readFileSync(join(resolve(import.meta.dir, "../../.."), "Makefile"), "utf8");
  const needs = /^NEEDS_OF_RUN := ((?:.*\\\n)*.*)$/m.exec(makefile)?.[1] ?? "";
  const packages = [...needs.matchAll(/:([\w-]+)/g)].map(([, name]) => name);
  expect([...new Set(packages)].sort()).toEqual([...DEBIAN_PACKAGES]);
});
