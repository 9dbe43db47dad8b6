import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, readlinkSync, statSync } from "node:fs";
import { rename, rm, utimes } from "node:fs/promises";
import { basename, join } from "node:path";
import { costOf } from "../../../src/supervisor/operations/scheduler.ts";
import { run, start } from "../../../src/system/exec.ts";
import { buildLaunchArgs, type JailOptions } from "../../../src/vm/jail/launch.ts";
import { prepareVmmRoot } from "../../../src/vm/jail/vmm-root.ts";
import { HeldRoots, VmmRoots } from "../../../src/vm/jail/vmm-roots.ts";
import { failureOf } from "../../support/failures.ts";
import { busyboxJail } from "../../support/guests/busybox-jail.ts";
import { ALLOCATIONS, compileEscape, JAILED, openOutside, parseOutcomes } from "../../support/guests/escape.ts";
import { builtAssets, openVmHost, type TestMachine, UID_BASE, type VmHost } from "../../support/guests/vm.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(120_000);

let host: VmHost;
let vm: TestMachine;
let pid: number;
beforeAll(async () => {
  host = await openVmHost("qemu");
  vm = await host.mounted();
  pid = vm.machine.pid;
});
afterAll(async () => {
  await vm[Symbol.asyncDispose]();
  await host[Symbol.asyncDispose]();
});

const proc = (path: string) => readFileSync(`/proc/${pid}/${path}`, "utf8");
const fields = (text: string) => new Map(text.split("\n").map((line) => line.split(/:\s*/, 2) as [string, string]));

describe("the VMM of a live machine", () => {
  // spec: service.isolation
  test("is QEMU with a user and group of its own, and no other group", () => {
    expect(readlinkSync(`/proc/${pid}/exe`)).toEndWith("/usr/bin/qemu-system-x86_64");
    const status = fields(proc("status"));
    const uid = vm.machine.uid;
    expect(uid).toBeGreaterThanOrEqual(UID_BASE);
    expect(status.get("Uid")).toBe([uid, uid, uid, uid].join("\t"));
    expect(status.get("Gid")).toBe([uid, uid, uid, uid].join("\t"));
    expect(status.get("Groups")?.trim()).toBe("");
  });

  test("has no capability and cannot gain one, and every thread has a filter of system calls", () => {
    const threads = readdirSync(`/proc/${pid}/task`);
    expect(threads.length).toBeGreaterThan(1);
    for (const thread of threads) {
      const status = fields(proc(`task/${thread}/status`));
      for (const set of ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]) {
        expect(`${set} ${status.get(set)}`).toBe(`${set} 0000000000000000`);
      }
      expect(status.get("NoNewPrivs")).toBe("1");
      expect(`${thread} ${status.get("Seccomp")}`).toBe(`${thread} 2`);
      // QEMU's own filter, and the launcher's.
      expect(Number(status.get("Seccomp_filters"))).toBeGreaterThanOrEqual(2);
    }
  });

  test("shares only the user and time namespaces with the host", () => {
    const differs = (name: string) => readlinkSync(`/proc/${pid}/ns/${name}`) !== readlinkSync(`/proc/self/ns/${name}`);
    const names = ["mnt", "net", "ipc", "uts", "pid", "cgroup", "user", "time"];
    expect(names.filter(differs)).toEqual(["mnt", "net", "ipc", "uts", "pid", "cgroup"]);
    expect(fields(proc("status")).get("NSpid")).toBe(`${pid}\t1`);
    expect(
      proc("net/dev")
        .match(/^\s*\w+:/gm)
        ?.map((name) => name.trim()),
    ).toEqual(["lo:"]);
  });

  test("sees a root with QEMU and its directory, and nothing else of the host", () => {
    const root = `/proc/${pid}/root`;
    expect(readdirSync(root).sort()).toEqual(["dev", "lib", "lib64", "proc", "usr", "vm"]);
    expect(readdirSync(`${root}/dev`).sort()).toEqual(["null", "urandom", "zero"]);
    expect(readdirSync(`${root}/vm`).sort()).toEqual(["L00", "S"]);
    expect(readdirSync(`${root}/usr`).sort()).toEqual(["bin", "lib", "share"]);
    expect(readdirSync(`${root}/usr/bin`)).toEqual(["qemu-system-x86_64"]);
    for (const path of ["etc", "root", "home", "work", "tmp", "run", "sys"])
      expect(existsSync(`${root}/${path}`)).toBe(false);
    expect(readlinkSync(`/proc/${pid}/cwd`)).toBe("/");
  });

  test("has exactly these mounts, and may write to none but its directory", () => {
    const mounts = proc("mountinfo")
      .trim()
      .split("\n")
      .map((line) => {
        const [, , , , point, options] = line.split(" ");
        return `${point} ${options?.replace(",relatime", "")} ${line.split(" - ")[1]?.split(" ")[0]}`;
      });
    const disk = mounts[0]?.split(" ").at(-1);
    expect(mounts).toEqual([
      `/ ro,nosuid,nodev ${disk}`,
      `/vm rw,nosuid,nodev,noexec ${disk}`,
      "/dev ro,nosuid,noexec tmpfs",
      "/proc ro,nosuid,nodev,noexec proc",
    ]);
    expect(proc("mountinfo")).toContain("hidepid=invisible");
  });

  test("cannot make a file in its directory, only write its scratch", () => {
    const mode = (path: string) => {
      const { mode, uid, gid } = statSync(path);
      return `${(mode & 0o7777).toString(8)} ${uid} ${gid}`;
    };
    const { directory, uid } = vm.machine;
    expect(mode(directory)).toBe(`710 0 ${uid}`);
    expect(mode(join(directory, "S"))).toBe(`600 ${uid} ${uid}`);
    expect(mode(join(directory, "L00"))).toBe("444 0 0");
  });

  test("has tight limits", () => {
    const limits = new Map(
      proc("limits")
        .split("\n")
        .slice(1)
        .map((line) => [line.slice(0, 26).trim(), line.slice(26).trim().split(/\s+/).slice(0, 2).join(" ")]),
    );
    expect(limits.get("Max open files")).toBe("512 512");
    expect(limits.get("Max file size")).toBe("1073741824 1073741824");
    expect(limits.get("Max processes")).toBe("192 192");
    expect(limits.get("Max core file size")).toBe("0 0");
    expect(limits.get("Max locked memory")).toBe("65536 65536");
    expect(proc("oom_score_adj").trim()).toBe("500");
    // These belong to the VMM, not to the daemon: the template's memory, and the library that maps it.
    expect(proc("environ").split("\0").sort()).toEqual(["", "GUEST_MEMORY_FD=5", "LD_PRELOAD=/proc/self/fd/7"]);
  });

  test("has only the descriptors that it was given or opened itself", () => {
    const targets = readdirSync(`/proc/${pid}/fd`).map((fd) => readlinkSync(`/proc/${pid}/fd/${fd}`));
    const kinds = targets.map((target) => target.replace(/[:[]+\d+\]?$/, "").replace(" (deleted)", ""));
    const allowed = new Set([
      ...["/dev/null", "pipe", "socket", "anon_inode:[eventfd]", "anon_inode:[eventpoll]", "anon_inode:[signalfd]"],
      ...["/memfd:template-state", "/vm/L00", "/vm/S"],
    ]);
    expect(kinds.filter((kind) => !allowed.has(kind))).toEqual([]);
    expect(kinds).toContain("/vm/S");
  });

  test("is in its control group, only with its launcher, under its limits", async () => {
    const pids = await vm.machine.cgroup.pids();
    expect(pids.length).toBe(2);
    expect(pids).toContain(pid);
    for (const directory of vm.machine.cgroup.directories) {
      expect(readFileSync(join(directory, "cgroup.procs"), "utf8").trim().split("\n").map(Number).sort()).toEqual(
        [...pids].sort(),
      );
    }
    const limit = (name: string) => {
      const directory = vm.machine.cgroup.directories.find((candidate) => existsSync(join(candidate, name)));
      return directory === undefined ? null : readFileSync(join(directory, name), "utf8").trim();
    };
    const memory = limit("memory.limit_in_bytes") ?? limit("memory.max");
    expect(memory).toBe(String(costOf(vm.machine.shape).memoryBytes));
    expect(limit("pids.max")).toBe("256");
    const stats = await vm.machine.cgroup.stats();
    expect(stats.memoryBytes).toBeGreaterThan(1_000_000);
    expect(stats.cpuTimeMs).toBeGreaterThan(0);
  });

  test("has a launcher as its parent, which has no privileges either", async () => {
    const launcher = (await vm.machine.cgroup.pids()).find((candidate) => candidate !== pid);
    const status = fields(readFileSync(`/proc/${launcher}/status`, "utf8"));
    expect(status.get("Name")).toBe("launch");
    expect(status.get("CapEff")).toBe("0000000000000000");
    expect(status.get("CapBnd")).toBe("0000000000000000");
    expect(status.get("NoNewPrivs")).toBe("1");
    expect(status.get("Uid")).toStartWith(`${vm.machine.uid}\t`);
    const fds = readdirSync(`/proc/${launcher}/fd`).map((fd) => readlinkSync(`/proc/${launcher}/fd/${fd}`));
    const others = fds.filter((target) => !/^(\/dev\/null|pipe:\[\d+\]|socket:\[\d+\])$/.test(target));
    // It waits for the VMM's end, and then reports it to this file.
    expect(others.sort()).toEqual([join(vm.machine.directory, "../exit"), "anon_inode:[pidfd]"]);
    // Two for no input and output, its own standard error and the VMM's, the channel to the VMM, and the lease.
    expect(fds.length - others.length).toBe(6);
  });
});

describe("the launcher", () => {
  const options = (change: Partial<JailOptions> = {}) => busyboxJail(host.directory, change);

  async function launched(jail: JailOptions, parent = process.pid): Promise<{ code: number | null; stderr: string }> {
    const child = start({ argv: buildLaunchArgs(jail, parent), extraFds: [], stderr: "tail" });
    const { code } = await child.exited;
    return { code, stderr: child.stderrTail() };
  }

  test("passes the program's exit status on", async () => {
    expect(await launched(await options())).toEqual({ code: 0, stderr: "" });
    const three = await options({ program: ["/bin/busybox", "sh", "-c", "exit 3"] });
    expect((await launched(three)).code).toBe(3);
    const crash = await options({
      program: ["/bin/busybox", "sh", "-c", "(kill -9 $$); (ulimit -f 0); echo x > /vm/x"],
    });
    expect((await launched(crash)).code).not.toBe(0);
  });

  test.each([
    ["a missing root", { root: "/nowhere" }, /launch: bind \/nowhere: No such file/],
    ["a missing directory", { directory: "/nowhere" }, /launch: bind \/nowhere/],
    ["a missing control group", { cgroups: ["/nowhere"] }, /launch: open \/nowhere\/cgroup.procs/],
    ["a device that is none", { devices: ["/etc/passwd"] }, /launch: device \/etc\/passwd/],
    ["a missing program", { program: ["/bin/nothing"] }, /launch: exec \/bin\/nothing: No such file/],
    ["root as the user", { uid: 0 }, /launch: option uid or gid 0/],
    ["a relative path", { root: "here" }, /launch: option root/],
    ["a number that is none", { fileBytesMax: -1 }, /launch: option fsize/],
  ] as [string, Partial<JailOptions>, RegExp][])("names the step at %s, and exits 125", async (_, change, message) => {
    const { code, stderr } = await launched(await options(change));
    expect(code).toBe(125);
    expect(stderr).toMatch(message);
  });

  test("does not start when its parent has ended", async () => {
    expect(await launched(await options(), 1)).toEqual({ code: 125, stderr: "launch: parent: No such process" });
  });

  test.each([
    [["vm", "--uid", "5"], "nofile"],
    [["tool", "--as", "5"], "nofile"],
    [["tool", "--uid", "5"], "unknown"],
    [["vm", "--writable", "/"], "unknown"],
    [["vm", "--uid", "-5"], "uid"],
    [["gate", "--uid", "5"], "nofile"],
    [["gate", "--capabilities", "1"], "unknown"],
    [["--uid", "5"], "vm, tool or gate"],
  ])("needs every option and no other: %p", async (options, refused) => {
    const failed = run({ argv: [builtAssets().launcher, ...options, "--", "/bin/true"], timeoutMs: 5000 });
    const stderrTail = `launch: option ${refused}: Invalid argument`;
    expect(await failureOf(failed)).toMatchObject({ name: "CommandError", exitCode: 125, stderrTail });
  });

  test("leaves a program no way out of the jail", async () => {
    await using outside = await openOutside(join(host.directory, "outside"));
    const jail = await options();
    const program = join(jail.root, "bin/escape");
    await rename(await compileEscape(host.directory), program);
    const { code, stderr } = await launched({ ...jail, program: ["/bin/escape", ...outside.args("/vm")] });
    expect(code).toBe(0);
    expect(parseOutcomes(stderr)).toEqual({
      ...JAILED,
      ...Object.fromEntries(ALLOCATIONS.map((name) => [name, "ENOSYS"])),
      // The kernel's answer: this program cannot create a file.
      "give room back": "EBADF",
      "AF_INET raw": "EPROTONOSUPPORT",
      "make a device": "EACCES",
      "open a device": "ENOENT",
      "open a device by its descriptor": "ENOENT",
      "make a disk": "EACCES",
      "open a disk": "ENOENT",
    });
  });

  test("permits the system calls that a monitor needs", async () => {
    await using outside = await openOutside(join(host.directory, "outside"));
    const jail = await options({ calls: ["io-uring"] });
    const program = join(jail.root, "bin/escape");
    await rename(await compileEscape(host.directory), program);
    const { stderr } = await launched({ ...jail, program: ["/bin/escape", ...outside.args("/vm")] });
    const { io_uring, userfaultfd, bpf } = parseOutcomes(stderr);
    // The kernel's own answer: a host may have disabled it.
    expect(io_uring).not.toBe("ENOSYS");
    expect([userfaultfd, bpf]).toEqual(["ENOSYS", "ENOSYS"]);
  });

  test("provides a device as a node in the machine's directory", async () => {
    const script = "ls -ln /dev/full && echo x > /dev/null && ! echo x > /dev/full 2>/dev/null";
    const child = start({
      argv: buildLaunchArgs(
        await options({ devices: ["/dev/full"], program: ["/bin/busybox", "sh", "-c", `(${script}) >&2`] }),
        process.pid,
      ),
      extraFds: [],
      stderr: "tail",
    });
    expect((await child.exited).code).toBe(0);
    expect(child.stderrTail()).toMatch(new RegExp(`^crw-------\\s+1 ${UID_BASE + 5000} +${UID_BASE + 5000} `));
  });
});

describe("the root of a VMM", () => {
  test("is made once, and again when a source has changed, without a change to those of other programs", async () => {
    const directory = join(host.directory, "roots");
    const program = join(host.directory, "prog");
    await Bun.write(program, Bun.file("/usr/bin/env"));
    const files = { program, modules: ["/nowhere/module.so"], data: ["/etc/hostname", "/nowhere/data"] };
    const other = await prepareVmmRoot({ ...files, program: "/usr/bin/id" }, directory);
    const first = await prepareVmmRoot(files, directory);
    expect(existsSync(join(first, program))).toBe(true);
    expect(existsSync(join(first, "etc/hostname"))).toBe(true);
    expect(existsSync(join(first, "nowhere"))).toBe(false);
    expect(await prepareVmmRoot(files, directory)).toBe(first);
    await utimes(program, 1, 1);
    const second = await prepareVmmRoot(files, directory);
    expect(second).not.toBe(first);
    expect(readdirSync(directory).sort()).toEqual([basename(other), basename(second)].sort());
    expect(
      (await run({ argv: ["/usr/sbin/chroot", second, program, "A=1"], timeoutMs: 5000 })).stdout.length,
    ).toBeGreaterThan(0);
  });

  test("stays while a saved machine needs it, after the program was replaced", async () => {
    const directory = join(host.directory, "held-roots");
    const program = join(host.directory, "replaced");
    await Bun.write(program, Bun.file("/usr/bin/env"));
    const roots = await VmmRoots.open({ program, modules: [], data: [] }, directory);
    const first = await roots.refresh();
    expect([roots.isOutdated, roots.current]).toEqual([false, first.path]);
    await rm(program);
    expect(roots.isOutdated).toBe(false);
    await Bun.write(program, Bun.file("/usr/bin/id"));
    expect(roots.isOutdated).toBe(true);
    const saved = roots.hold(first.path);
    first[Symbol.dispose]();
    const [second, again] = await Promise.all([roots.refresh(), roots.refresh()]);
    expect([roots.isOutdated, roots.current, again.path]).toEqual([false, second.path, second.path]);
    expect(readdirSync(directory).sort()).toEqual([basename(first.path), basename(second.path)].sort());
    saved[Symbol.dispose]();
    saved[Symbol.dispose]();
    await utimes(program, 1, 1);
    const third = await roots.refresh();
    expect(readdirSync(directory).sort()).toEqual([basename(second.path), basename(third.path)].sort());
    // A later daemon holds the root of a machine that outlived the earlier one.
    const held = new HeldRoots();
    using _machine = held.hold(second.path);
    await VmmRoots.open({ program, modules: [], data: [] }, directory, held);
    expect(readdirSync(directory).sort()).toEqual([basename(second.path), basename(third.path)].sort());
    await VmmRoots.open({ program, modules: [], data: [] }, directory);
    expect(readdirSync(directory)).toEqual([basename(third.path)]);
  });
});
