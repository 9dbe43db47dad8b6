/**
 * Builds dist/coppice: `bun src/tools/build.ts [--revision TEXT] [--outfile PATH]`. It is not part of the executable.
 */
import { mkdir, readFile, rename, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { type AssetManifest, assetNames, EMBEDDED_DIRECTORY, manifestOf } from "../vm/assets.ts";
import { buildWeb, enterRoot, webDirectory } from "./web.ts";

const root = join(import.meta.dir, "../..");
const assetDirectory = join(root, "build/assets");
const embeddedDirectory = join(root, "build", EMBEDDED_DIRECTORY);
/** Takes half a second for the kernel; higher levels take seconds and save little. */
const ZSTD_LEVEL = 9;

/** libsql loads its addon by a computed name, which the bundler cannot resolve. */
const staticLibsql: Bun.BunPlugin = {
  name: "static-libsql",
  setup(build) {
    build.onLoad({ filter: /node_modules\/libsql\/(index|promise)\.js$/ }, async ({ path }) => {
      const source = await readFile(path, "utf8");
      const contents = source.replace(
        /return require\(`@libsql\/\$\{target\}`\)/,
        'return require("@libsql/linux-x64-gnu")',
      );
      if (contents === source) throw new Error(`${path} does not load its addon the way the build expects`);
      return { contents, loader: "js" };
    });
  },
};

/** Compresses the assets if they changed. The manifest is written last, so its presence proves that all are complete. */
async function embedAssets(): Promise<AssetManifest> {
  const manifest = await manifestOf(assetDirectory);
  const manifestPath = join(embeddedDirectory, "manifest.json");
  const previous = Bun.file(manifestPath);
  if ((await previous.exists()) && ((await previous.json()) as AssetManifest).hash === manifest.hash) return manifest;
  await rm(embeddedDirectory, { recursive: true, force: true });
  await mkdir(embeddedDirectory, { recursive: true });
  for (const name of assetNames()) {
    const content = await Bun.file(join(assetDirectory, name)).bytes();
    await Bun.write(join(embeddedDirectory, `${name}.zst`), await Bun.zstdCompress(content, { level: ZSTD_LEVEL }));
  }
  await Bun.write(manifestPath, JSON.stringify(manifest));
  return manifest;
}

/** The program of the process that connects to the outside, as one text; see network/gate/process.ts. */
async function gateProgram(): Promise<string> {
  const result = await Bun.build({
    entrypoints: [join(root, "src/network/gate/main.ts")],
    target: "bun",
    minify: { syntax: true, whitespace: true },
  });
  const [output] = result.outputs;
  if (!result.success || output === undefined) throw new AggregateError(result.logs, "the bundler failed");
  return await output.text();
}

async function build(revision: string, outfile: string): Promise<void> {
  const startedAt = performance.now();
  const manifest = await embedAssets();
  await buildWeb();
  // The bundler puts the file name into the executable, and a failed build must not replace the previous executable.
  const staging = join(root, "build/executable");
  await mkdir(join(outfile, ".."), { recursive: true });
  const result = await Bun.build({
    // Workers are found by the names of their entry points.
    entrypoints: ["main.ts", "storage/tree/grep-worker.ts", "db/scans/scan-worker.ts", "cli/bench/worker.ts"].map(
      (name) => join(root, "src", name),
    ),
    plugins: [staticLibsql],
    target: "bun",
    format: "esm",
    bytecode: true,
    // Modules that a command does not import are neither read nor decoded: the daemon starts without the MCP library, for example.
    splitting: true,
    sourcemap: "linked",
    // Elysia reads the source text of handlers: more minification would change its behaviour.
    minify: { syntax: true },
    define: {
      "process.env.NODE_ENV": '"production"',
      BUILD_REVISION: JSON.stringify(revision),
      BUILD_GATE: JSON.stringify(await gateProgram()),
    },
    compile: {
      target: "bun-linux-x64",
      outfile: join(staging, "coppice"),
      assets: [embeddedDirectory, webDirectory],
      // The working directory must not configure the executable.
      autoloadDotenv: false,
      autoloadBunfig: false,
    },
  });
  if (!result.success) throw new AggregateError(result.logs, "the bundler failed");
  await rename(join(staging, "coppice"), outfile);
  const size = Math.round(Bun.file(outfile).size / 1024 ** 2);
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
  process.stdout.write(
    `${outfile}: ${size} MiB, revision ${revision}, assets ${manifest.hash.slice(0, 12)}, ${seconds} s\n`,
  );
}

const { values } = parseArgs({
  options: { revision: { type: "string", default: "unknown" }, outfile: { type: "string", default: "dist/coppice" } },
});
enterRoot();
await build(values.revision, resolve(root, values.outfile));
