import { describe, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../../src/log.ts";
import { CommandError } from "../../../src/system/exec.ts";
import { PROBE_MEMO_NAME, type ProbeCandidate, type ProbeOptions, probe } from "../../../src/vm/probe.ts";
import { failureOf } from "../../support/failures.ts";
import { FakeVmm, type Phase } from "../../support/guests/fake-vmm.ts";
import { until } from "../../support/waiting.ts";

const MIB = 1_048_576;
const SHAPE = { vcpus: 1, memoryBytes: 256 * MIB };
const never = new AbortController().signal;
const KILLED = { argv: ["qemu"], exitCode: null, signal: "SIGKILL", timedOut: false, stderrTail: "" };

describe("probe", () => {
  async function withMemo(work: (memoPath: string) => Promise<void>): Promise<void> {
    const directory = await mkdtemp(join(tmpdir(), "coppice-probe-"));
    await using _directory = { [Symbol.asyncDispose]: () => rm(directory, { recursive: true }) };
    await work(join(directory, PROBE_MEMO_NAME));
  }

  const candidate = (vmm: FakeVmm): ProbeCandidate => ({
    vmm: "qemu",
    acceleration: vmm.acceleration,
    open: async () => vmm,
  });

  const options = (memoPath: string, vmms: FakeVmm[], change: Partial<ProbeOptions> = {}): ProbeOptions => ({
    candidates: vmms.map(candidate),
    shape: SHAPE,
    memoPath,
    assetsHash: "assets",
    timeoutMs: 15_000,
    bootId: "boot",
    log: silentLog,
    signal: never,
    ...change,
  });

  test("skips an acceleration that does not work in fact, and stores both verdicts", () =>
    withMemo(async (memoPath) => {
      const kvm = new FakeVmm("kvm");
      const tcg = new FakeVmm("tcg");
      kvm.script = { mute: true, stuck: "it only pretends" };
      tcg.script = { mountErrno: 22 };
      const first = await probe({ ...options(memoPath, [kvm, tcg]), shape: { vcpus: 1, memoryBytes: 200 * MIB } });
      expect(first.verdict.acceleration).toBe("tcg");
      expect(first.verdict.candidates.map(({ ok, reason }) => [ok, reason])).toEqual([
        [false, "it only pretends"],
        [true, ""],
      ]);
      expect(first.template?.shape).toEqual(SHAPE);
      expect([kvm.live.size, tcg.live.size]).toEqual([0, 0]);
      const calls = kvm.calls.length + tcg.calls.length;
      const again = await probe(options(memoPath, [kvm, tcg]));
      expect(again.verdict).toEqual(first.verdict);
      expect(again.template).toBeNull();
      expect(kvm.calls.length + tcg.calls.length).toBe(calls);
    }));

  test.each([
    ["the VMM", { vmm: "2" }],
    ["the host's boot", { bootId: "another" }],
    ["the kernel", { assetsHash: "another" }],
  ])("looks again when %s changed", (_, { vmm: version, ...change }: Record<string, string>) =>
    withMemo(async (memoPath) => {
      const vmm = new FakeVmm();
      await probe(options(memoPath, [vmm]));
      if (version !== undefined) vmm.version = version;
      expect((await probe(options(memoPath, [vmm], change))).template).not.toBeNull();
    }),
  );

  test("ends a trial that takes too long, with a verdict that names the setting", () =>
    withMemo(async (memoPath) => {
      const vmm = new FakeVmm();
      vmm.script = { mute: true };
      const { verdict } = await probe(options(memoPath, [vmm], { timeoutMs: 50 }));
      expect(verdict.candidates[0]?.reason).toMatch(/^the trial did not finish within 0\.05 s \(vm\.probe_timeout\)/);
      expect(vmm.live.size).toBe(0);
    }));

  test("fails the trial when the guest does not see its disk", () =>
    withMemo(async (memoPath) => {
      const vmm = new FakeVmm();
      vmm.script = { mountErrno: 19 };
      const { verdict, template } = await probe(options(memoPath, [vmm]));
      expect(verdict.acceleration).toBeNull();
      expect(template).toBeNull();
      expect(vmm.templates.map(({ disposed }) => disposed)).toEqual([true]);
      expect(vmm.live.size).toBe(0);
      vmm.script = {};
      expect((await probe(options(memoPath, [vmm]))).verdict.acceleration).toBe("tcg");
    }));

  const PHASES: Phase[] = ["start", "hello", "sync", "save", "attach", "mount"];
  test.each(PHASES)("retries a VMM that is killed during %s at once, with success", (phase) =>
    withMemo(async (memoPath) => {
      const vmm = new FakeVmm();
      vmm.killedAt.push(phase, phase);
      const { verdict, template } = await probe(options(memoPath, [vmm]));
      expect(verdict.candidates).toMatchObject([{ ok: true, reason: "" }]);
      expect(template).not.toBeNull();
      expect([vmm.killedAt, vmm.live.size]).toEqual([[], 0]);
      expect(vmm.templates.filter(({ disposed }) => !disposed).length).toBe(1);
      expect(JSON.parse(await Bun.file(memoPath).text())).toMatchObject([{ ok: true }]);
    }),
  );

  test.each(PHASES)("stores no verdict for a VMM that is repeatedly killed during %s", (phase) =>
    withMemo(async (memoPath) => {
      const [kvm, tcg] = [new FakeVmm("kvm"), new FakeVmm("tcg")];
      kvm.killedAt.push(phase, phase, phase);
      const { verdict, template } = await probe(options(memoPath, [kvm, tcg]));
      expect(verdict).toMatchObject({ acceleration: "tcg", candidates: [{ ok: false }, { ok: true }] });
      await template?.[Symbol.asyncDispose]();
      expect((await probe(options(memoPath, [kvm, tcg]))).verdict.acceleration).toBe("kvm");
      expect([kvm.live.size, tcg.live.size]).toEqual([0, 0]);
    }),
  );

  test("retries a VMM that crashes at once, and stores that one which always crashes is unusable", () =>
    withMemo(async (memoPath) => {
      const [kvm, tcg] = [new FakeVmm("kvm"), new FakeVmm("tcg")];
      kvm.exitCode = 128 + 11;
      kvm.killedAt.push("attach");
      const once = await probe(options(`${memoPath}.once`, [kvm, tcg]));
      expect(once.verdict.candidates).toMatchObject([{ ok: true }]);
      kvm.killedAt.push("attach", "attach");
      await probe(options(memoPath, [kvm, tcg]));
      const again = await probe(options(memoPath, [kvm, tcg]));
      expect(again.verdict).toMatchObject({ acceleration: "tcg", candidates: [{ ok: false }, { ok: true }] });
      expect(again.verdict.candidates[0]?.reason).toContain("killed by signal 11");
    }));

  test("repeats the query of a version when the program was killed", () =>
    withMemo(async (memoPath) => {
      const [kvm, tcg] = [new FakeVmm("kvm"), new FakeVmm("tcg")];
      let queries = 0;
      const open = async () => {
        if (++queries === 1) throw new CommandError("killed", KILLED);
        return kvm;
      };
      const candidates = [{ vmm: "qemu" as const, acceleration: "kvm" as const, open }, candidate(tcg)];
      expect((await probe(options(memoPath, [], { candidates }))).verdict.acceleration).toBe("kvm");
    }));

  test("does not store a failure for lack of resources", () =>
    withMemo(async (memoPath) => {
      const [kvm, tcg] = [new FakeVmm("kvm"), new FakeVmm("tcg")];
      kvm.failing.add("clone");
      expect((await probe(options(memoPath, [kvm, tcg]))).verdict.acceleration).toBe("tcg");
      kvm.failing.clear();
      expect((await probe(options(memoPath, [kvm, tcg]))).verdict.acceleration).toBe("kvm");
    }));

  test("ignores a file of verdicts in another format", () =>
    withMemo(async (memoPath) => {
      for (const text of ["nonsense", "{}", '[{"key": 1}]']) {
        await Bun.write(memoPath, text);
        expect((await probe(options(memoPath, [new FakeVmm()]))).template).not.toBeNull();
      }
    }));

  test("ends with the reason of its signal", () =>
    withMemo(async (memoPath) => {
      const vmm = new FakeVmm();
      vmm.script = { mute: true };
      const reason = new Error("stopping");
      const stop = new AbortController();
      const probing = probe(options(memoPath, [vmm], { signal: stop.signal }));
      await until("a machine is booted", () => vmm.live.size === 1);
      stop.abort(reason);
      expect(await failureOf(probing)).toBe(reason);
      expect(vmm.live.size).toBe(0);
    }));
});
