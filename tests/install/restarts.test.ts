import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { copyFile, mkdir, writeFile } from "node:fs/promises";
import { resolve } from "node:path";
import { openDatabase } from "../../src/db/database.ts";
import { operations } from "../../src/db/schema.ts";
import { dataLayout } from "../../src/storage/layout.ts";
import { HOST_STOPPED } from "../../src/supervisor/operations/failures.ts";
import { BootedSystem } from "../support/appliance/booted-system.ts";
import { until } from "../support/waiting.ts";

const PROGRAM = resolve(process.env["COPPICE_TEST_EXECUTABLE"] ?? "dist/coppice");
const INSTALLED_FROM = "/root/coppice-to-install";
const REGISTRY = resolve(import.meta.dir, "../support/images/registry-program.ts");
const READY = "http://127.0.0.1:8642/readyz";
/** Joins a control group of the machines' unit, in each tree of systemd's, as a machine does. */
const JOIN = `
for tree in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
  unit=$tree/system.slice/coppice-machines.service
  if [ -e $unit/cgroup.procs ]; then mkdir -p $unit/machine && echo $$ >$unit/machine/cgroup.procs; fi
done
exec sleep 1000`;

let system: BootedSystem;
let registry: Bun.Subprocess<"ignore", "pipe", "inherit">;
/** a small image in the registry */
let reference: string;
/** a process in the machines' unit */
let machine = "";
/** an instance that counts */
let instance = "";

beforeAll(async () => {
  system = await BootedSystem.boot();
  await copyFile(PROGRAM, system.path(INSTALLED_FROM));
  await mkdir(system.path("/etc/systemd/system/coppice.service.d"), { recursive: true });
  // There is no KVM here.
  const override = "[Service]\nEnvironment=COPPICE_VM_EMULATION=allow\n";
  await writeFile(system.path("/etc/systemd/system/coppice.service.d/test.conf"), override);
  const argv = [...system.networkPrefix, process.execPath, REGISTRY];
  registry = Bun.spawn(argv, { stdin: "ignore", stdout: "pipe", timeout: 280_000 });
  for await (const chunk of registry.stdout) {
    reference = Buffer.from(chunk).toString("utf8").trim();
    break;
  }
  await mkdir(system.path("/etc/coppice"), { recursive: true });
  const host = reference.split("/")[0];
  await writeFile(system.path("/etc/coppice/config.toml"), `[registries.hosts."${host}"]\ninsecure = true\n`);
  await system.output(INSTALLED_FROM, "install", "--start");
  await startMachine();
  await until("instances can run", async () => (await system.run("curl", "-sf", READY)).code === 0, 90_000);
  await system.output("coppice", "token", "create", "--account", "me", "--save");
  await system.output("coppice", "image", "import", reference, "--tag", "base");
  const count = "i=0; while sleep 0.1; do i=$((i+1)); echo line $i; done";
  instance = await system.output("coppice", "run", "--image", "tag:base", "-d", "--", "sh", "-c", count);
  await until("it counts", async () => (await linesOf(instance)).length > 0);
}, 180_000);

afterAll(async () => {
  registry?.kill("SIGKILL");
  await system?.[Symbol.asyncDispose]();
}, 60_000);

async function startMachine(): Promise<void> {
  machine = await system.output("sh", "-c", `setsid sh -c '${JOIN}' >/dev/null 2>&1 & echo $!`);
  await until("it is in the machines' unit", async () =>
    (await cgroupsOf(machine)).includes("machines.service/machine"),
  );
}
const linesOf = async (id: string) => (await system.output("coppice", "logs", id)).split("\n").filter(Boolean);
const cgroupsOf = async (pid: string) => (await system.run("cat", `/proc/${pid}/cgroup`)).stdout;
const runs = async () => (await system.run("kill", "-0", machine)).code === 0;
const mainPid = () => system.property("MainPID");
const isActive = async (unit: string) => (await system.run("systemctl", "is-active", unit)).stdout.trim();

describe("the machines' unit keeps its processes", () => {
  test("over a restart of the service, and its runtime directory stays", async () => {
    const before = await mainPid();
    await system.output("systemctl", "restart", "coppice");
    expect(await mainPid()).not.toBe(before);
    expect(await runs()).toBe(true);
  }, 60_000);

  test("when the service is killed", async () => {
    const killed = await mainPid();
    await system.output("kill", "-KILL", killed);
    await until("another process serves", async () => ![killed, "0"].includes(await mainPid()));
    await until("it is up", async () => (await isActive("coppice")) === "active");
    expect(await runs()).toBe(true);
  }, 60_000);

  test("when the service is stopped by either command, and started again", async () => {
    for (const stop of [
      ["systemctl", "stop", "coppice"],
      ["coppice", "stop"],
    ]) {
      await system.output(...stop);
      expect([await isActive("coppice"), await isActive("coppice-machines"), await runs()]).toEqual([
        "inactive",
        "active",
        true,
      ]);
      expect(await system.output("ls", "-d", "/run/coppice")).toBe("/run/coppice");
      await system.output("systemctl", "start", "coppice");
    }
  }, 60_000);

  test("over an upgrade, which names the instance that runs on", async () => {
    const { code, stderr } = await system.run(INSTALLED_FROM, "install", "--start", "--drain=1m");
    expect([code, stderr]).toEqual([0, expect.stringContaining("1 instance runs on during the restart\n")]);
    expect(await runs()).toBe(true);
  }, 60_000);

  test("and an instance writes every line of its count once, over all of these", async () => {
    const before = (await linesOf(instance)).length;
    await until("it still counts", async () => (await linesOf(instance)).length > before + 10);
    const lines = await linesOf(instance);
    expect(lines).toEqual(lines.map((_, index) => `line ${index + 1}`));
    const refused = await system.run("coppice", "uninstall");
    expect([refused.code, refused.stderr]).toEqual([1, expect.stringContaining("1 operation runs: --force ends")]);
  }, 60_000);
});

describe("the machines' unit ends", () => {
  test("by its own stop, and starts again without machines while the service runs", async () => {
    const held = await system.output("systemctl", "show", "coppice-machines", "--value", "-p", "MainPID");
    const serving = await mainPid();
    await system.output("systemctl", "stop", "coppice-machines");
    expect(await runs()).toBe(false);
    await until("it runs again", async () => (await isActive("coppice-machines")) === "active");
    expect(await system.output("systemctl", "show", "coppice-machines", "--value", "-p", "MainPID")).not.toBe(held);
    expect(await mainPid()).toBe(serving);
    await startMachine();
  }, 60_000);

  test("by coppice stop --all, which systemd does not undo", async () => {
    expect(await system.output("coppice", "stop", "--all")).toBe("stopped, with everything that ran");
    expect([await isActive("coppice"), await isActive("coppice-machines"), await runs()]).toEqual([
      "inactive",
      "inactive",
      false,
    ]);
    expect(await system.output("coppice", "stop", "--all")).toBe("no appliance runs");
    await system.output("systemctl", "start", "coppice");
    expect(await isActive("coppice-machines")).toBe("active");
  }, 60_000);

  test("by an uninstallation", async () => {
    await system.output("coppice", "uninstall", "--force");
    expect([await isActive("coppice"), await isActive("coppice-machines")]).toEqual(["inactive", "inactive"]);
    expect((await system.run("systemctl", "cat", "coppice-machines")).code).not.toBe(0);
  }, 60_000);
});

test("a shutdown of the host ends instances first, with the reason", async () => {
  await system.output(INSTALLED_FROM, "install", "--start");
  await until("instances can run", async () => (await system.run("curl", "-sf", READY)).code === 0, 90_000);
  const slow = await system.output("coppice", "run", "--image", "tag:base", "-d", "--", "sleep", "600");
  await until("it runs", async () => (await system.run("coppice", "exec", slow, "--", "true")).code === 0);
  await system.powerOff();
  using db = openDatabase(dataLayout(system.dataDirectory).database);
  const rows = db.orm.select().from(operations).all();
  expect(rows.find(({ id }) => id === slow)).toMatchObject({ status: "FAILED", error: HOST_STOPPED.body() });
}, 150_000);
