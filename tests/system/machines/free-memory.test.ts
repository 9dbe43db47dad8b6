/** Memory that programs of a guest freed; only QEMU gives it back. */

import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { openVmHost, shell, type VmHost } from "../../support/guests/vm.ts";
import { until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(180_000);

const MIB = 1_048_576;
const SIZE = 32 * MIB;

let host: VmHost;
beforeAll(async () => {
  host = await openVmHost("qemu");
});
afterAll(() => host[Symbol.asyncDispose]());

test("goes back to the host each time, and serves again", async () => {
  await using test = await host.mounted();
  // The first command reads the program.
  await shell(test.agent, "head -c 1 /dev/zero | busybox tail -c 1 | busybox md5sum");
  const { memoryBytes: before } = await test.machine.cgroup.stats();
  const content = createHash("md5")
    .update(Buffer.from("yes\n".repeat(SIZE / 4)))
    .digest("hex");
  for (let round = 0; round < 2; round++) {
    // tail holds all of it in its memory, which was zero, free or the template's.
    const command = `yes yes | head -c ${SIZE} | busybox tail -c ${SIZE} | busybox md5sum`;
    const { stdout } = await shell(test.agent, command, { timeoutMs: 120_000 });
    expect(stdout).toBe(`${content}  -\n`);
    expect((await test.machine.cgroup.stats()).memoryPeakBytes - before).toBeGreaterThan(SIZE);
    // QEMU's own memory grows, too, as it translates more code.
    const isBack = async (): Promise<boolean> => {
      const { memoryBytes, memoryPeakBytes } = await test.machine.cgroup.stats();
      return memoryPeakBytes - memoryBytes > SIZE / 2;
    };
    await until("the memory is free", isBack, 60_000);
  }
});
