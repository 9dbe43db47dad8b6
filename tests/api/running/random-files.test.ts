/** A thousand random operations on the files of an instance, and the same ones in a directory. */
import { expect, setDefaultTimeout } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "../../../src/client/client.ts";
import { Api } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { runningInstance } from "../../support/api/running.ts";
import { compareRandomFiles } from "../../support/files/random-files.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";

const STEPS = Number(process.env["COPPICE_TEST_FILE_OPERATIONS"] ?? 1000);
// The first test may have to build the agent.
setDefaultTimeout(150_000 + STEPS * 100);

heldTest("random operations on files have the same outcomes as in a local directory", async () => {
  await using api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
  await using running = await runningInstance(api, "sleep 1000", { timeoutMs: 3_600_000 });
  const local = mkdtempSync(join(tmpdir(), "coppice-random-files-"));
  using _removed = { [Symbol.dispose]: () => rmSync(local, { recursive: true }) };
  mkdirSync(join(running.root, "work"));
  const succeeded = await compareRandomFiles({
    client: new Client({ url: api.url, token: api.token }),
    place: { instance: running.id },
    guest: "/work",
    local,
    link: async (target, path) => symlinkSync(target, Buffer.concat([Buffer.from(running.root), path])),
    random: seededRandom(seedOfTests()),
    steps: STEPS,
  });
  expect(succeeded).toBeGreaterThan(STEPS / 4);
});
