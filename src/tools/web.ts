/**
 * Builds the page into build/web: `bun src/tools/web.ts [--watch]`. It is not part of the executable.
 *
 * The same sources give the same bytes: names depend on contents, and the output has nothing of the host or the time.
 */
import { mkdir, readFile, rename, rm, watch } from "node:fs/promises";
import { basename, join } from "node:path";
import { parseArgs } from "node:util";
import { brotliCompressSync, gzipSync, constants as zlib } from "node:zlib";
import {
  WEB_ASSETS_PATH,
  WEB_DIRECTORY,
  WEB_ENCODINGS,
  type WebEncoding,
  type WebFile,
  type WebManifest,
} from "../api/web/bundle.ts";

const root = join(import.meta.dir, "../..");
const webSources = join(root, "src/web");
/** The directory that the executable embeds. */
export const webDirectory = join(root, "build", WEB_DIRECTORY);

const TYPES: Readonly<Record<string, string>> = {
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  svg: "image/svg+xml",
};

const COMPRESS: Readonly<Record<WebEncoding, (content: Uint8Array) => Uint8Array>> = {
  identity: (content) => content,
  gzip: (content) => gzipSync(content, { level: zlib.Z_BEST_COMPRESSION }),
  br: (content) =>
    brotliCompressSync(content, {
      params: {
        [zlib.BROTLI_PARAM_QUALITY]: zlib.BROTLI_MAX_QUALITY,
        [zlib.BROTLI_PARAM_SIZE_HINT]: content.byteLength,
      },
    }),
};

interface Bundle {
  /** name of the entry point's module */
  readonly script: string;
  /** name of its style sheet, which holds those of all modules that it loads, the late ones too */
  readonly style: string | undefined;
  readonly preloads: readonly string[];
  readonly contents: ReadonlyMap<string, Uint8Array>;
  /** names of the packages whose code is in it */
  readonly packages: readonly string[];
}

/** The page as it was built. */
export interface BuiltWeb {
  readonly manifest: WebManifest;
  /** names of the packages whose code is in it, each once */
  readonly packages: readonly string[];
}

async function bundle(sources: string, entry: string, define: Readonly<Record<string, string>>): Promise<Bundle> {
  const result = await Bun.build({
    entrypoints: [join(sources, entry)],
    root: sources,
    metafile: true,
    target: "browser",
    format: "esm",
    splitting: true,
    minify: true,
    sourcemap: "none",
    publicPath: WEB_ASSETS_PATH,
    naming: { entry: "[name]-[hash].[ext]", chunk: "[name]-[hash].[ext]", asset: "[name]-[hash].[ext]" },
    define,
  });
  const contents = new Map<string, Uint8Array>();
  for (const output of result.outputs) contents.set(basename(output.path), new Uint8Array(await output.arrayBuffer()));
  const script = result.outputs.find(({ kind }) => kind === "entry-point");
  const { metafile } = result;
  if (!result.success || script === undefined || metafile === undefined) {
    throw new AggregateError(result.logs, "the bundler failed");
  }
  const { inputs, outputs } = metafile;
  const scriptName = basename(script.path);
  const own = outputs[script.path];
  const imported = (isNeeded: (kind: string) => boolean): string[] => {
    const files = new Set([script.path]);
    for (const path of files) {
      for (const { kind, path: other } of outputs[path]?.imports ?? []) if (isNeeded(kind)) files.add(other);
    }
    return [...files].map((path) => basename(path)).sort();
  };
  const style = own?.cssBundle === undefined ? undefined : basename(own.cssBundle);
  // The bundler also writes a style sheet for each late module, which no file names: the entry point's has the contents of all.
  const names = [...imported(() => true), ...(style === undefined ? [] : [style])];
  return {
    script: scriptName,
    style,
    preloads: imported((kind) => kind === "import-statement").filter((name) => name !== scriptName),
    packages: Object.keys(inputs).flatMap((path) => /.*\bnode_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []),
    contents: new Map(names.sort().map((name) => [name, contents.get(name) ?? missing(name)])),
  };
}

function missing(name: string): never {
  throw new Error(`the bundler names ${name}, and has not written it`);
}

/**
 * Builds the page from `sources` into `output`. A failed build leaves the directory as it is.
 * @throws AggregateError with the messages of the bundler
 */
export async function buildWeb(sources = webSources, output = webDirectory): Promise<BuiltWeb> {
  const work = await bundle(sources, "worker/worker.ts", {});
  const page = await bundle(sources, "main.tsx", {
    // A browser finds a worker by its address, which is known once it is built.
    BUILD_WORKER: JSON.stringify(WEB_ASSETS_PATH + work.script),
  });
  if (page.style === undefined) throw new Error("src/web/main.tsx imports no style sheet");
  const staging = `${output}.new`;
  await rm(staging, { recursive: true, force: true });
  await mkdir(staging, { recursive: true });
  const files: Record<string, WebFile> = {};
  for (const [name, content] of [...page.contents, ...work.contents]) files[name] = await store(staging, name, content);
  const picture = await readFile(join(sources, "icon.svg"));
  const icon = `icon-${new Bun.CryptoHasher("sha256").update(picture).digest("hex").slice(0, 8)}.svg`;
  files[icon] = await store(staging, icon, picture);
  const manifest: WebManifest = { script: page.script, style: page.style, preloads: page.preloads, icon, files };
  await Bun.write(join(staging, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  await rm(output, { recursive: true, force: true });
  await rename(staging, output);
  return { manifest, packages: [...new Set([...page.packages, ...work.packages])].sort() };
}

async function store(directory: string, name: string, content: Uint8Array): Promise<WebFile> {
  const type = TYPES[name.slice(name.lastIndexOf(".") + 1)];
  if (type === undefined) throw new Error(`the page has a file of an unknown type: ${name}`);
  const bytes: Record<WebEncoding, number> = { identity: 0, gzip: 0, br: 0 };
  for (const [encoding, suffix] of Object.entries(WEB_ENCODINGS) as [WebEncoding, string][]) {
    const stored = COMPRESS[encoding](content);
    bytes[encoding] = stored.byteLength;
    await Bun.write(join(directory, `${name}${suffix}`), stored);
  }
  return { type, bytes };
}

function report({ manifest: { files, script, style, preloads } }: BuiltWeb): string {
  const kib = (names: readonly string[], encoding: WebEncoding): string =>
    (names.reduce((sum, name) => sum + (files[name]?.bytes[encoding] ?? 0), 0) / 1024).toFixed(1);
  const all = Object.keys(files);
  const lines = all.map(
    (name) => `  ${name.padEnd(36)} ${kib([name], "identity").padStart(7)} KiB, br ${kib([name], "br")} KiB`,
  );
  const sum = `${kib(all, "identity")} KiB, gzip ${kib(all, "gzip")} KiB, br ${kib(all, "br")} KiB`;
  lines.push(`build/web: ${all.length} files, ${sum}; first paint br ${kib([script, style, ...preloads], "br")} KiB`);
  return `${lines.join("\n")}\n`;
}

/**
 * Makes the names of the built files independent of the working directory: the bundler's hashes include the paths of the
 * sources relative to it.
 */
export function enterRoot(): void {
  process.chdir(root);
}

/** Builds again after each change of the page's sources, until it is killed. A failed build is reported, and the next change starts another. */
async function watchSources(): Promise<void> {
  for await (const _change of watch(webSources, { recursive: true })) {
    const text = await buildWeb().then(report, (error: unknown) => `${Bun.inspect(error)}\n`);
    process.stdout.write(text);
  }
}

if (import.meta.main) {
  enterRoot();
  const { values } = parseArgs({ options: { watch: { type: "boolean", default: false } } });
  process.stdout.write(report(await buildWeb()));
  if (values.watch) await watchSources();
}
