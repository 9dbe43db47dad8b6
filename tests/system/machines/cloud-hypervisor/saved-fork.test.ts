/** Saved forks of machines of Cloud Hypervisor. A stand-in replaces the program. */
import { afterAll, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { NotResumableError } from "../../../../src/vm/machine-end.ts";
import type { ForkPoint } from "../../../../src/vm/vmm.ts";
import { SHAPE, StandInHost, violationsOf } from "../../../support/cloud-hypervisor/cloud-hypervisor.ts";
import {
  copyOf,
  counting,
  fork,
  newPath,
  nothingIsLeft,
  scratchCopy,
} from "../../../support/cloud-hypervisor/forks.ts";
import { failureOf } from "../../../support/failures.ts";

setDefaultTimeout(60_000);

const NEVER = new AbortController().signal;
let host: StandInHost;
beforeAll(async () => {
  host = await StandInHost.open();
});
afterAll(() => host[Symbol.asyncDispose]());
beforeEach(() => host.control({}));

const violations = (machine: Parameters<StandInHost["transcript"]>[0]) => violationsOf(host.transcript(machine));

describe("a saved fork", () => {
  async function saved() {
    const directory = newPath(host, "saved");
    mkdirSync(directory, { mode: 0o700 });
    await using vm = await counting(host);
    const { point, scratch } = await fork(host, vm);
    await point.save(directory);
    const sizes = ["memory", "state"].map((name) => statSync(join(directory, name)).size);
    expect(point.savedBytes).toBe(sizes.reduce((sum, size) => sum + size, 0));
    await point[Symbol.asyncDispose]();
    return { directory, scratch };
  }
  const load = async (directory: string): Promise<ForkPoint> => {
    const point = await host.vmm.loadFork?.(directory);
    if (point === undefined) throw new Error("it cannot load");
    return point;
  };

  test("is loaded after its machine is gone, also compressed, and its files are for root alone", async () => {
    const { directory, scratch } = await saved();
    await nothingIsLeft(host);
    expect(readdirSync(directory).sort()).toEqual(["fork.json", "memory", "state"]);
    for (const name of readdirSync(directory)) expect(statSync(join(directory, name)).mode & 0o777).toBe(0o600);
    // The memory is zero but for one byte.
    const { size, blocks } = statSync(join(directory, "memory"));
    expect([size, blocks * 512 < 4_194_304]).toEqual([SHAPE.memoryBytes, true]);
    for (const isCompressed of [false, true]) {
      if (isCompressed) await host.vmm.compressFork?.(directory, NEVER);
      await using point = await load(directory);
      expect([point.pausedMs, point.copiedBytes, point.shape]).toEqual([0, 0, SHAPE]);
      await using copy = await copyOf(host, point, scratchCopy(host, scratch));
      const memory = readFileSync(join(copy.directory, "snapshot/memory-ranges"));
      expect([memory.byteLength, memory.at(-1), memory.at(0)]).toEqual([SHAPE.memoryBytes, 1, 0]);
      expect(violations(copy)).toEqual([]);
    }
    await nothingIsLeft(host);
  });

  test("is refused with the reason when something differs, and leaves nothing behind", async () => {
    const { directory } = await saved();
    expect(await host.vmm.checkFork?.(directory)).toBeUndefined();
    const path = join(directory, "fork.json");
    const manifest = JSON.parse(readFileSync(path, "utf8"));
    const refusal = async (change: object): Promise<string> => {
      writeFileSync(path, JSON.stringify({ ...manifest, ...change }));
      const error = await failureOf(load(directory));
      expect(error).toBeInstanceOf(NotResumableError);
      expect(readdirSync(host.vmsDirectory)).toEqual([]);
      return (error as Error).message;
    };
    const origin = async (change: object): Promise<string> => {
      const message = await refusal({ origin: { ...manifest.origin, ...change } });
      // It is known without the memory.
      expect(await failureOf(host.vmm.checkFork?.(directory))).toMatchObject({ name: "NotResumableError", message });
      return message;
    };
    expect(await origin({ cloudHypervisor: "52.0" })).toBe(
      "Cloud Hypervisor v52.0 saved its memory, and this host has v53.0",
    );
    expect(await origin({ processor: "other" })).toContain("another processor");
    expect(await origin({ agentProtocol: 1 })).toContain("its agent speaks version 1");
    expect(await origin({ machine: "other" })).toContain("other virtual machines");
    expect(await refusal({ vmm: "qemu" })).toBe("QEMU saved its memory, and machines run with Cloud Hypervisor now");
    expect(await refusal({ config: "{}" })).toContain("missing or damaged");
    expect(await refusal({ disks: [] })).toContain("missing or damaged");
    expect(await refusal({ memory: { ...manifest.memory, sizeBytes: 1 } })).toBe(
      "the file memory of its memory is damaged",
    );
    const other = "0".repeat(64);
    expect(await refusal({ state: { ...manifest.state, sha256: other } })).toBe(
      "the file state of its memory is damaged",
    );
  });
});
