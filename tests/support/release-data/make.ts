/**
 * Writes the data directory of a release for the tests, and the appliance's answers about it.
 * Usage: COPPICE_TEST_EXECUTABLE=dist/coppice bun tests/support/release-data/make.ts
 */
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { VERSION } from "../../../src/version.ts";
import { Appliance } from "../appliance/appliance.ts";
import { pushImage } from "../images/images.ts";
import { Registry } from "../images/registry.ts";
import { resultOf, upload } from "../runs.ts";
import { type Contents, readAnswers } from "./answers.ts";

const COMMAND_MS = 60_000;
/** Directories of running work, and of files that the daemon creates again. */
const TRANSIENT = ["vms", "tmp", "scratch", "runtime", "assets", "lock", "control.sock"];

await using scratch = await scratchDirectory("/tmp", "release-data-");
const program = join(scratch.path, "tool");
const source = join(import.meta.dir, "tool.c");
await run({
  argv: ["musl-gcc", "-static", "-s", "-Os", "-Wall", "-Werror", "-o", program, source],
  timeoutMs: COMMAND_MS,
});
await using registry = await Registry.start();
const reference = await pushImage(registry, "tool:1", {
  layers: [
    [
      { path: "bin/", type: "directory" },
      { path: "bin/tool", mode: 0o755, content: await Bun.file(program).bytes() },
      { path: "data/", type: "directory" },
    ],
    [
      {
        path: "data/base",
        mode: 0o640,
        uid: 1000,
        gid: 1000,
        content: "of the base\n",
        xattrs: { "user.kind": "kept" },
      },
      { path: "data/link", type: "symlink", target: "base" },
      { path: "data/gone", content: "deleted later" },
    ],
    [{ path: "data/.wh.gone" }],
  ],
});
const appliance = await Appliance.start({ registries: [registry.host] });
const base = await appliance.importImage(reference, "base");
const file = await upload(appliance, "an uploaded file\n");
const runs = [
  { image: "tag:base", command: "/bin/tool", args: ["write", "/data/first", "one"], tag: "first" },
  { image: "tag:first", command: "/bin/tool", args: ["write", "/data/base", "changed"], tag: "second" },
  {
    image: "tag:second",
    command: "/bin/tool",
    args: ["print", "to stdout\n", "to stderr\n", "3"],
    files: { "/data/input": { uuid: file, mode: "0600" } },
    env: { NAME: "value" },
  },
];
const images = [base];
for (const request of runs) {
  const { image } = resultOf(await appliance.finished(await appliance.spawn(request)));
  if (image !== undefined) images.push(image);
}
const operations = (await (await appliance.fetch("/operations?limit=100")).json()) as { id: string }[];
const contents: Contents = { images: [...new Set(images)], operations: operations.map(({ id }) => id), file };
const answers = await readAnswers(appliance, contents);
await appliance.down();
for (const name of TRANSIENT) await rm(join(appliance.dataDir, name), { recursive: true, force: true });
const archive = join(import.meta.dir, `${VERSION}.tar.zst`);
const argv = ["tar", "-c", "-S", "--zstd", "--xattrs", "-f", archive, "-C", appliance.dataDir, "."];
await run({ argv, timeoutMs: COMMAND_MS });
await writeFile(join(import.meta.dir, `${VERSION}.json`), `${JSON.stringify({ contents, answers }, null, 2)}\n`);
await appliance[Symbol.asyncDispose]();
