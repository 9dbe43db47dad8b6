import { describe, expect, test } from "bun:test";
import { parseLoaderList } from "../../../src/system/shared-objects.ts";
import { buildLaunchArgs } from "../../../src/vm/jail/launch.ts";
import { excerpt } from "../../../src/vm/jail/machine-process.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { buildQemuArgs } from "../../../src/vm/qemu/args.ts";
import { emulatedInstructions } from "../../../src/vm/qemu/machine.ts";
import { throwing } from "../../support/failures.ts";

const shape = { vcpus: 2, memoryBytes: 536_870_912 };
const descriptors = { qmp: 3, agent: 4 };

const MACHINE = [
  ...["-nodefaults", "-no-user-config", "-display", "none"],
  ...["-action", "panic=pause,reboot=shutdown,shutdown=pause"],
  ...["-accel", "tcg,tb-size=64", "-cpu", "max,-erms,-fsrm", "-smp", "2", "-m", "512"],
  ...["-machine", "q35,smm=off,sata=off,usb=off,vmport=off,i8042=off,smbus=off,memory-backend=m0"],
];
const DEVICES = [
  ...["-chardev", "socket,id=qmp,fd=3,server=on,wait=off", "-mon", "chardev=qmp,mode=control"],
  ...["-chardev", "ringbuf,id=console,size=16384", "-device", "isa-serial,chardev=console"],
  ...["-chardev", "socket,id=agent,fd=4,server=on,wait=off"],
  ...["-device", "virtio-serial-pci,id=serial0,addr=2.0,max_ports=2"],
  ...["-device", "virtserialport,bus=serial0.0,chardev=agent,name=agent"],
  ...["-device", "virtio-scsi-pci,id=scsi0,addr=3.0", "-device", "pvpanic-pci,addr=4.0"],
  ...["-device", "virtio-balloon-pci,free-page-reporting=on,addr=5.0"],
  ...["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"],
];
const BOOT = ["-kernel", "/proc/self/fd/5", "-initrd", "/proc/self/fd/6"];
const COMMAND_LINE = ["-append", "quiet panic=-1 cryptomgr.notests init_on_alloc=0 console=ttyS0"];

describe("QEMU's command line", () => {
  test("of a machine that boots from cold", () => {
    const start = { kind: "cold", kernel: 5, initramfs: 6 } as const;
    expect(buildQemuArgs({ acceleration: "tcg", shape, descriptors, start })).toEqual([
      "/usr/bin/qemu-system-x86_64",
      ...MACHINE,
      ...["-object", "memory-backend-ram,id=m0,size=512M", ...BOOT, ...COMMAND_LINE],
      ...DEVICES,
    ]);
  });

  test("of a template", () => {
    const start = { kind: "template", kernel: 5, initramfs: 6, memory: 7 } as const;
    expect(buildQemuArgs({ acceleration: "tcg", shape, descriptors, start })).toEqual([
      "/usr/bin/qemu-system-x86_64",
      ...MACHINE,
      ...["-object", "memory-backend-file,id=m0,size=512M,mem-path=/proc/self/fd/7,share=on", ...BOOT, ...COMMAND_LINE],
      ...DEVICES,
    ]);
  });

  test("of a clone has the template's machine and private memory", () => {
    const start = { kind: "clone" } as const;
    expect(buildQemuArgs({ acceleration: "tcg", shape, descriptors, start })).toEqual([
      "/usr/bin/qemu-system-x86_64",
      ...MACHINE,
      ...["-object", "memory-backend-ram,id=m0,size=512M"],
      ...DEVICES,
      ...["-incoming", "defer"],
    ]);
  });

  test("of a copy of a forked machine, which does not run before it is resumed", () => {
    const clone = buildQemuArgs({ acceleration: "tcg", shape, descriptors, start: { kind: "clone" } });
    const fork = buildQemuArgs({ acceleration: "tcg", shape, descriptors, start: { kind: "fork" } });
    expect(fork).toEqual([...clone, "-S"]);
  });

  test("with KVM", () => {
    const args = buildQemuArgs({ acceleration: "kvm", shape, descriptors, start: { kind: "clone" } });
    expect(args.join(" ")).toContain(" -accel kvm -cpu host ");
  });

  test("needs whole MiB of memory", () => {
    const odd = { vcpus: 1, memoryBytes: 1_048_577 };
    const start = { kind: "clone" } as const;
    expect(() => buildQemuArgs({ acceleration: "tcg", shape: odd, descriptors, start })).toThrow("multiple of 1 MiB");
  });
});

test("the launcher's command line", () => {
  const args = buildLaunchArgs(
    {
      launcher: "/assets/launch",
      root: "/data/run/root",
      directory: "/data/vms/1",
      uid: 700_001,
      cgroups: ["/cg/a", "/cg/b"],
      devices: ["/dev/kvm"],
      fileBytesMax: 4096,
      extraFds: ["socket", "socket", 17],
      program: ["/usr/bin/qemu", "-x"],
    },
    42,
  );
  expect(args).toEqual([
    "/assets/launch",
    "vm",
    ...["--cgroup", "/cg/a", "--cgroup", "/cg/b", "--root", "/data/run/root", "--vm", "/data/vms/1"],
    ...["--uid", "700001", "--gid", "700001", "--device", "/dev/kvm"],
    ...["--nofile", "512", "--fsize", "4096", "--nproc", "192", "--memlock", "65536"],
    ...["--oom-score-adj", "500", "--parent", "42", "--keep-fd", "3", "--keep-fd", "4", "--keep-fd", "5"],
    ...["--", "/usr/bin/qemu", "-x"],
  ]);
});

test("passes only the named environment variables to a program", () => {
  const options = { launcher: "/l", root: "/r", directory: "/d", uid: 7, cgroups: [], devices: [], fileBytesMax: 0 };
  const program = ["/p"];
  expect(buildLaunchArgs({ ...options, extraFds: [], program }, 1)).not.toContain("--variable");
  const args = buildLaunchArgs({ ...options, extraFds: [], program, environment: { A: "1", B: "b=c" } }, 1);
  expect(args.slice(-6)).toEqual(["--variable", "A=1", "--variable", "B=b=c", "--", "/p"]);
});

test("the loader's list has paths, without the object that the kernel provides", () => {
  const list = [
    "\tlinux-vdso.so.1 (0x00007ffcd2bf4000)",
    "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1e1c000000)",
    "\t/lib64/ld-linux-x86-64.so.2 (0x00007f1e1c5f2000)",
    "\tlibmissing.so => not found",
    "",
  ].join("\n");
  expect(parseLoaderList(list)).toEqual(["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
});

describe("user ids of machines", () => {
  test("are never shared, and the one that was unused for longest is next", async () => {
    const pool = new UidPool(1000, 3);
    const first = await pool.acquire();
    const second = await pool.acquire();
    expect([first.uid, second.uid]).toEqual([1000, 1001]);
    await first[Symbol.asyncDispose]();
    expect((await pool.acquire()).uid).toBe(1002);
    expect((await pool.acquire()).uid).toBe(1000);
    expect(await throwing(pool.acquire())).toThrow("all 3 user ids");
    await second[Symbol.asyncDispose]();
    expect((await pool.acquire()).uid).toBe(1001);
  });

  test("can be reserved for a machine that an earlier daemon started", async () => {
    const pool = new UidPool(1000, 2);
    const reserved = pool.reserve(1000);
    expect(() => pool.reserve(1000)).toThrow("user id 1000 is taken");
    for (const uid of [0, 999, 1002]) expect(() => pool.reserve(uid)).toThrow("not in the range");
    expect((await pool.acquire()).uid).toBe(1001);
    expect(await throwing(pool.acquire())).toThrow("all 2 user ids");
    await reserved[Symbol.asyncDispose]();
    expect((await pool.acquire()).uid).toBe(1000);
  });

  test("are not reused while a process has them, or while that is unknown", async () => {
    const pool = new UidPool(1000, 1);
    let left: () => Promise<number[]> = () => Promise.resolve([7]);
    {
      await using lease = await pool.acquire();
      lease.usedBy({ pids: () => left() });
    }
    expect(await throwing(pool.acquire())).toThrow("all 1 user ids");
    left = () => Promise.reject(new Error("EIO"));
    expect(await throwing(pool.acquire())).toThrow("all 1 user ids");
    left = () => Promise.resolve([]);
    const both = await Promise.allSettled([pool.acquire(), pool.acquire()]);
    expect(both.map(({ status }) => status).sort()).toEqual(["fulfilled", "rejected"]);
  });

  test("remain reserved when processes of a failed start cannot be killed", async () => {
    const pool = new UidPool(1000, 1);
    const cgroup = {
      pids: () => Promise.resolve([7]),
      [Symbol.asyncDispose]: () => Promise.reject(new Error("keeps 1 processes")),
    };
    const start = async () => {
      await using stack = new AsyncDisposableStack();
      const lease = stack.use(await pool.acquire());
      stack.use(cgroup);
      lease.usedBy(cgroup);
    };
    expect(await throwing(start())).toThrow("keeps 1 processes");
    expect(await throwing(pool.acquire())).toThrow("all 1 user ids");
  });
});

describe("the reason of an end, from the console", () => {
  test("is the panic, or without one the last lines", () => {
    const trace = `[1.0] Kernel panic - not syncing: Fatal\n${"x".repeat(9000)}`;
    expect(excerpt(`${"y".repeat(9000)}\n${trace}`)).toStartWith("Kernel panic - not syncing: Fatal\nxxx");
    expect(excerpt(trace).length).toBe(2048);
    expect(excerpt(`${"y".repeat(9000)}last\n`)).toEndWith("ylast");
  });

  test("sums KVM's counts of emulated instructions over processors, and skips lines that are not counts", () => {
    const stats = (value: unknown) => ({
      stats: [
        { name: "exits", value: 5 },
        { name: "insn_emulation", value },
      ],
    });
    expect(emulatedInstructions([stats(10), stats(32)])).toBe(42);
    for (const answer of [null, {}, [], [null], [{ stats: 1 }], [stats("9")], [{ stats: [null] }]]) {
      expect(emulatedInstructions(answer)).toBe(0);
    }
  });
});
