import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { copyFile, mkdir, readFile, readlink, realpath } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gateArgs } from "../../../src/network/gate/process.ts";
import { start } from "../../../src/system/exec.ts";
import { type ScratchDirectory, scratchDirectory } from "../../../src/system/scratch.ts";
import {
  ALLOCATIONS,
  compileEscape,
  JAILED,
  type Outcomes,
  openOutside,
  parseOutcomes,
} from "../../support/guests/escape.ts";
import { builtAssets } from "../../support/guests/vm.ts";
import { type TestGate, testGate } from "../../support/network/gate.ts";

/** Calls that other jails allow. */
const UNKNOWN = [
  ...["give room back", "fork", "signal", "pidfd_open", "listen by a name", "make a device", "make a disk"],
];
const DEVICES = ["open a device", "open a device by its descriptor", "open a disk"];
const UID = 1_900_100_000;

describe("a program in the jail of the connecting process", () => {
  let scratch: ScratchDirectory;
  let program: string;
  beforeAll(async () => {
    scratch = await scratchDirectory(tmpdir(), "coppice-gate-jail-");
    program = await compileEscape(scratch.path);
    await mkdir(join(scratch.path, "root"));
  });
  afterAll(() => scratch[Symbol.asyncDispose]());

  async function escaping(args: readonly string[]): Promise<Outcomes> {
    const argv = gateArgs({
      launcher: builtAssets().launcher,
      cgroups: [],
      uid: UID,
      root: join(scratch.path, "root"),
      executable: program,
      readable: [],
      program: ["/program", ...args],
    });
    const child = start({ argv, extraFds: ["socket"], stderr: "tail" });
    expect(await child.exited).toEqual({ code: 0, signal: null });
    return parseOutcomes(child.stderrTail());
  }

  test("has no way out but connections of its own", async () => {
    await using outside = await openOutside(join(scratch.path, "outside"));
    expect(await escaping(outside.args("/nowhere"))).toEqual({
      ...JAILED,
      ...Object.fromEntries([...ALLOCATIONS, ...UNKNOWN].map((name) => [name, "ENOSYS"])),
      AF_UNIX: "EAFNOSUPPORT",
      "an abstract name": "EBADF",
      "AF_INET raw": "EPROTONOSUPPORT",
      listen: "EACCES",
      "listen in place of another": "EINVAL",
      ...Object.fromEntries(DEVICES.map((name) => [name, "ENOENT"])),
      "the host's loopback": "done",
    });
  });
});

describe("the connecting process", () => {
  let outside: TestGate;
  beforeAll(async () => {
    outside = await testGate();
    await outside.gate.resolve("name.example", new AbortController().signal);
  });
  afterAll(() => outside[Symbol.asyncDispose]());

  test("has a user of its own, no privilege and no file of the host", async () => {
    const launcher = outside.gate.pid ?? 0;
    const pid = (await readFile(`/proc/${launcher}/task/${launcher}/children`, "utf8")).trim();
    const status = await readFile(`/proc/${pid}/status`, "utf8");
    const field = (name: string) => new RegExp(`^${name}:[ \\t]*(.*)$`, "m").exec(status)?.[1];
    expect(field("Uid")).toBe(Array(4).fill(UID).join("\t"));
    for (const set of ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]) expect(field(set)).toBe("0000000000000000");
    expect([field("NoNewPrivs"), field("Seccomp"), field("Groups")?.trim()]).toEqual(["1", "2", ""]);
    expect(await readlink(`/proc/${pid}/ns/net`)).toBe(await readlink("/proc/self/ns/net"));
    const mounts = (await readFile(`/proc/${pid}/mountinfo`, "utf8")).trim().split("\n");
    const points = mounts.map((line) => line.split(" ")).map(([, , , , point = "", flags = ""]) => ({ point, flags }));
    expect(points.filter(({ flags }) => !flags.startsWith("ro,"))).toEqual([]);
    const libraries = /^\/(lib|lib64|usr\/lib)\//;
    // This test starts it from source, which needs the packages.
    const source = ["src", "node_modules"].map((name) => join(import.meta.dir, "../../..", name));
    const own = ["/", "/dev", "/proc", "/program", ...source];
    expect(points.filter(({ point }) => !libraries.test(point) && !own.includes(point))).toEqual([]);
    const environment = (await readFile(`/proc/${pid}/environ`, "utf8")).split("\0").filter((each) => each !== "");
    expect(environment.map((each) => each.split("=")[0]).sort()).toEqual([
      ...["BUN_BE_BUN", "BUN_JSC_forceRAMSize", "BUN_JSC_useJIT", "LANG", "NODE_ENV"],
    ]);
  });

  test("runs the program that started it, even when another one has taken its place", async () => {
    await using scratch = await scratchDirectory(tmpdir(), "coppice-gate-upgrade-");
    const runtime = join(scratch.path, "runtime");
    await copyFile(await realpath(process.execPath), runtime);
    const script = join(import.meta.dir, "../../support/network/replaced-runtime.ts");
    const child = Bun.spawn([runtime, script], { stdout: "pipe", timeout: 50_000 });
    expect(await new Response(child.stdout).text()).toBe("false 0\n");
  });
});
