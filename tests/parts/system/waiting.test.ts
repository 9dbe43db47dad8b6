import { expect, test } from "bun:test";

const LONG_MS = 600_000;

test("no timer is left that keeps the process alive", async () => {
  const script = `
    import { sleepUnlessAborted, withinTime } from ${JSON.stringify(Bun.resolveSync("../../../src/system/waiting.ts", import.meta.dir))};
    await withinTime(Promise.resolve(), ${LONG_MS}, () => null);
    await withinTime(Promise.reject(), ${LONG_MS}, () => null).catch(() => null);
    await sleepUnlessAborted(${LONG_MS}, AbortSignal.timeout(1));
    await sleepUnlessAborted(${LONG_MS}, AbortSignal.abort());
  `;
  const program = Bun.spawn([process.execPath, "-e", script], { stdout: "ignore", timeout: 20_000 });
  expect([await program.exited, program.signalCode]).toEqual([0, null]);
});
