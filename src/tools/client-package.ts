/**
 * Builds dist/coppice-client, the client as a package: `bun src/tools/client-package.ts [--outdir PATH]`. It is not part of
 * the executable.
 */
import { copyFile, cp, mkdir, rename, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import ts from "typescript";
import { VERSION } from "../version.ts";
import { FlatTypes } from "./flat-types.ts";
import { bundledPackages, packageNotices } from "./release-notices.ts";

const root = join(import.meta.dir, "../..");
const client = join(root, "src/client");
/** Oldest release of Node that is maintained, and with which the tests run the package. */
const NODE_VERSION_MIN = "22";

/** Bundles one module for all runtimes. Returns the names of the packages in it. */
async function bundle(outdir: string): Promise<ReadonlySet<string>> {
  const result = await Bun.build({
    entrypoints: [join(client, "index.ts")],
    target: "browser",
    format: "esm",
    minify: { syntax: true },
    sourcemap: "external",
  });
  if (!result.success) throw new AggregateError(result.logs, "the bundler failed");
  const [code, map] = [
    result.outputs.find(({ kind }) => kind === "entry-point"),
    result.outputs.find(({ kind }) => kind === "sourcemap"),
  ];
  if (code === undefined || map === undefined) throw new Error("the bundler wrote no module");
  await Bun.write(join(outdir, "index.js"), await code.text());
  const { sources } = (await map.json()) as { readonly sources: readonly string[] };
  return new Set(sources.flatMap((source) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(source)?.[1] ?? []));
}

/** The declarations of the client's modules, which refer to nothing of the server. */
async function declare(outdir: string): Promise<void> {
  const read = ts.readConfigFile(join(root, "tsconfig.json"), ts.sys.readFile);
  const { options } = ts.parseJsonConfigFileContent(read.config, ts.sys, root);
  const program = ts.createProgram([join(client, "index.ts")], {
    ...options,
    noEmit: false,
    declaration: true,
    emitDeclarationOnly: true,
    rootDir: join(root, "src"),
  });
  const typesPath = join(client, "types.ts");
  const types = new FlatTypes(program, typesPath, [{ alias: "Answer", name: "Answer" }]).declarations();
  const texts = new Map([["types.d.ts", `import type { Answer } from "./eden.js";\n\n${types}`]]);
  for (const file of program.getSourceFiles()) {
    if (!file.fileName.startsWith(`${client}/`) || file.fileName === typesPath) continue;
    const { emitSkipped } = program.emit(file, (path, text) => texts.set(path.replace(/^.*\//, ""), moduleNames(text)));
    if (emitSkipped) throw new Error(`${file.fileName} has no declarations`);
  }
  // Parts that no declaration of the others names may name what they are made of.
  const names = new Set(["index.d.ts"]);
  for (const name of names) {
    const text = texts.get(name) ?? "";
    for (const [, module] of text.matchAll(/from "\.\/([\w-]+)\.js"/g)) names.add(`${module}.d.ts`);
    await Bun.write(join(outdir, name), text);
  }
}

/**
 * Declarations lie in one directory, and name modules as they are named when they run; `Disposable` need not be in the
 * library of the user.
 */
function moduleNames(text: string): string {
  const named = text.replaceAll(/(from|import\()(\s*)"\.\.?\/(?:[\w.-]+\/)*([\w-]+)\.ts"/g, '$1$2"./$3.js"');
  return named.includes("Disposable") ? `/// <reference lib="esnext.disposable" />\n${named}` : named;
}

/** Replaces the package when it is complete. */
async function build(outdir: string): Promise<void> {
  const staging = join(root, "build/client-package");
  await rm(staging, { recursive: true, force: true });
  await mkdir(staging, { recursive: true });
  const [names] = await Promise.all([bundle(staging), declare(staging)]);
  const packages = (await bundledPackages(root)).filter(({ name }) => names.has(name));
  await Bun.write(join(staging, "THIRD-PARTY.txt"), packageNotices(packages));
  await copyFile(join(root, "LICENSE"), join(staging, "LICENSE"));
  await copyFile(join(client, "README.md"), join(staging, "README.md"));
  const manifest = {
    name: "coppice-client",
    version: VERSION,
    description:
      "A typed client of Coppice, which runs code in VM-isolated sandboxes whose file systems branch like Git",
    license: "Apache-2.0",
    type: "module",
    sideEffects: false,
    engines: { node: `>=${NODE_VERSION_MIN}` },
    exports: { ".": { types: "./index.d.ts", default: "./index.js" }, "./package.json": "./package.json" },
    types: "./index.d.ts",
  };
  await Bun.write(join(staging, "package.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  await rm(outdir, { recursive: true, force: true });
  await mkdir(join(outdir, ".."), { recursive: true });
  await rename(staging, outdir).catch(() => cp(staging, outdir, { recursive: true }));
}

const { values } = parseArgs({ options: { outdir: { type: "string", default: "dist/coppice-client" } } });
const outdir = resolve(root, values.outdir);
await build(outdir);
process.stdout.write(`${outdir}: version ${VERSION}\n`);
