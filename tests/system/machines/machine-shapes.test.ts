/** Shapes of machines: each from the smallest on runs a command, and an impossible one fails with the reason. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { join, resolve } from "node:path";
import { run } from "../../../src/system/exec.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { names, resultOf } from "../../support/runs.ts";

setDefaultTimeout(180_000);

const MIB = 1_048_576;
const TIB = 1_048_576 * MIB;
/** A kernel runs no program whose tables are larger than its memory, and the smallest guest has 128 MiB. */
const TABLES_BYTES_MAX = 32 * MIB;
const AGENT = join(resolve(import.meta.dir, "../../.."), "build/agent/agent");

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let image: string;

beforeAll(async () => {
  const flags = ["--vm-memory-bytes-max", `${4 * TIB}`, "--vm-memory-budget-bytes", `${16 * TIB}`];
  ({ appliance, image } = owned.use(await BusyboxAppliance.start({ poolSize: 1, flags })));
});
afterAll(async () => {
  await owned.disposeAsync();
});

test("the agent's tables leave room in the smallest guest", async () => {
  const { stdout } = await run({ argv: ["size", "-A", AGENT], timeoutMs: 10_000 });
  const bytes = Number(/^\.bss\s+(\d+)/m.exec(Buffer.from(stdout).toString())?.[1]);
  expect(bytes).toBeGreaterThan(0);
  expect(bytes).toBeLessThan(TABLES_BYTES_MAX);
});

test.each([
  [1, 1],
  [2, 128 * MIB],
  [1, 129 * MIB],
  [1, 1024 * MIB],
  [1, 2048 * MIB],
])("%d vCPUs and %d bytes of memory run a command, and make an image", async (vcpus, memory_bytes) => {
  const command = "nproc; echo x > /root/made";
  const request = { image, command, shell: true, resources: { vcpus, memory_bytes } };
  const result = resultOf(await appliance.finished(await appliance.spawn(request)));
  expect(result).toMatchObject({ exit_code: 0, out: `${vcpus}\n` });
  expect(await names(appliance, String(result.image), "/root")).toEqual(["made"]);
});

test("a shape that no machine can have ends its operations with the reason, and others run", async () => {
  const request = { image, command: "true", disposable: true };
  const hopeless = await appliance.spawn({ ...request, resources: { memory_bytes: 4 * TIB } });
  const others = [await appliance.spawn(request), await appliance.spawn(request)];
  for (const id of others) expect(resultOf(await appliance.finished(id)).exit_code).toBe(0);
  const { status, error } = await appliance.finished(hopeless);
  expect(status).toBe("FAILED");
  expect(error).toMatchObject({ error: "unavailable", details: { reason: "vmm_died" } });
  const { message } = error as { message: string };
  expect(message).toStartWith(`virtual machines with vcpus 1 and memory_bytes ${4 * TIB} cannot be started: `);
});
