import { afterAll, describe, expect, test } from "bun:test";
import { readdirSync, readFileSync, readlinkSync, writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { readExitReport } from "../../../src/vm/jail/exit-report.ts";
import { processIdentity } from "../../../src/vm/jail/processes.ts";
import { failureOf } from "../../support/failures.ts";
import { childOf, launchScript } from "../../support/guests/busybox-jail.ts";
import { until } from "../../support/waiting.ts";

const directory = await mkdtemp("/tmp/coppice-report-");
afterAll(() => rm(directory, { recursive: true, force: true }));

const launched = (stack: AsyncDisposableStack, script: string) => launchScript(stack, directory, script);
const runs = (pid: number) => processIdentity(pid) !== null;

describe("a launcher reports the end of its program", () => {
  test("with its exit status and its standard error", async () => {
    await using stack = new AsyncDisposableStack();
    const script = await launched(stack, `printf 'a "quoted" \\\\ line\\n\\001\\033[0m\\n' >&2; exit 3`);
    expect(await script.exited).toEqual({ code: 3, signal: null });
    expect(script.stderrTail()).toBe('a "quoted" \\ line\n\u0001\u001b[0m');
    expect(readFileSync(script.report, "utf8")).toBe(
      '{"status":3,"signal":null,"stderr":"a \\u0022quoted\\u0022 \\u005c line\\u000a\\u0001\\u001b[0m\\u000a"}\n',
    );
  });

  test("with the signal that ended it", async () => {
    await using stack = new AsyncDisposableStack();
    const script = await launched(stack, "echo it waits >&2; sleep 60");
    await until("the program runs", () => childOf(script.pid) !== null);
    expect(await readExitReport(script.report)).toBeNull();
    process.kill(childOf(script.pid) ?? 0, "SIGKILL");
    expect(await script.exited).toEqual({ code: null, signal: "9" });
  });

  test("with the fault that crashed it", async () => {
    await using stack = new AsyncDisposableStack();
    const script = await launched(stack, "f() { f; }; f");
    expect(await script.exited).toEqual({ code: null, signal: "11" });
  });

  test("with its own message when the program cannot be started", async () => {
    await using stack = new AsyncDisposableStack();
    const script = await launched(stack, "exec /bin/nothing");
    expect((await script.exited).code).toBe(127);
    expect(script.stderrTail()).toContain("/bin/nothing");
  });

  test("with the last 4 KiB of a long standard error, which costs the daemon nothing", async () => {
    await using stack = new AsyncDisposableStack();
    const script = await launched(stack, "yes '\"' | head -c 3000000 >&2; echo the end >&2");
    expect(await script.exited).toEqual({ code: 0, signal: null });
    expect(Buffer.byteLength(script.stderrTail())).toBe(4095);
    expect(script.stderrTail()).toEndWith('"\nthe end');
    expect(readFileSync(script.report).byteLength).toBeLessThan(6 * 4096 + 80);
  });

  test("not when it is killed itself, and the program dies with it", async () => {
    await using stack = new AsyncDisposableStack();
    const script = await launched(stack, "sleep 60");
    await until("the program runs", () => childOf(script.pid) !== null);
    const program = childOf(script.pid) ?? 0;
    await script.lease.untie();
    process.kill(script.pid, "SIGKILL");
    expect(await script.exited).toEqual({ code: null, signal: "SIGKILL" });
    await until("the program is dead", () => !runs(program));
    expect(await readExitReport(script.report)).toBeNull();
  });

  test("to a file that the program cannot reach", async () => {
    await using stack = new AsyncDisposableStack();
    const script = await launched(stack, "echo ready >&2; sleep 60");
    await until("the program runs", () => {
      const program = childOf(script.pid);
      return program !== null && readlinkSync(`/proc/${program}/exe`).endsWith("/busybox");
    });
    const program = childOf(script.pid) ?? 0;
    const descriptors = (pid: number) =>
      readdirSync(`/proc/${pid}/fd`).map((fd) => readlinkSync(`/proc/${pid}/fd/${fd}`).replace(/\[.*/, ""));
    expect(descriptors(program).sort()).toEqual(["/dev/null", "/dev/null", "pipe:"]);
    // Sockets: the channel to the program, the lease, and its own standard error. The pipe is the program's.
    const own = ["/dev/null", "/dev/null", "pipe:", "socket:", "socket:", "socket:", script.report, "anon_inode:"];
    await until("the launcher has closed the rest", () => descriptors(script.pid).length <= own.length);
    expect(descriptors(script.pid).sort()).toEqual(own.sort());
    expect(readdirSync(`/proc/${program}/root/vm`)).toEqual([]);
  });
});

describe("when the daemon is killed,", () => {
  async function killedParent(tie: "tied" | "untied") {
    const program = join(import.meta.dir, "../../support/guests/jail-parent.ts");
    const parent = Bun.spawn([process.execPath, program, directory, tie], { stdout: "pipe", stderr: "inherit" });
    const { value } = await parent.stdout.getReader().read();
    const [launcher, report = ""] = Buffer.from(value ?? new Uint8Array())
      .toString("utf8")
      .trim()
      .split(" ");
    const pid = Number(launcher);
    await until("the program runs", () => childOf(pid) !== null);
    const pids = [pid, childOf(pid) ?? 0];
    expect(pids.map(runs)).toEqual([true, true]);
    parent.kill("SIGKILL");
    await parent.exited;
    return { pids, report };
  }

  test("a tied program dies with it", async () => {
    const { pids } = await killedParent("tied");
    await until("both are dead", () => !pids.some(runs));
  });

  test("an untied program lives on, and its end is reported with what it wrote since", async () => {
    const { pids, report } = await killedParent("untied");
    expect(pids.map(runs)).toEqual([true, true]);
    expect(await readExitReport(report)).toBeNull();
    writeFileSync(join(dirname(report), "vm/stop"), "");
    await until("both have ended", () => !pids.some(runs));
    expect(await readExitReport(report)).toEqual({
      status: { code: 7, signal: null },
      stderr: "it runs\nafter its parent",
    });
  });
});

test("a lease cannot untie a launcher that has ended", async () => {
  await using stack = new AsyncDisposableStack();
  const script = await launched(stack, "exit 0");
  await script.exited;
  expect(await failureOf(script.lease.untie())).toMatchObject({ name: "VmmError", message: "the machine has ended" });
});

test("an incomplete report is none", async () => {
  const path = join(directory, "incomplete");
  expect(await readExitReport(path)).toBeNull();
  writeFileSync(path, '{"status":3,"signal":null,"stderr":"the disk was f');
  expect(await readExitReport(path)).toBeNull();
});
