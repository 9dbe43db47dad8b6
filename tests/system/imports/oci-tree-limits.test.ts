import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { chmod, chown, link, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { requireWithinLimits, treeUsage, watchTree } from "../../../src/oci/tree-limits.ts";
import { start } from "../../../src/system/exec.ts";
import { throwing } from "../../support/failures.ts";
import { builtAssets } from "../../support/guests/vm.ts";

const BOUNDS = { launcher: builtAssets().launcher, timeoutMs: 60_000, signal: new AbortController().signal };

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-tree-"));
});
afterEach(async () => {
  await rm(directory, { recursive: true, force: true });
});

describe("the content of a tree", () => {
  test("is counted: each name, and the allocated bytes", async () => {
    await mkdir(join(directory, "below"));
    await writeFile(join(directory, "below", "a"), Buffer.alloc(100_000, "a"));
    await link(join(directory, "below", "a"), join(directory, "b"));
    const { bytes, entries } = await treeUsage(directory, BOUNDS);
    expect(entries).toBe(3);
    expect(bytes).toBeGreaterThanOrEqual(100_000);
    expect(bytes).toBeLessThan(200_000);
  });

  test("is counted although files vanish meanwhile", async () => {
    const churn = 'cd "$1" && while :; do mkdir a b c; touch a/1 b/2 c/3; rm -r a b c; done';
    const changing = start({ argv: ["sh", "-c", churn, "sh", directory], extraFds: [], stderr: "ignore" });
    await using _ = {
      [Symbol.asyncDispose]: async () => {
        changing.kill("SIGKILL");
        await changing.exited;
      },
    };
    for (let count = 0; count < 40; count++)
      expect((await treeUsage(directory, BOUNDS)).entries).toBeLessThanOrEqual(6);
  });

  test("is counted by a jailed program that may read files of all users, and do nothing else", async () => {
    await mkdir(join(directory, "closed"));
    await writeFile(join(directory, "closed", "a"), "");
    await chown(join(directory, "closed"), 4_294_967_294, 12);
    await chmod(join(directory, "closed"), 0);
    expect((await treeUsage(directory, BOUNDS)).entries).toBe(2);
    // Without a jail it would need no launcher.
    expect(await throwing(treeUsage(directory, { ...BOUNDS, launcher: "/nowhere" }))).toThrow();
  });

  test("fails the import when it cannot be counted", async () => {
    const missing = join(directory, "missing");
    expect(await throwing(treeUsage(missing, BOUNDS))).toThrow(/No such file/);
    const limits = { bytesMax: 1, entriesMax: 1 };
    await using watch = watchTree(missing, limits, BOUNDS);
    const { promise, resolve } = Promise.withResolvers<void>();
    watch.exceeded.addEventListener("abort", () => resolve());
    await promise;
    expect(String(watch.exceeded.reason)).toContain("No such file");
  });
});

test("a refusal names the limits, or says that the image unpacks to more", async () => {
  await writeFile(join(directory, "a"), "a");
  await writeFile(join(directory, "b"), "b");
  const refused = async (limits: Parameters<typeof requireWithinLimits>[1]): Promise<unknown> =>
    await requireWithinLimits(directory, limits, BOUNDS).catch((error: unknown) => error);
  const many = { bytesMax: 1_000_000, entriesMax: 1 };
  const large = { bytesMax: 1, entriesMax: 10 };
  const refusals = { bytes: "too large", entries: "too many" };
  const error = "payload_too_large";
  expect(await refused(many)).toMatchObject({ code: error, message: expect.stringContaining("more than the 1 files") });
  expect(await refused(large)).toMatchObject({ code: error, message: expect.stringContaining("unpacks to more") });
  expect(await refused({ ...many, refusals })).toMatchObject({ code: error, message: "too many" });
  expect(await refused({ ...large, refusals })).toMatchObject({ code: error, message: "too large" });
});
