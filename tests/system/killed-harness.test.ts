/** A test run or a benchmark that is killed leaves no daemon and no machine behind. */
import { expect, test } from "bun:test";
import { readdirSync, rmSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { processesWith } from "../support/appliance/appliance.ts";
import { until } from "../support/waiting.ts";

const SCRIPT = `
  const { Appliance } = await import(${JSON.stringify(resolve(import.meta.dir, "../support/appliance/appliance.ts"))});
  const { dataDir } = await Appliance.start();
  console.log(dataDir);
  await new Promise(() => setInterval(() => undefined, 1000));
`;

test("a daemon ends with the process that started it", async () => {
  await using harness = Bun.spawn([process.execPath, "-e", SCRIPT], { stdout: "pipe", stderr: "inherit" });
  const { value } = await harness.stdout.getReader().read();
  const home = dirname(
    Buffer.from(value ?? [])
      .toString()
      .trim(),
  );
  using _home = { [Symbol.dispose]: () => rmSync(home, { recursive: true }) };
  const alive = async () => (await processesWith(home)).length > 0;
  expect(readdirSync(home)).toContain("data");
  expect(await alive()).toBe(true);
  harness.kill("SIGKILL");
  await until("the daemon and its machines are gone", async () => !(await alive()));
}, 120_000);
