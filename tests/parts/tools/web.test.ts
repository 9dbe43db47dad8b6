import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { cp, mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { brotliDecompressSync, gunzipSync } from "node:zlib";
import { bundledPackages } from "../../../src/tools/release-notices.ts";
import { type BuiltWeb, buildWeb } from "../../../src/tools/web.ts";

const ROOT = resolve(import.meta.dir, "../../..");
/** Limit of the first visit's downloads, with an empty cache, in `bytes`. */
const ALL_BYTES_MAX = 300 * 1024;
/** Limit of the downloads before the first view is drawn, in `bytes`. */
const FIRST_BYTES_MAX = 60 * 1024;
/** Addresses that stand in the text of a package, and that nothing asks for. */
const MENTIONED = [
  /^http:\/\/www\.w3\.org\/(?:2000\/svg|1999\/xhtml|1999\/xlink|1998\/Math\/MathML)$/,
  // Elysia's client puts paths behind it to take them apart.
  /^http:\/\/e\.ly$/,
  // A base that does not exist, for parsing relative addresses.
  /^http:\/\/\w+\.invalid$/,
  // Warnings of highlight.js.
  /^https:\/\/github\.com\/highlightjs\//,
];

let scratch: string;
let directory: string;
let built: BuiltWeb;
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), "coppice-web-"));
  directory = join(scratch, "web");
  built = await buildWeb(join(ROOT, "src/web"), directory);
});
afterAll(async () => {
  await rm(scratch, { recursive: true, force: true });
});

const sumOf = (names: readonly string[], encoding: "br" | "gzip"): number =>
  names.reduce((sum, name) => sum + (built.manifest.files[name]?.bytes[encoding] ?? Number.NaN), 0);

describe("the bundle of the page", () => {
  test("is small, also for a browser that knows no brotli", () => {
    const all = Object.keys(built.manifest.files);
    expect(sumOf(all, "br")).toBeLessThanOrEqual(ALL_BYTES_MAX);
    expect(sumOf(all, "gzip")).toBeLessThanOrEqual(ALL_BYTES_MAX);
    const { script, style, preloads } = built.manifest;
    expect(sumOf([script, style, ...preloads], "br")).toBeLessThanOrEqual(FIRST_BYTES_MAX);
  });

  test("has each file as it is and compressed, as the manifest says, and nothing else", async () => {
    const names = Object.keys(built.manifest.files);
    expect((await readdir(directory)).sort()).toEqual(
      ["manifest.json", ...names.flatMap((name) => [name, `${name}.br`, `${name}.gz`])].sort(),
    );
    for (const [name, { type, bytes }] of Object.entries(built.manifest.files)) {
      const [plain, gzip, br] = await Promise.all(
        ["", ".gz", ".br"].map((end) => readFile(join(directory, name + end))),
      );
      expect({ identity: plain?.length, gzip: gzip?.length, br: br?.length }).toEqual(bytes);
      expect(gunzipSync(gzip as Buffer).equals(plain as Buffer)).toBe(true);
      expect(brotliDecompressSync(br as Buffer).equals(plain as Buffer)).toBe(true);
      const types = { css: "text/css; charset=utf-8", js: "text/javascript; charset=utf-8", svg: "image/svg+xml" };
      expect(type).toBe(types[name.slice(name.lastIndexOf(".") + 1) as keyof typeof types]);
    }
    expect(JSON.parse(await readFile(join(directory, "manifest.json"), "utf8"))).toEqual(built.manifest);
  });

  test("is the same wherever its sources lie", async () => {
    const copy = join(scratch, "another place");
    await cp(join(ROOT, "src"), join(copy, "src"), { recursive: true });
    await cp(join(ROOT, "package.json"), join(copy, "package.json"));
    await cp(join(ROOT, "tsconfig.json"), join(copy, "tsconfig.json"));
    // A copy, because the target of a link keeps its path, and paths count.
    for (const name of built.packages) {
      await cp(join(ROOT, "node_modules", name), join(copy, "node_modules", name), { recursive: true });
    }
    const argv = [process.execPath, join(copy, "src/tools/web.ts")];
    const { exitCode, stderr } = Bun.spawnSync(argv, { cwd: scratch, stdout: "ignore" });
    expect({ exitCode, stderr: stderr.toString() }).toEqual({ exitCode: 0, stderr: "" });
    const copied = join(copy, "build/web");
    expect((await readdir(copied)).sort()).toEqual((await readdir(directory)).sort());
    for (const name of await readdir(directory)) {
      const [one, two] = await Promise.all([directory, copied].map((from) => readFile(join(from, name))));
      expect((one as Buffer).equals(two as Buffer)).toBe(true);
    }
  });

  test("names no address outside, but for names of markup and words of packages", async () => {
    const addresses = await inBundle(/\b(?:https?|wss?):\/\/[a-z0-9][^\s"'`)\\$]*/gi);
    expect(addresses.filter(([, address = ""]) => !MENTIONED.some((mention) => mention.test(address)))).toEqual([]);
    // The address of a style sheet's picture or font needs no scheme.
    expect(await inBundle(/@import|url\((?!["']?data:)[^)]*\)|\/\/# sourceMappingURL/g)).toEqual([]);
  });

  test("makes no code from text", async () => {
    expect(await inBundle(/\beval\(|\bnew Function\(|document\.write|insertAdjacentHTML|\bprocess\.env\b/g)).toEqual(
      [],
    );
  });

  test("has notices of all its packages", async () => {
    const noticed = (await bundledPackages(ROOT)).filter(({ text }) => text !== null).map(({ name }) => name);
    expect(built.packages.length).toBeGreaterThan(0);
    expect(built.packages.filter((name) => !noticed.includes(name))).toEqual([]);
  });
});

/** File and match of each place in the bundle. */
async function inBundle(pattern: RegExp): Promise<string[][]> {
  const matches: string[][] = [];
  for (const name of Object.keys(built.manifest.files)) {
    const text = await readFile(join(directory, name), "utf8");
    matches.push(...[...text.matchAll(pattern)].map(([match]) => [name, match]));
  }
  return matches;
}
