/** Data directories of releases: what was stored once stays readable. */
import { describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { mkdir, mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { Appliance } from "../../support/appliance/appliance.ts";
import { type Answers, type Contents, readAnswers } from "../../support/release-data/answers.ts";
import { execute, resultOf } from "../../support/runs.ts";

const KEPT = resolve(import.meta.dir, "../../support/release-data");
const UNPACK_MS = 60_000;
const releases = readdirSync(KEPT).flatMap((name) => /^(.+)\.tar\.zst$/.exec(name)?.[1] ?? []);

test("the first release has one", () => {
  expect(releases).toContain("0.1.0");
});

describe.each(releases)("the data directory of %s", (release) => {
  test("is read as it was, and runs continue from its images", async () => {
    const { contents, answers } = (await Bun.file(join(KEPT, `${release}.json`)).json()) as {
      contents: Contents;
      answers: Answers;
    };
    const home = await mkdtemp(join(tmpdir(), "coppice-test-release-"));
    await mkdir(join(home, "data"), { mode: 0o700 });
    const argv = ["tar", "-x", "-S", "--zstd", "--xattrs", "--xattrs-include=*"];
    const archive = join(KEPT, `${release}.tar.zst`);
    await run({ argv: [...argv, "-f", archive, "-C", join(home, "data")], timeoutMs: UNPACK_MS });
    await using appliance = await Appliance.start({ home });

    const present = await readAnswers(appliance, contents);
    for (const [path, answer] of Object.entries(answers)) {
      if (typeof answer === "string") expect([path, present[path]]).toEqual([path, answer]);
      else expect({ path, answer: present[path] }).toMatchObject({ path, answer: answer as object });
    }

    const spawned = await appliance.spawn({
      image: "tag:second",
      command: "/bin/tool",
      args: ["write", "/data/new", "n"],
    });
    const { image } = resultOf(await appliance.finished(spawned));
    const print = { image, command: "/bin/tool", args: ["print", "out", "err", "4"] };
    expect(await execute(appliance, print)).toMatchObject({ exit_code: 4, out: "out", err: "err" });
    const changes = (await (await appliance.fetch(`/images/${image}/diff`)).json()) as { changes?: unknown };
    expect(JSON.stringify(changes)).toContain("/data/new");
  });
});
