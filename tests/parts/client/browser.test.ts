import { expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, relative, resolve } from "node:path";

const ROOT = resolve(import.meta.dir, "../../..");

/** The modules of a bundle for browsers, from the root of the repository, as its source map lists them. */
async function bundled(entrypoints: readonly string[]): Promise<string[]> {
  const outdir = await mkdtemp(join(tmpdir(), "coppice-bundle-"));
  await using _removed = { [Symbol.asyncDispose]: () => rm(outdir, { recursive: true }) };
  const built = await Bun.build({
    entrypoints: entrypoints.map((path) => join(ROOT, path)),
    outdir,
    // Maps name their sources from the directory of the output, in which no other directory may lie then.
    naming: "[name].[ext]",
    target: "browser",
    sourcemap: "external",
  });
  const code = await Promise.all(
    built.outputs.filter(({ kind }) => kind !== "sourcemap").map((output) => output.text()),
  );
  expect(code.join("\n")).not.toMatch(/["'](?:node|bun):/);
  const maps = built.outputs.filter(({ kind }) => kind === "sourcemap");
  const sources = await Promise.all(
    maps.map(async (map) => {
      const { sources } = (await map.json()) as { sources: string[] };
      return sources.map((source) => relative(ROOT, resolve(dirname(map.path), source)));
    }),
  );
  return sources.flat();
}

test("a bundle of the client contains no module of the server", async () => {
  const files = await Array.fromAsync(new Bun.Glob("src/client/*.ts").scan({ cwd: ROOT }));
  const modules = new Set(await bundled(files));
  expect([...modules]).toContain("src/client/client.ts");
  const foreign = [...modules].filter(
    (path) =>
      !/^(src\/(client|domain)\/|node_modules\/(@elysiajs\/eden|@noble\/hashes|eventsource-parser)\/)/.test(path),
  );
  expect(foreign).toEqual([]);
});

test("the list shows the modules of a bundle", async () => {
  expect(await bundled(["src/service/status.ts"])).toContain("src/service/status.ts");
  expect((await bundled(["src/api/errors.ts"])).filter((path) => path.startsWith("src/api/"))).not.toEqual([]);
});
