import { randomBytes } from "node:crypto";
import { mkdir, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";

/** Less than this is not worth an asset. */
const MARGIN_BYTES = 65_536;

/**
 * Builds `bare-server.ts` as the appliance is built, filled up to the size of an executable: a start reads the file.
 * @returns its path in `directory`
 */
export async function buildBareProgram(directory: string, like: string): Promise<string> {
  const bare = await build(join(directory, "bare"), []);
  const fillBytes = (await stat(like)).size - (await stat(bare)).size;
  if (fillBytes < MARGIN_BYTES) return bare;
  const assets = join(directory, "assets");
  await mkdir(assets);
  await writeFile(join(assets, "fill"), randomBytes(fillBytes));
  return await build(join(directory, "filled"), [assets]);
}

async function build(outfile: string, assets: string[]): Promise<string> {
  const result = await Bun.build({
    entrypoints: [join(import.meta.dir, "bare-server.ts")],
    target: "bun",
    format: "esm",
    bytecode: true,
    minify: { syntax: true },
    define: { "process.env.NODE_ENV": '"production"' },
    compile: { target: "bun-linux-x64", outfile, assets, autoloadDotenv: false, autoloadBunfig: false },
  });
  if (!result.success) throw new AggregateError(result.logs, "the bundler failed");
  return outfile;
}
