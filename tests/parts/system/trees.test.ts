import { expect, setDefaultTimeout, test } from "bun:test";
import { mkdtemp, readdir, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { removeTrees, untrustedDirectory } from "../../../src/system/scratch.ts";

setDefaultTimeout(60_000);

/** The deepest of them has a path that is too long for a system call. */
const DEPTH = 4000;

const deepen = (path: string) =>
  run({
    argv: ["perl", "-e", `chdir shift or die; for (1..${DEPTH}) { mkdir "d" or die; chdir "d" or die }`, path],
    timeoutMs: 30_000,
  });

test("a hostile tree of any depth is removed, and nothing that it links to", async () => {
  const home = await mkdtemp(join(tmpdir(), "trees-"));
  const other = await mkdtemp(join(home, "other-"));
  await Bun.write(join(other, "file"), "kept");
  {
    await using directory = await untrustedDirectory(home, "-rf-");
    await deepen(directory.path);
    await symlink(other, join(directory.path, "link"));
  }
  expect(await readdir(home)).toEqual([other.slice(home.length + 1)]);
  expect(await readdir(other)).toEqual(["file"]);
  await removeTrees([home, join(home, "missing")]);
  expect(await Bun.file(join(other, "file")).exists()).toBe(false);
});
