import { describe, expect, test } from "bun:test";
import type { Verdict } from "../../../src/supervisor/health/finding.ts";
import { type HostFacts, machineFindings } from "../../../src/supervisor/health/machines.ts";
import { explainChoice, PREFERENCE } from "../../../src/vm/choice.ts";

const GOOD: HostFacts = {
  cpuinfo: "flags\t: fpu avx2 vmx\n",
  mountinfo: "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n",
  kvm: true,
  nxHugePages: "N\n",
  landlock: 6,
  program: "/usr/bin/cloud-hypervisor",
  version: "cloud-hypervisor v53.0\n",
};
const works = (vmm: Verdict["vmm"], acceleration: Verdict["acceleration"]): Verdict => ({
  vmm,
  acceleration,
  ok: true,
  reason: "",
  durationMs: 900,
});
const fails = (vmm: Verdict["vmm"], acceleration: Verdict["acceleration"], reason: string): Verdict => ({
  ...works(vmm, acceleration),
  ok: false,
  reason,
});

function finding(name: string, facts: Partial<HostFacts> = {}, verdicts: readonly Verdict[] = []) {
  const finding = machineFindings({ ...GOOD, ...facts }, verdicts).find((each) => each.name === name);
  if (finding === undefined) throw new Error(`there is no finding ${name}`);
  return finding;
}

describe("doctor", () => {
  test("finds no problem on a good host", () => {
    const verdicts = [works("cloud-hypervisor", "kvm")];
    const states = machineFindings(GOOD, verdicts).map(({ name, state, fix }) => [name, state, fix]);
    const names = ["cloud-hypervisor", "choice", "nested virtualisation", "nx_huge_pages", "landlock"];
    expect(states).toEqual(names.map((name) => [name, "ok", null]));
    expect(finding("choice", {}, verdicts).summary).toContain("Cloud Hypervisor with KVM is used: the best that works");
  });

  test("says which program to install, and how to compare its checksum", () => {
    const absent = finding("cloud-hypervisor", { program: null, version: "" });
    expect(absent).toMatchObject({ state: "note", summary: "not installed" });
    expect(absent.fix).toContain("cloud-hypervisor-static");
    expect(absent.fix).toContain("sha256sum");
    const old = finding("cloud-hypervisor", { version: "cloud-hypervisor v51.0\n" });
    expect(old.summary).toContain("too old: v52.0 or newer is needed");
    expect(finding("cloud-hypervisor", { version: "is not installed" }).state).toBe("note");
  });

  test("does not advise to install programs that need KVM on a host without it", () => {
    const findings = machineFindings({ ...GOOD, kvm: false, program: null, version: "" }, []);
    expect(findings.map(({ name }) => name)).toEqual(["cloud-hypervisor", "choice"]);
    expect(findings[0]?.fix).toBeNull();
  });

  test("explains the choice by the failure of the better way", () => {
    const emulated = [fails("qemu", "kvm", "KVM emulates the guest"), works("qemu", "tcg")];
    const { state, summary } = finding("choice", { program: null, version: "" }, emulated);
    expect(state).toBe("note");
    expect(summary).toBe(
      "Cloud Hypervisor with KVM does not work: not installed; QEMU with KVM does not work: KVM emulates the guest; " +
        "QEMU with emulation is used: the best that works here (booted, saved, cloned and given a disk in 900 ms)",
    );
    expect(finding("choice").summary).toBe("not made since this boot");
  });

  test("reports nested virtualisation, a slow mitigation, and a missing wall", () => {
    expect(finding("nested virtualisation", { cpuinfo: "flags : vmx hypervisor lm\n" }).state).toBe("note");
    const delayed = finding("nx_huge_pages", { nxHugePages: "Y\n" });
    expect([delayed.state, delayed.fix]).toEqual(["note", expect.stringContaining("favordynmods")]);
    const favoured = {
      nxHugePages: "Y\n",
      mountinfo: "30 24 0:26 / /c rw - cgroup2 cgroup2 rw,nsdelegate,favordynmods\n",
    };
    expect(finding("nx_huge_pages", favoured).state).toBe("ok");
    expect(finding("landlock", { landlock: 2 }).state).toBe("note");
  });
});

describe("the chosen way to run machines", () => {
  const way = (index: number, ok: boolean | null) => {
    const { vmm = "qemu", acceleration = "tcg" } = PREFERENCE[index] ?? {};
    return { vmm, acceleration, ok, reason: ok === false ? "why" : "", durationMs: null } as const;
  };

  test("is the first that works, for verdicts in any order", () => {
    expect(explainChoice([way(2, true), way(1, true), way(0, false)]).chosen).toEqual(way(1, true));
    expect(explainChoice([way(0, true)]).reasons).toEqual([
      "Cloud Hypervisor with KVM is used: the best that works here",
      "QEMU with KVM was not tried, because a better one works",
      "QEMU with emulation was not tried, because a better one works",
    ]);
  });

  test("may be null", () => {
    expect(explainChoice([way(0, false), way(1, false)])).toEqual({
      chosen: null,
      reasons: [
        "Cloud Hypervisor with KVM does not work: why",
        "QEMU with KVM does not work: why",
        "QEMU with emulation was not tried",
      ],
    });
  });
});
