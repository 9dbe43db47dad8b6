import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync, readFileSync, readlinkSync, statSync } from "node:fs";
import { join } from "node:path";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { cgroupNamespace } from "../../../src/supervisor/machines/cgroups.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { parseExposition } from "../../support/exposition.ts";
import { execute, operationOf, running } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(180_000);

const MIB = 1_048_576;
const BLOCK_BYTES = 512;
const SHAPES = [
  { vcpus: 1, memory_bytes: 256 * MIB },
  { vcpus: 2, memory_bytes: 512 * MIB },
];

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let image: string;

beforeAll(async () => {
  ({ appliance, image } = owned.use(await BusyboxAppliance.start({ poolSize: 0 })));
});

afterAll(async () => {
  await owned.disposeAsync();
});

/** Memory that the daemon's anonymous files use, in `bytes`. */
function anonymousFiles(): number[] {
  const directory = `/proc/${appliance.pid}/fd`;
  return readdirSync(directory)
    .map((name) => join(directory, name))
    .filter((path) => readlinkSync(path).startsWith("/memfd:"))
    .map((path) => statSync(path).blocks * BLOCK_BYTES)
    .sort((a, b) => a - b);
}

const usedBudget = async (): Promise<number | undefined> => {
  const text = await (await fetch(`${appliance.url}/metrics`)).text();
  return parseExposition(text).value("coppice_budget_memory_bytes", { state: "used" });
};

/** The current control groups of machines. */
async function groups() {
  const tree = await openCgroupTree({ namespace: cgroupNamespace(appliance.dataDir) });
  // The process that connected for the import has one, too, and outlives it.
  return (await tree.list()).filter((name) => !name.startsWith("gate-")).map((name) => tree.open(name));
}

function memoryLimit(directories: readonly string[]): number {
  for (const path of directories.flatMap((group) => [`${group}/memory.limit_in_bytes`, `${group}/memory.max`])) {
    try {
      return Number(readFileSync(path, "utf8"));
    } catch (error) {
      // ENOENT: the file of the other version, or of another tree.
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    }
  }
  throw new Error("no tree limits memory");
}

/** Fills most of the guest's free memory, and prints the KiB: with less free, a guest makes no progress. */
const FILL = `
  free=$(awk '/MemAvailable/ {print $2}' /proc/meminfo)
  mkdir /fill && mount -t tmpfs -o size=$((free * 3 / 4))k none /fill
  dd if=/dev/zero of=/fill/all bs=64k 2>/dev/null
  du -k /fill/all | cut -f1`;

describe("guests that touch all of their memory", () => {
  test("leave no memory in use after their end, in several runs of two shapes", async () => {
    for (const resources of SHAPES) await execute(appliance, { image, command: "true", resources });
    // At least memory and state of two templates.
    await until("both templates are built", () => anonymousFiles().length >= 4);
    const before = anonymousFiles();
    const sizeBytes = before.reduce((sum, size) => sum + size, 0);
    expect(sizeBytes).toBeGreaterThan(100 * MIB);
    for (let round = 0; round < 2; round++) {
      for (const resources of SHAPES) {
        const request = { image, command: FILL, shell: true, resources, timeout: 60 };
        const { out } = await execute(appliance, request);
        expect(Number(out) * 1024).toBeGreaterThan(resources.memory_bytes / 2);
      }
    }
    // A machine may end a moment after its operation.
    await until("all machines are gone", async () => (await groups()).length === 0);
    await until("their budget is given back", async () => (await usedBudget()) === 0);
    await until("their memory is given back", () => Bun.deepEquals(anonymousFiles(), before));
  });
});

describe("the mapping of a template's memory into a clone", () => {
  const library = join(import.meta.dir, "../../../build/assets/memory.so");
  test.each([
    ["no descriptor", {}, "no GUEST_MEMORY_FD"],
    ["a descriptor of nothing", { GUEST_MEMORY_FD: "99" }, "no memory file"],
    ["a descriptor of something else", { GUEST_MEMORY_FD: "0" }, "not a memory file"],
  ])("refuses %s, before the program begins", async (_what, variables, reason) => {
    const program = Bun.spawn(["/bin/echo", "begun"], {
      env: { LD_PRELOAD: library, ...variables },
      stdin: Bun.file(import.meta.path),
      stdout: "pipe",
      stderr: "pipe",
    });
    const [out, error] = await Promise.all([new Response(program.stdout).text(), new Response(program.stderr).text()]);
    expect({ code: await program.exited, out, error }).toEqual({ code: 125, out: "", error: `memory.so: ${reason}\n` });
  });
});

test.each(SHAPES)("a machine of %o may use the memory that it was admitted with", async (resources) => {
  expect(await usedBudget()).toBe(0);
  const id = await appliance.spawn({ image, command: "sleep 600", shell: true, resources, disposable: true });
  await running(appliance, id);
  const [machine, ...others] = await groups();
  expect(others).toEqual([]);
  expect(memoryLimit(machine?.directories ?? [])).toBe((await usedBudget()) ?? 0);
  expect((await appliance.fetch(`/operations/${id}`, { method: "DELETE" })).status).toBe(202);
  await until("it ended", async () => (await operationOf(appliance, id))["status"] === "CANCELLED");
  await until("its budget is given back", async () => (await usedBudget()) === 0);
  await until("its machine is gone", async () => (await groups()).length === 0);
});
