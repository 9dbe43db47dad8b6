import { existsSync, readFileSync } from "node:fs";
import { CommandError, run } from "../../system/exec.ts";
import { type CandidateReport, explainChoice } from "../../vm/choice.ts";
import { findCloudHypervisor } from "../../vm/cloud-hypervisor/cloud-hypervisor.ts";
import {
  CLOUD_HYPERVISOR_MAJOR_MIN,
  CLOUD_HYPERVISOR_PROGRAMS,
  CLOUD_HYPERVISOR_RELEASES,
  CloudHypervisorVersionError,
  parseCloudHypervisorVersion,
  requireCloudHypervisorVersion,
} from "../../vm/cloud-hypervisor/version.ts";
import { LANDLOCK_VERSION_MIN, landlockVersion } from "../../vm/jail/landlock.ts";
import type { Finding, Verdict } from "./finding.ts";

/** Time in which a program must print its version, also on a busy host; `milliseconds`. */
const VERSION_TIMEOUT_MS = 60_000;

/** Facts about the kernel and the machine below it; null where a file does not exist. */
export interface HostFacts {
  /** text of /proc/cpuinfo */
  readonly cpuinfo: string;
  /** text of /proc/self/mountinfo */
  readonly mountinfo: string;
  readonly kvm: boolean;
  /** parameter of the kvm module */
  readonly nxHugePages: string | null;
  readonly landlock: number;
  /** path of Cloud Hypervisor */
  readonly program: string | null;
  /** output of `--version`, or the error of that call */
  readonly version: string;
}

export async function hostFacts(): Promise<HostFacts> {
  const program = findCloudHypervisor();
  return {
    cpuinfo: readText("/proc/cpuinfo") ?? "",
    mountinfo: readText("/proc/self/mountinfo") ?? "",
    kvm: existsSync("/dev/kvm"),
    nxHugePages: readText("/sys/module/kvm/parameters/nx_huge_pages"),
    landlock: landlockVersion(),
    program,
    version: program === null ? "" : await versionOf(program),
  };
}

async function versionOf(program: string): Promise<string> {
  try {
    const { stdout } = await run({ argv: [program, "--version"], timeoutMs: VERSION_TIMEOUT_MS });
    return Buffer.from(stdout).toString("utf8");
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    return error.message;
  }
}

/** Findings about the way virtual machines run here, and about their speed. */
export function machineFindings(facts: HostFacts, verdicts: readonly Verdict[]): Finding[] {
  const cloudHypervisor = cloudHypervisorFinding(facts);
  const findings = [cloudHypervisor, choiceFinding(facts, cloudHypervisor, verdicts)];
  // The other findings are about KVM.
  if (!facts.kvm) return findings;
  const usable = cloudHypervisor.state === "ok";
  return [...findings, nestingFinding(facts), nxHugePagesFinding(facts), ...(usable ? [landlockFinding(facts)] : [])];
}

function cloudHypervisorFinding({ program, version, kvm }: HostFacts): Finding {
  const meaning = `the best way to run virtual machines where KVM works; QEMU does the same work`;
  const base = { name: "cloud-hypervisor", meaning, fix: kvm ? INSTALL : null } as const;
  if (program === null) return { ...base, state: "note", summary: "not installed" };
  try {
    const parsed = parseCloudHypervisorVersion(version);
    requireCloudHypervisorVersion(parsed, program);
    return { ...base, state: "ok", summary: `version ${parsed.text} (${program})`, fix: null };
  } catch (error) {
    if (!(error instanceof CloudHypervisorVersionError)) throw error;
    return { ...base, state: "note", summary: error.message };
  }
}

/** The project publishes static binaries, each with the SHA-256 to compare. */
const INSTALL =
  `curl -fLo ${CLOUD_HYPERVISOR_PROGRAMS[0]} https://${CLOUD_HYPERVISOR_RELEASES}/download/VERSION/cloud-hypervisor-static` +
  ` && sha256sum ${CLOUD_HYPERVISOR_PROGRAMS[0]} && chmod 755 ${CLOUD_HYPERVISOR_PROGRAMS[0]}` +
  `  # VERSION: v${CLOUD_HYPERVISOR_MAJOR_MIN}.0 or newer; compare the sum with the one that the release page shows`;

function choiceFinding(facts: HostFacts, cloudHypervisor: Finding, verdicts: readonly Verdict[]): Finding {
  const reports = verdicts as readonly (Verdict & CandidateReport)[];
  const tried = reports.some(({ vmm }) => vmm === "cloud-hypervisor");
  const obstacle = facts.kvm ? cloudHypervisor.summary : "there is no /dev/kvm";
  const hopeless = !tried && (cloudHypervisor.state !== "ok" || !facts.kvm);
  const way = { vmm: "cloud-hypervisor", acceleration: "kvm", ok: false, reason: obstacle, durationMs: null } as const;
  const { chosen, reasons } = explainChoice(hopeless ? [way, ...reports] : reports);
  const undecided = verdicts.length === 0;
  return {
    name: "choice",
    state: chosen?.acceleration === "kvm" ? "ok" : "note",
    summary: undecided ? "not made since this boot" : reasons.join("; "),
    meaning: undecided
      ? "the start of the appliance tries the ways to run virtual machines, the best first"
      : "KVM runs guests on the processor itself; emulation is slow, and no security boundary",
    fix: null,
  };
}

function nestingFinding({ cpuinfo }: HostFacts): Finding {
  const nested = /^flags\s*:.*\bhypervisor\b/m.test(cpuinfo);
  return {
    name: "nested virtualisation",
    state: nested ? "note" : "ok",
    summary: nested ? "this host is a virtual machine itself" : "this host is not a virtual machine",
    meaning: nested
      ? "its KVM works as well as the one below lets it: starts are slower, and some cannot run a guest at all"
      : "KVM has the processor to itself",
    fix: null,
  };
}

/**
 * With the mitigation on, every new VM has a helper thread that joins the VM's groups, and the kernel waits for a grace
 * period of all processors before it lets a thread change groups, unless the hierarchy favours such changes.
 */
function nxHugePagesFinding({ nxHugePages, mountinfo }: HostFacts): Finding {
  const value = nxHugePages?.trim() ?? "";
  const mitigated = value === "Y" || value === "force" || value === "1";
  const favoured = / - cgroup2? \S+ \S*\bfavordynmods\b/m.test(mountinfo);
  const base = { name: "nx_huge_pages", fix: null } as const;
  if (!mitigated) {
    return {
      ...base,
      state: "ok",
      summary: value === "" ? "unknown" : value,
      meaning: "starts of VMs do not wait for it",
    };
  }
  if (favoured) {
    return {
      ...base,
      state: "ok",
      summary: `${value}, with favordynmods`,
      meaning: "starts of VMs do not wait for it",
    };
  }
  return {
    ...base,
    state: "note",
    summary: `${value}, without favordynmods`,
    meaning: "this mitigation can make every start of a VM wait some tens of milliseconds for its cgroup",
    fix: "mount -o remount,favordynmods /sys/fs/cgroup  # Linux 6.0 or newer, cgroup version 2",
  };
}

function landlockFinding({ landlock }: HostFacts): Finding {
  const base = { name: "landlock", fix: null } as const;
  if (landlock >= LANDLOCK_VERSION_MIN) {
    return { ...base, state: "ok", summary: `version ${landlock}`, meaning: "one more wall around Cloud Hypervisor" };
  }
  return {
    ...base,
    state: "note",
    summary: landlock === 0 ? "not in this kernel" : `version ${landlock}`,
    meaning: `from version ${LANDLOCK_VERSION_MIN} on (Linux 6.2) it is one more wall around Cloud Hypervisor; the jail stands without it`,
  };
}

function readText(path: string): string | null {
  return existsSync(path) ? readFileSync(path, "utf8") : null;
}
