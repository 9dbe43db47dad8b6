import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdir, mkdtemp, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { UNPACK_RIGHTS } from "../../../src/oci/umoci.ts";
import { type Confinement, confinementWrapper } from "../../../src/system/confine.ts";
import { CommandError, run } from "../../../src/system/exec.ts";
import { ToolNetwork } from "../../../src/system/tool-network.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import {
  ALLOCATIONS,
  compileEscape,
  fromMemory,
  JAILED,
  type Outcomes,
  openOutside,
  parseOutcomes,
} from "../../support/guests/escape.ts";
import { builtAssets } from "../../support/guests/vm.ts";

let home: string;
let work: string;
let read: string;
beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), "coppice-confine-"));
  work = join(home, "work space");
  read = join(home, "read");
  for (const path of [work, read, join(home, "secret")]) await mkdir(path);
  await writeFile(join(read, "input"), "given");
  await writeFile(join(home, "secret/key"), "secret");
});
afterAll(() => rm(home, { recursive: true }));

const MIB = 1_048_576;
const { launcher } = builtAssets();
const limits = { fileBytesMax: 2 * MIB, addressBytesMax: 4096 * MIB, openFilesMax: 77 };
const confinement = (change: Partial<Confinement> = {}): Confinement => ({
  launcher,
  limits,
  writable: [work],
  readable: [read],
  network: null,
  ...change,
});

async function shell(script: string, change: Partial<Confinement> = {}, cwd = work): Promise<string> {
  const argv = ["sh", "-c", script, "sh", work, read, home];
  const { stdout } = await run({ argv, cwd, confinement: confinement(change), timeoutMs: 10_000 });
  return Buffer.from(stdout).toString().trimEnd();
}

describe("a confined program", () => {
  test("reads and writes the given directories, and starts in the right one", async () => {
    expect(await shell('cat "$2/input"; pwd; echo made > "$1/output"')).toBe(`given${work}`);
    expect(await readFile(join(work, "output"), "utf8")).toBe("made\n");
  });

  test("starts in a directory whose path contains a symlink", async () => {
    await symlink(home, join(home, "link"));
    const linked = join(home, "link/work space");
    expect(await shell("pwd -P; echo made > linked", { writable: [linked], readable: [] }, linked)).toBe(linked);
    expect(await readFile(join(work, "linked"), "utf8")).toBe("made\n");
    await rm(join(home, "link"));
  });

  test("sees nothing else of the host", async () => {
    expect(await shell('ls "$3"')).toBe("read\nwork space");
    const names = (await shell("ls /")).split("\n");
    expect(names).toEqual(expect.arrayContaining(["dev", "etc", "proc", "usr"]));
    const secret = ["home", "mnt", "opt", "root", "srv", "sys", "var"];
    expect(names.filter((name) => secret.includes(name))).toEqual([]);
    const mounts = (await shell("cut -d' ' -f5 /proc/self/mountinfo")).split("\n");
    expect(mounts.filter((path) => !/^\/($|(bin|dev|etc|lib\w*|proc|sbin|tmp|usr)(\/|$))/.test(path))).toEqual([]);
    expect(await shell("ls /dev")).toBe("null\nurandom\nzero");
  });

  test("sees only its own processes, and so no other root file system", async () => {
    expect(await shell("ls -d /proc/[0-9]*")).toMatch(/^\/proc\/1(\n\/proc\/\d+)?$/);
    expect(await shell('ls "/proc/1/root$3"')).toBe("read\nwork space");
  });

  test.each(["/usr/x", "/etc/x", "/x", "/proc/sys/kernel/core_pattern", "/dev/x", "/tmp/x"])(
    "cannot write to %s",
    async (path) => {
      const output = shell(`echo x > ${path}`);
      expect(await failureOf(output)).toMatchObject({ stderrTail: expect.stringMatching(/Read-only|cannot create/i) });
    },
  );

  test("cannot change read-only directories", async () => {
    expect(await throwing(shell('echo x > "$2/input"'))).toThrow(CommandError);
    expect(await readFile(join(read, "input"), "utf8")).toBe("given");
  });

  test("has no network, or the tools' one", async () => {
    const interfaces = "tail -n +3 /proc/self/net/dev | cut -d: -f1 | tr -d ' '";
    expect(await shell(interfaces)).toBe("lo");
    const connect = "exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/1'";
    expect(await failureOf(shell(connect))).toMatchObject({ stderrTail: expect.stringContaining("unreachable") });
    using network = new ToolNetwork();
    expect(await shell(interfaces, { network: network.path })).toBe("lo");
    const refused = { stderrTail: expect.stringContaining("refused") };
    expect(await failureOf(shell(connect, { network: network.path }))).toMatchObject(refused);
  });

  test("leaves no mount behind", async () => {
    const before = await readFile("/proc/self/mountinfo", "utf8");
    await shell("true");
    expect(await readFile("/proc/self/mountinfo", "utf8")).toBe(before);
  });

  test("passes its exit code and output on", async () => {
    expect(await failureOf(shell("echo why >&2; exit 3"))).toMatchObject({ exitCode: 3, stderrTail: "why" });
  });

  test("is ended with all processes that it started", async () => {
    const late = run({
      argv: ["sh", "-c", "sleep 61 & sleep 62"],
      confinement: confinement(),
      timeoutMs: 400,
    });
    expect(await failureOf(late)).toMatchObject({ timedOut: true });
  });

  test("that cannot be confined is not started, and the error does not blame the program", async () => {
    const started = run({ argv: ["true"], confinement: confinement({ readable: ["/nowhere"] }), timeoutMs: 10_000 });
    expect(await throwing(started)).toThrow("true cannot be confined: launch: ");
    expect(await failureOf(started)).not.toBeInstanceOf(CommandError);
  });

  test("can read its mounts, as mke2fs needs", async () => {
    const argv = ["mke2fs", "-q", "-F", "disk", "1000"];
    const { stderr } = await run({ argv, cwd: work, confinement: confinement(), timeoutMs: 10_000 });
    expect(stderr).toBe("");
  });

  test("has limits of memory, open files and file size", async () => {
    expect(await shell("ulimit -v; ulimit -n; ulimit -c")).toBe(`${4096 * 1024}\n77\n0`);
    const large = shell('exec head -c 3M /dev/zero >"$1/large"');
    expect(await failureOf(large)).toMatchObject({ stderrTail: expect.stringContaining("File too large") });
    expect((await stat(join(work, "large"))).size).toBe(2 * MIB);
  });

  test("makes files that others may read, whatever this process's umask", async () => {
    const before = process.umask(0o077);
    expect(await shell("umask").finally(() => process.umask(before))).toBe("0022");
  });

  test("finds the given directories, wherever they are on the host", async () => {
    for (const parent of ["/mnt", "/srv", "/run", "/dev/shm"]) {
      const directory = await mkdtemp(join(parent, "coppice-confine-"));
      await writeFile(join(directory, "file"), parent);
      const argv = ["cat", "file"];
      const { stdout } = await run({
        argv,
        cwd: directory,
        confinement: confinement({ readable: [directory] }),
        timeoutMs: 10_000,
      }).finally(() => rm(directory, { recursive: true }));
      expect(Buffer.from(stdout).toString()).toBe(parent);
    }
  });
});

describe("the privileges of a confined program", () => {
  const figures = 'grep -E "^(Cap(Prm|Eff|Bnd|Inh|Amb)|NoNewPrivs)" /proc/self/status | cut -f2 | tr "\\n" " "';

  test("are only those that it was given", async () => {
    const none = "0".repeat(16);
    expect(await shell(figures)).toBe(`${[none, none, none, none, none].join(" ")} 1`);
    const [, permitted, effective, bounding] = (await shell(figures, { capabilities: ["chown", "mknod"] })).split(" ");
    expect([permitted, effective, bounding]).toEqual(Array(3).fill("0000000008000001"));
  });

  test("allow it to make a device, which then cannot be opened", async () => {
    const make = 'mknod "$1/null" c 1 3 && stat -c %t:%T "$1/null" && (echo x > "$1/null") 2>&1; rm "$1/null"';
    expect(await shell(make, { capabilities: ["mknod"] })).toMatch(/^1:3\n.*Permission denied$/);
  });

  test("show it only the parts of /etc for libraries, hosts and authorities", async () => {
    const names = (await shell("ls /etc")).split("\n");
    expect(names).toContain("ld.so.cache");
    expect(names.filter((name) => ["passwd", "shadow", "machine-id", "coppice", "systemd"].includes(name))).toEqual([]);
    expect(await throwing(shell("cat /etc/shadow"))).toThrow(CommandError);
    expect(await throwing(shell("ls /etc/ssl/private"))).toThrow(CommandError);
  });
});

describe("the jail of umoci", () => {
  let program: string;
  beforeAll(async () => {
    program = await compileEscape(read);
  });

  async function escaping(args: readonly string[], change: Partial<Confinement> = UNPACK_RIGHTS): Promise<Outcomes> {
    const argv = fromMemory(program, args);
    const { stderr } = await run({ argv, cwd: work, confinement: confinement(change), timeoutMs: 10_000 });
    return parseOutcomes(stderr);
  }

  test("has no way out, and no device that can be opened", async () => {
    await using outside = await openOutside(join(home, "outside"));
    expect(await escaping(outside.args(work))).toEqual({
      ...JAILED,
      // Its files are measured unchanged.
      ...Object.fromEntries(ALLOCATIONS.map((name) => [name, "done"])),
      "AF_INET raw": "EPROTONOSUPPORT",
      "make a device": "done",
      "open a device": "EACCES",
      "open a device by its descriptor": "EACCES",
      "make a disk": "done",
      "open a disk": "EACCES",
    });
    // Outside, the same attempts succeed, or fail for other reasons; a kernel without a call shows here, too.
    const argv = ["unshare", "--mount", program, ...outside.args(work)];
    const free = parseOutcomes((await run({ argv, timeoutMs: 10_000 })).stderr);
    const attempts = [
      ...["mount proc", "mount tmpfs", "bind", "umount", "chroot", "setns", "unshare mnt", "clone mnt", "keyctl"],
      ...["process_vm_readv", "pidfd_getfd", "ptrace", "signal", "pidfd_open", "open_by_handle_at", "shmget"],
      ...["open a device", "open a device by its descriptor", "an abstract name", "the host's loopback", "see /sys"],
      ...["write /proc/self/mem", "a file of the host", "the same by /proc", "the same by another root"],
    ];
    expect(attempts.filter((name) => free[name] !== "done")).toEqual([]);
  });

  test("confines a tool without any privilege, too", async () => {
    await using outside = await openOutside(join(home, "outside"));
    const { writable, readable } = confinement();
    expect(await escaping(outside.args(work), { writable, readable })).toEqual({
      ...JAILED,
      // Its files are measured unchanged.
      ...Object.fromEntries(ALLOCATIONS.map((name) => [name, "done"])),
      "AF_INET raw": "EPROTONOSUPPORT",
      "make a device": "EPERM",
      "open a device": "ENOENT",
      "open a device by its descriptor": "ENOENT",
      "make a disk": "EPERM",
      "open a disk": "ENOENT",
    });
  });

  test("has no mount with set-user-ID files, and no writable one with devices", async () => {
    const mounts = (await shell("cut -d' ' -f5,6 /proc/self/mountinfo", UNPACK_RIGHTS)).split("\n");
    const lacking = (option: string) =>
      mounts.filter((line) => !line.split(" ")[1]?.split(",").includes(option)).map((line) => line.split(" ")[0]);
    expect(lacking("nosuid")).toEqual([]);
    expect(lacking("nodev")).toEqual(["/dev"]);
    expect(lacking("ro")).toEqual([work.replaceAll(" ", "\\040")]);
  });

  test("can set attributes that need CAP_SYS_ADMIN, on its own files only", async () => {
    const file = join(work, "attributes");
    await writeFile(file, "");
    await symlink(join(home, "secret"), join(work, "out"));
    await symlink("attributes", join(work, "symlink"));
    const change = async (what: "set" | "remove", path: string, name: string) =>
      (await escaping(["attribute", what, path, name]))[name];
    const set = (path: string, name: string) => change("set", path, name);
    const kept = async (path: string) => {
      const argv = ["getfattr", "--absolute-names", "-h", "-d", "-m", "-", path];
      const { stdout } = await run({ argv, timeoutMs: 10_000 });
      return Buffer.from(stdout)
        .toString()
        .split("\n")
        .filter((line) => line.includes("="));
    };
    for (const name of ["security.ima", "security.note", "trusted.note", "user.note"]) {
      expect([name, await set(file, name)]).toEqual([name, "done"]);
    }
    expect(await kept(file)).toEqual(
      ["security.ima", "security.note", "trusted.note", "user.note"].map((name) => `${name}="v"`),
    );
    expect(await change("remove", file, "security.ima")).toBe("done");
    expect(await change("remove", file, "security.ima")).toBe("ENODATA");
    // The attribute is set on a link itself, not on its target.
    expect(await set(join(work, "symlink"), "security.link")).toBe("done");
    expect(await kept(join(work, "symlink"))).toEqual(['security.link="v"']);
    expect(await kept(file)).not.toContain('security.link="v"');
    // The kernel refuses invalid ones: a malformed capability, an unknown namespace.
    expect([await set(file, "security.capability"), await set(file, "nonsense.x")]).toEqual(["EINVAL", "EOPNOTSUPP"]);
    expect(await set("attributes", "security.relative")).toBe("EPERM");
    for (const path of [join(read, "input"), "/usr/bin/env", "/dev/null", "/"]) {
      expect([path, await set(path, "trusted.note")]).toEqual([path, "EROFS"]);
    }
    for (const path of [join(work, "out/key"), join(work, "../secret/key"), "/proc/self/exe/x", join(work, "gone")]) {
      expect([path, await set(path, "security.note")]).toEqual([path, "ENOENT"]);
    }
    expect(await kept(join(home, "secret/key"))).toEqual([]);
  });

  test("has a separate server of attributes, which can do nothing else", async () => {
    await writeFile(join(work, "served"), "");
    const wrapper = confinementWrapper(confinement(UNPACK_RIGHTS), { cwd: work, parent: process.pid });
    // After a request it has dropped its privileges.
    const script = 'setfattr -h -n security.note -v v "$PWD/served" && echo && read forever';
    const child = Bun.spawn([...wrapper, "sh", "-c", script], { stdin: "pipe", stdout: "pipe" });
    const reader = child.stdout.getReader();
    expect((await reader.read()).done).toBe(false);
    const status = await readFile(`/proc/${child.pid}/status`, "utf8");
    child.kill("SIGKILL");
    await child.exited;
    expect(status).toMatch(/^NoNewPrivs:\t1$/m);
    expect(status).toMatch(/^Seccomp:\t2$/m);
    // Those of umoci and CAP_SYS_ADMIN: the kernel lets no process read the memory of one that has more privileges.
    expect(status).toMatch(/^CapEff:\t000000008820001b$/m);
    expect(status).toMatch(/^CapBnd:\t000000008820001b$/m);
  });

  test("is the only one that can have such attributes set", async () => {
    const { attributes, ...rights } = UNPACK_RIGHTS;
    await writeFile(join(work, "attributes"), "");
    const outcomes = await escaping(["attribute", "set", join(work, "attributes"), "security.note"], rights);
    expect([attributes, outcomes["security.note"]]).toEqual([true, "EPERM"]);
  });
});
