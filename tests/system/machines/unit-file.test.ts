import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { copyFile, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { PREPARED_NETWORK } from "../../../src/system/tool-network.ts";

const UNIT = resolve(import.meta.dir, "../../../systemd/coppice.service");
/**
 * Worst exposure that is accepted; systemd counts from 0 (safe) to 10. CAP_SYS_PTRACE, which forks with memory need, is 0.3
 * of it.
 */
const EXPOSURE_MAX = 4.1;
const TIMEOUT_MS = 30_000;

const unit = readFileSync(UNIT, "utf8");
const settings = (name: string): string[] =>
  [...unit.matchAll(new RegExp(`^${name}=(.*)$`, "gm"))].map(([, value = ""]) => value);

test("systemd's exposure score of the unit is low enough", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-unit-"));
  await using _directory = { [Symbol.asyncDispose]: () => rm(directory, { recursive: true }) };
  await copyFile(UNIT, join(directory, "coppice.service"));
  const argv = ["systemd-analyze", "security", "--no-pager", "--offline=true", join(directory, "coppice.service")];
  const { stdout } = await run({ argv, timeoutMs: TIMEOUT_MS, env: { SYSTEMD_COLORS: "0" } });
  const exposure = /Overall exposure level for coppice\.service: (\d+\.\d+)/.exec(Buffer.from(stdout).toString())?.[1];
  expect(Number(exposure)).toBeLessThanOrEqual(EXPOSURE_MAX);
});

test("the unit has no setting that is unknown to systemd", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-unit-"));
  await using _directory = { [Symbol.asyncDispose]: () => rm(directory, { recursive: true }) };
  // The program does not have to be installed here.
  const path = join(directory, "coppice.service");
  await Bun.write(path, unit.replaceAll("/usr/local/bin/coppice", "/bin/true"));
  const { stderr } = await run({ argv: ["systemd-analyze", "verify", "--man=no", path], timeoutMs: TIMEOUT_MS });
  expect(stderr.split("\n").filter((line) => line.includes("coppice.service"))).toEqual([]);
});

test("the unit keeps everything that VMs need", () => {
  for (const harmful of ["PrivateDevices", "ProtectControlGroups", "MemoryDenyWriteExecute", "RestrictSUIDSGID"]) {
    expect(settings(harmful)).toEqual([]);
  }
  expect(settings("RestrictNamespaces")[0]?.split(" ")).toEqual(expect.arrayContaining(["mnt", "net", "pid"]));
  expect(settings("DeviceAllow")).toEqual(expect.arrayContaining(["/dev/char/10:232 rw", "char-* m", "block-* m"]));
  expect(settings("Delegate")).toEqual(["yes"]);
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
  expect(settings("Restart")).toEqual(["on-failure"]);
  expect(settings("RestartPreventExitStatus")).toEqual(["2"]);
});
