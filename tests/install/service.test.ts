import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { copyFile, mkdir, writeFile } from "node:fs/promises";
import { resolve } from "node:path";
import { BootedSystem } from "../support/appliance/booted-system.ts";
import { sectionOf, stepsOf } from "../support/source/documents.ts";
import { until } from "../support/waiting.ts";

const PROGRAM = resolve(process.env["COPPICE_TEST_EXECUTABLE"] ?? "dist/coppice");
/** The booted system sees the directories of the host: /root/coppice could be a clone of the repository. */
const INSTALLED_FROM = "/root/coppice-to-install";
const REGISTRY = resolve(import.meta.dir, "../support/images/registry-program.ts");
const URL = "http://127.0.0.1:8642";

let system: BootedSystem;
let registry: Bun.Subprocess<"ignore", "pipe", "inherit">;
let reference: string;

beforeAll(async () => {
  system = await BootedSystem.boot();
  await system.addUplink();
  await copyFile(PROGRAM, system.path(INSTALLED_FROM));
  registry = Bun.spawn([...system.networkPrefix, process.execPath, REGISTRY], {
    stdin: "ignore",
    stdout: "pipe",
    timeout: 280_000,
  });
  for await (const chunk of registry.stdout) {
    reference = Buffer.from(chunk).toString("utf8").trim();
    break;
  }
}, 90_000);

afterAll(async () => {
  registry?.kill("SIGKILL");
  await system?.[Symbol.asyncDispose]();
}, 60_000);

const ready = () =>
  until("instances can run", async () => (await system.run("curl", "-sf", `${URL}/readyz`)).code === 0, 90_000);
const mainPid = () => system.property("MainPID");
const MACHINES_GROUP = "/system.slice/coppice-machines.service";
const machinesProperty = (name: string) =>
  system.output("systemctl", "show", "coppice-machines", "--value", "-p", name);
const coppice = (...argv: string[]) => system.output("coppice", ...argv);

/** Runs the commands of a section, with the executable in INSTALLED_FROM and no other disk. */
async function asShown(section: string, prompt: "#" | "$" = "#"): Promise<void> {
  const steps = stepsOf(section, prompt);
  expect(steps.length).toBeGreaterThan(0);
  for (const { command } of steps) {
    const here = command.replaceAll("dist/coppice", INSTALLED_FROM).replaceAll("/mnt/nas", "/root");
    await system.output("sh", "-c", here);
  }
}

describe("the service", () => {
  test("one command installs and starts it, and it notifies systemd of its start", async () => {
    await mkdir(system.path("/etc/systemd/system/coppice.service.d"), { recursive: true });
    // There is no KVM here, and the test does not wait for the default watchdog.
    const override = "[Service]\nEnvironment=COPPICE_VM_EMULATION=allow\nWatchdogSec=15\n";
    await writeFile(system.path("/etc/systemd/system/coppice.service.d/test.conf"), override);
    const [host] = reference.split("/");
    await mkdir(system.path("/etc/coppice"), { recursive: true });
    await writeFile(system.path("/etc/coppice/config.toml"), `[registries.hosts."${host}"]\ninsecure = true\n`);
    await asShown(sectionOf("README.md", "Install"));
    expect(await system.property("ActiveState")).toBe("active");
    expect(await system.property("StatusText")).toBe(`listening on ${URL}`);
    expect(await system.output("systemctl", "is-enabled", "coppice")).toBe("enabled");
    expect(await system.output("stat", "-c", "%a %U %G", "/etc/coppice/config.toml")).toBe("640 root coppice");
    expect(await system.output("stat", "-c", "%a", "/var/lib/coppice")).toBe("700");
  }, 60_000);

  test("runs instances within the unit's restrictions", async () => {
    await ready();
    await coppice("image", "import", reference, "--tag", "base");
    const run = ["run", "--image", "tag:base", "--tag", "kept", "--", "sh", "-c", "echo precious > /root/kept; id -u"];
    expect(await coppice(...run)).toBe("0");
    expect(await coppice("cat", "tag:kept", "/root/kept")).toBe("precious");
  }, 120_000);

  test("has only the unit's privileges, and its VMs are in control groups of the machines' unit", async () => {
    const status = await system.output("cat", `/proc/${await mainPid()}/status`);
    expect(status).toMatch(/^NoNewPrivs:\t1$/m);
    expect(status).toMatch(/^Seccomp:\t2$/m);
    const bounding = BigInt(`0x${/^CapBnd:\t(\w+)$/m.exec(status)?.[1]}`);
    const [sysModule, sysRawio, netAdmin] = [16n, 17n, 12n];
    for (const capability of [sysModule, sysRawio, netAdmin]) expect((bounding >> capability) & 1n).toBe(0n);
    // The unit mounts this for the daemon, which would need one of these capabilities for it.
    expect(await system.output("cat", "/proc/mounts")).toContain("nsfs /run/coppice/network nsfs");
    const group = await system.property("ControlGroup");
    expect(group).toBe("/system.slice/coppice.service");
    // The arguments of the shell contain this pattern, and the pool may start another machine at any time.
    const groups = "for pid in $(pgrep -f '[q]emu-system'); do cat /proc/$pid/cgroup; done";
    let machines = "";
    await until("there is a machine", async () => {
      machines = (await system.run("sh", "-c", groups)).stdout;
      return machines !== "";
    });
    expect(await machinesProperty("ControlGroup")).toBe(MACHINES_GROUP);
    expect(machines).toContain(`${MACHINES_GROUP}/coppice-`);
    expect(machines).not.toContain(`${group}/`);
    const escaped = await system.run("systemctl", "show", "coppice", "-p", "NRestarts", "--value");
    expect(escaped.stdout.trim()).toBe("0");
  }, 60_000);

  test("is restarted when it hangs, by the watchdog, and when it was killed", async () => {
    const hanging = await mainPid();
    await system.output("kill", "-STOP", hanging);
    await until("another process serves", async () => ![hanging, "0"].includes(await mainPid()), 40_000);
    await until("it is up", async () => (await system.property("ActiveState")) === "active", 40_000);
    const killed = await mainPid();
    await system.output("kill", "-KILL", killed);
    await until("another process serves", async () => ![killed, "0"].includes(await mainPid()), 20_000);
    await until("it is up", async () => (await system.property("ActiveState")) === "active", 40_000);
    expect(Number(await system.property("NRestarts"))).toBe(2);
    expect(await coppice("cat", "tag:kept", "/root/kept")).toBe("precious");
  }, 120_000);

  test("is upgraded with its data in place, and the machines' unit stays", async () => {
    const before = await mainPid();
    const held = await machinesProperty("MainPID");
    expect(held).not.toBe("0");
    const { stderr, code } = await system.run(INSTALLED_FROM, "install", "--start");
    expect(code).toBe(0);
    expect(stderr).toContain("exists and stays unchanged");
    expect(await mainPid()).not.toBe(before);
    expect(await machinesProperty("MainPID")).toBe(held);
    await ready();
    expect(await coppice("run", "--image", "tag:kept", "--disposable", "--", "cat", "/root/kept")).toBe("precious");
  }, 120_000);

  test("is backed up while it runs and restored to an empty directory", async () => {
    const section = sectionOf("docs/operations.md", "Backup");
    await asShown(section, "$");
    await asShown(section);
    await system.output("rm", "-rf", "/var/lib/coppice.old");
    // The old token is valid, and the image can be run.
    await ready();
    expect(await coppice("run", "--image", "tag:kept", "--disposable", "--", "cat", "/root/kept")).toBe("precious");
  }, 120_000);

  test("ends with the reason when the configuration is wrong, and is not restarted repeatedly", async () => {
    const file = system.path("/etc/coppice/config.toml");
    const good = await Bun.file(file).text();
    await writeFile(file, `${good}\n[pool]\nsize = "many"\n`);
    expect((await system.run("systemctl", "restart", "coppice")).code).not.toBe(0);
    expect(await system.property("ActiveState")).toBe("failed");
    expect(await system.property("ExecMainStatus")).toBe("2");
    expect(await system.output("journalctl", "-u", "coppice", "-o", "cat")).toMatch(
      /config\.toml:\d+: pool\.size must be/,
    );
    await writeFile(file, good);
    await system.output("systemctl", "restart", "coppice");
  }, 60_000);

  test("sends packets only to configured hosts", async () => {
    expect(await system.sentPackets()).toBe(0);
    // Configured hosts are contacted, so the counter works.
    const refused = await system.run("coppice", "image", "import", "192.0.2.77:5000/x:1", "--timeout", "5");
    expect(refused.code).not.toBe(0);
    expect(await system.sentPackets()).toBeGreaterThan(0);
  }, 60_000);

  test("reports the same findings within the unit's restrictions as doctor does without them", async () => {
    await ready();
    const token = await coppice("token", "create", "--account", "root", "--scope", "operator");
    const reported = await system.output(
      "curl",
      "-sf",
      "-H",
      `Authorization: Bearer ${token}`,
      `${URL}/v1/operator/health`,
    );
    const states = (text: string) =>
      Object.fromEntries(
        JSON.parse(text).findings.map(({ name, state }: { name: string; state: string }) => [name, state]),
      );
    const bySelf = await system.run("env", "COPPICE_VM_EMULATION=allow", "coppice", "doctor", "--json", "--no-boot");
    expect(states(reported)).toEqual(states(bySelf.stdout));
    expect(JSON.parse(reported).healthy).toBe(bySelf.code === 0);
  }, 60_000);

  test("an uninstallation leaves only its data", async () => {
    await system.output("coppice", "uninstall");
    for (const unit of ["coppice", "coppice-machines"]) {
      expect((await system.run("systemctl", "cat", unit)).code).not.toBe(0);
      expect((await system.run("systemctl", "is-active", unit)).stdout.trim()).toBe("inactive");
    }
    expect((await system.run("pgrep", "-f", "qemu-system|coppice serve")).stdout).toBe("");
    expect((await system.run("sh", "-c", "command -v coppice")).code).not.toBe(0);
    expect(await system.output("cat", "/proc/mounts")).not.toContain("nsfs");
    expect(await system.output("ls", "/var/lib/coppice")).toContain("coppice.db");
  }, 60_000);
});
