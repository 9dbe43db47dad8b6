import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { copyFile, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { PREPARED_NETWORK } from "../../../src/system/tool-network.ts";
import { CpuWeight } from "../../../src/vm/cpu-weight.ts";

const UNITS = resolve(import.meta.dir, "../../../systemd");
/**
 * Worst exposure that is accepted of each unit; systemd counts from 0 (safe) to 10. CAP_SYS_PTRACE, which forks with memory
 * need, is 0.3 of the service's.
 */
const EXPOSURES_MAX = { "coppice.service": 4.1, "coppice-machines.service": 3.0 } as const;
type Unit = keyof typeof EXPOSURES_MAX;
const ALL = Object.keys(EXPOSURES_MAX) as Unit[];
const TIMEOUT_MS = 30_000;

const textOf = (unit: Unit): string => readFileSync(join(UNITS, unit), "utf8");
const settings = (name: string, unit: Unit = "coppice.service"): string[] =>
  [...textOf(unit).matchAll(new RegExp(`^${name}=(.*)$`, "gm"))].map(([, value = ""]) => value);

test.each(ALL)("systemd's exposure score of %s is low enough", async (unit) => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-unit-"));
  await using _directory = { [Symbol.asyncDispose]: () => rm(directory, { recursive: true }) };
  await copyFile(join(UNITS, unit), join(directory, unit));
  const argv = ["systemd-analyze", "security", "--no-pager", "--offline=true", join(directory, unit)];
  const { stdout } = await run({ argv, timeoutMs: TIMEOUT_MS, env: { SYSTEMD_COLORS: "0" } });
  const exposure = /Overall exposure level for [a-z.-]+: (\d+\.\d+)/.exec(Buffer.from(stdout).toString())?.[1];
  expect(Number(exposure)).toBeLessThanOrEqual(EXPOSURES_MAX[unit]);
});

test.each(ALL)("%s has no setting that is unknown to systemd", async (unit) => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-unit-"));
  await using _directory = { [Symbol.asyncDispose]: () => rm(directory, { recursive: true }) };
  // The program does not have to be installed here.
  const path = join(directory, unit);
  await Bun.write(path, textOf(unit).replaceAll("/usr/local/bin/coppice", "/bin/true"));
  const { stderr } = await run({ argv: ["systemd-analyze", "verify", "--man=no", path], timeoutMs: TIMEOUT_MS });
  expect(stderr.split("\n").filter((line) => line.includes(unit))).toEqual([]);
});

test("the unit keeps everything that VMs need", () => {
  for (const harmful of ["PrivateDevices", "ProtectControlGroups", "MemoryDenyWriteExecute", "RestrictSUIDSGID"]) {
    expect(settings(harmful)).toEqual([]);
  }
  expect(settings("RestrictNamespaces")[0]?.split(" ")).toEqual(expect.arrayContaining(["mnt", "net", "pid"]));
});

test("both units allow the devices of VMs alone, and all of their tasks", () => {
  for (const unit of ALL) {
    expect(settings("DevicePolicy", unit)).toEqual(["closed"]);
    const devices = ["/dev/char/10:232 rw", "char-* m", "block-* m"];
    expect(settings("DeviceAllow", unit)).toEqual(devices);
    expect(settings("Delegate", unit)).toEqual(["yes"]);
    expect(settings("TasksMax", unit)).toEqual(["infinity"]);
    expect(settings("OOMPolicy", unit)).toEqual(["continue"]);
  }
});

test("the machines' unit ends with its own stop alone, and has the weight of machines against the daemon", () => {
  const depending = ["Requires", "Requisite", "BindsTo", "PartOf", "ReloadPropagatedFrom"];
  for (const unit of ALL) for (const name of depending) expect(settings(name, unit)).toEqual([]);
  expect(settings("Upholds", "coppice-machines.service")).toEqual([]);
  expect(settings("Wants")[0]).toContain("coppice-machines.service");
  expect(settings("After")[0]).toContain("coppice-machines.service");
  expect(settings("KillMode", "coppice-machines.service")).toEqual(["control-group"]);
  expect(settings("CPUWeight", "coppice-machines.service")).toEqual([String(CpuWeight.together)]);
});

test("the launcher may make the system calls for jails", async () => {
  const sets = settings("SystemCallFilter")[0]?.replace(/^~/, "").split(" ") ?? [];
  const argv = ["systemd-analyze", "syscall-filter", "--no-pager", ...sets];
  const { stdout } = await run({ argv, timeoutMs: TIMEOUT_MS, env: { SYSTEMD_COLORS: "0" } });
  const refused = new Set(
    Buffer.from(stdout)
      .toString()
      .match(/^ +[a-z0-9_]+$/gm)
      ?.map((line) => line.trim()),
  );
  expect(refused.has("ptrace")).toBe(true);
  const needed = [
    ...["unshare", "setns", "mount", "umount2", "pivot_root", "mknod", "capset", "setgroups", "setresgid", "setresuid"],
    ...["prctl", "seccomp", "close_range", "pidfd_open", "process_vm_readv", "openat2", "setxattr", "removexattr"],
  ];
  expect(needed.filter((call) => refused.has(call))).toEqual([]);
});

test("the unit prepares the tools' network where the service looks for it", () => {
  const commands = settings("ExecStartPre").filter((line) => line.includes(`unshare --net=${PREPARED_NETWORK} `));
  expect(commands).toHaveLength(1);
  expect(settings("ExecStopPost")[0]).toEndWith(` ${PREPARED_NETWORK}`);
});

test("the service notifies systemd of its start, and of its watchdog", () => {
  expect(settings("Type")).toEqual(["notify"]);
  expect(Number(settings("WatchdogSec")[0])).toBeGreaterThan(0);
  expect(settings("Restart")).toEqual(["always"]);
  expect(settings("RestartPreventExitStatus")).toEqual(["2"]);
});
