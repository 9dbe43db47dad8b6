import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { silentLog } from "../../../src/log.ts";
import type { VmAssets } from "../../../src/vm/assets.ts";
import { awaitHello, buildTemplate, MachineUnresponsiveError, openAgent } from "../../../src/vm/templates.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { footprint, openVmHost, TEST_SHAPE, type VmHost } from "../../support/guests/vm.ts";
import { pause } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(120_000);

let host: VmHost;
let before: ReturnType<typeof footprint>;
beforeAll(async () => {
  host = await openVmHost();
  await host.template();
});
afterAll(() => host[Symbol.asyncDispose]());
beforeEach(() => {
  before = footprint(host);
});
afterEach(async () => {
  expect(footprint(host)).toEqual(before);
  expect(await host.cgroups.list()).toEqual([]);
});

const never = new AbortController().signal;
const isUnresponsive = (error: unknown): error is MachineUnresponsiveError => error instanceof MachineUnresponsiveError;

describe("a machine that cannot start fails with the reason, and leaves nothing behind", () => {
  test.each([
    ["without its launcher", { launcher: "/nowhere/launch" }, /ENOENT|no such file/i],
    ["without its kernel", { kernel: "/nowhere/vmlinux" }, /ENOENT/],
    ["with something else for a kernel", { kernel: "/etc/passwd" }, /QEMU did not start.*kernel/s],
    ["with a launcher that is another program", { launcher: "/bin/false" }, /QEMU did not start \(exit code 1\)/],
  ] as [string, Partial<VmAssets>, RegExp][])("%s", async (_, assets, message) => {
    const vmm = await host.open("tcg", assets);
    expect(await throwing(vmm.boot(TEST_SHAPE))).toThrow(message);
    expect(await throwing(vmm.bootForTemplate(TEST_SHAPE))).toThrow(message);
  });

  test("when its control group cannot be made", async () => {
    const { create } = host.cgroups;
    using _restored = { [Symbol.dispose]: () => Object.assign(host.cgroups, { create }) };
    Object.assign(host.cgroups, { create: () => Promise.reject(new Error("no group today")) });
    expect(await throwing(host.vmm.clone(await host.template()))).toThrow("no group today");
  });
});

describe("a guest that never sends HELLO", () => {
  async function greeting(assets: Partial<VmAssets>, timeoutMs: number): Promise<unknown> {
    const vmm = await host.open("tcg", assets);
    await using machine = await vmm.boot(TEST_SHAPE);
    return await awaitHello(machine, openAgent(machine, silentLog), never, timeoutMs).catch((error: unknown) => error);
  }

  test("because it panicked is reported with its console", async () => {
    const initramfs = join(host.directory, "empty.cpio");
    await Bun.write(initramfs, new Uint8Array(512));
    const error = await greeting({ initramfs }, 60_000);
    if (!isUnresponsive(error)) throw error;
    expect(error.message).toContain("Kernel panic - not syncing");
  });

  test("because it takes too long is ended", async () => {
    const error = await greeting({}, 100);
    if (!isUnresponsive(error)) throw error;
    expect(error.message).toContain("did not greet");
  });
});

test("a machine that is killed while it boots for a template leaves no template", async () => {
  const stop = new AbortController();
  const reason = new Error("stopping");
  void pause("it boots", 700).then(() => stop.abort(reason));
  expect(await failureOf(buildTemplate(host.vmm, TEST_SHAPE, { log: silentLog, signal: stop.signal }))).toBe(reason);
});

test("a machine that is disposed of during an attach ends all the same", async () => {
  const { machine } = await host.clone();
  const disks = await host.disks(machine);
  const attached = machine.attach(disks).then(
    () => "attached",
    () => "refused",
  );
  await machine[Symbol.asyncDispose]();
  expect(["attached", "refused"]).toContain(await attached);
});
