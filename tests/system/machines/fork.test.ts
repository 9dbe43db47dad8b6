/** Forks of running machines with their memory: exactness, streams, disks, and what is left of those that fail. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, readdirSync } from "node:fs";
import { mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../../../src/system/exec.ts";
import type { QemuMachine } from "../../../src/vm/qemu/machine.ts";
import { syncAgent } from "../../../src/vm/templates.ts";
import type { Machine } from "../../../src/vm/vmm.ts";
import { throwing } from "../../support/failures.ts";
import { copiers, copy, fork, GuestMemory, newScratchPath, pausedCopy, prepare } from "../../support/guests/forks.ts";
import {
  footprint,
  greeted,
  openVmHost,
  shell,
  TEST_SHAPE,
  type TestMachine,
  type VmHost,
} from "../../support/guests/vm.ts";
import { until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(180_000);

const SIGKILL = 9;

let host: VmHost;
beforeAll(async () => {
  host = await openVmHost("qemu");
  await host.template();
});
afterAll(() => host[Symbol.asyncDispose]());

/** Writes to memory, to its scratch and to its output all the time. */
const BUSY = `mkdir -p /work; mount -t tmpfs none /tmp; i=0
while :; do
  i=$((i+1)); head -c 100000 /dev/urandom > /work/file$((i % 20)); cat /work/file$((i % 20)) > /tmp/copy; echo $i
done`;

function start({ agent }: TestMachine, script: string) {
  const output: { text: string } = { text: "" };
  const handle = agent.exec(
    { argv: ["/bin/sh", "-c", script], env: { PATH: "/bin" }, cwd: "/", hostname: "guest", timeoutMs: 600_000 },
    (_stream, chunk) => {
      output.text += Buffer.from(chunk).toString();
      return undefined;
    },
  );
  handle.exit.catch(() => undefined);
  return { handle, output };
}

async function memoryOf(machine: Machine): Promise<GuestMemory> {
  const answer = await (machine as QemuMachine).qmp.execute("human-monitor-command", { "command-line": "gpa2hva 0" });
  return new GuestMemory(machine, BigInt(/is (0x[0-9a-f]+)/.exec(String(answer))?.[1] ?? "0"));
}

/** Takes a fork, and compares the memory of the machine at that instant with that of a copy that has not run. */
async function expectExactCopy(vm: TestMachine): Promise<void> {
  const { machine } = vm;
  const scratch = newScratchPath(host);
  await using prepared = await prepare(machine, scratch);
  await vm.agent.hold();
  machine.resume = () => Promise.resolve();
  await using point = await prepared.take();
  // The method of its class.
  Reflect.deleteProperty(machine, "resume");
  await using paused = await pausedCopy(host, { point, scratch });
  using own = await memoryOf(machine);
  using copied = await memoryOf(paused);
  expect(own.differences(copied)).toEqual([]);
  await machine.resume();
  await syncAgent(vm.agent);
}

describe("the memory of a copy", () => {
  test("is that of the machine at the instant of the fork, in five generations of busy machines", async () => {
    await using stack = new AsyncDisposableStack();
    let vm = stack.use(await host.mounted());
    const { output } = start(vm, BUSY);
    await until("it is busy", () => output.text.split("\n").length > 3);
    for (let generation = 0; generation < 4; generation++) {
      await expectExactCopy(vm);
      await using forked = await fork(host, vm);
      const lines = { text: "" };
      vm = stack.use(
        await copy(host, forked, () => (_stream, chunk) => {
          lines.text += Buffer.from(chunk).toString();
          return undefined;
        }),
      );
      await until("the copy is busy, too", () => lines.text.split("\n").length > 3);
    }
    await expectExactCopy(vm);
  });

  test("is that of a machine that booted from cold", async () => {
    await using machine = await host.vmm.boot(TEST_SHAPE);
    const vm = { machine, agent: await greeted(machine), [Symbol.asyncDispose]: async () => undefined };
    await machine.attach(await host.disks(machine));
    await vm.agent.mount({ layers: 1, scratch: true });
    await expectExactCopy(vm);
    await using forked = await fork(host, vm);
    await using child = await copy(host, forked);
    expect((await shell(child.agent, "echo it runs")).stdout).toBe("it runs\n");
  });
});

describe("a copy", () => {
  test("and its machine go each their own way, with processes, files and page cache, entropy and the right time", async () => {
    await using vm = await host.mounted();
    await shell(vm.agent, "echo before > /file");
    const { output } = start(vm, "i=0; while read line; do i=$((i+1)); echo $i $line; done");
    await using forked = await fork(host, vm);
    expect(forked.point.pausedMs).toBeGreaterThan(0);
    const children = await Promise.all([copy(host, forked), copy(host, forked)]);
    await using _children = {
      [Symbol.asyncDispose]: async () => void (await Promise.all(children.map((c) => c[Symbol.asyncDispose]()))),
    };
    await shell(vm.agent, "echo parent > /file");
    const seen = await Promise.all(
      children.map(async ({ agent }, index) => {
        await shell(agent, `echo child ${index} >> /file`);
        return (await shell(agent, "cat /file; head -c 16 /dev/urandom | busybox md5sum; date +%s")).stdout.split("\n");
      }),
    );
    expect(seen.map(([first, second]) => [first, second])).toEqual([
      ["before", "child 0"],
      ["before", "child 1"],
    ]);
    expect(new Set(seen.map((lines) => lines[2])).size).toBe(2);
    for (const lines of seen) expect(Math.abs(Number(lines[3]) - Date.now() / 1000)).toBeLessThan(30);
    expect((await shell(vm.agent, "cat /file")).stdout).toBe("parent\n");
    expect(output.text).toBe("");
  });

  test("has a whole file system, although its machine was writing", async () => {
    await using vm = await host.mounted();
    const { handle, output } = start(vm, BUSY);
    await until("it is busy", () => output.text.split("\n").length > 10);
    await using forked = await fork(host, vm);
    await using child = await copy(host, forked);
    for (const { machine, agent, processes } of [{ ...vm, processes: [handle] }, child]) {
      for (const writer of processes) {
        writer.signal(SIGKILL, { group: true });
        await writer.exit;
      }
      expect((await shell(agent, "cd /work; busybox md5sum * > /sums; busybox sync; echo done")).stdout).toBe("done\n");
      await agent.freeze();
      // It fails when the file system is damaged.
      await run({ argv: ["e2fsck", "-fn", join(machine.directory, "S")], timeoutMs: 60_000 });
    }
  });
});

test("a fork that is saved continues after its machine and every file descriptor of it are gone", async () => {
  const directory = await mkdtemp(join(host.directory, "saved-"));
  const files = async () =>
    Promise.all(readdirSync(directory).map(async (name) => (await stat(join(directory, name))).size));
  const vm = await host.mounted();
  const { output } = start(vm, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done");
  await until("it talks", () => output.text.length > 3);
  const { point, record, scratch } = await fork(host, vm);
  await point.save(directory);
  expect((await files()).reduce((sum, size) => sum + size, 0)).toBeLessThan(point.savedBytes + 65_536);
  await point[Symbol.asyncDispose]();
  await point.released;
  await vm[Symbol.asyncDispose]();
  const before = await files();
  for (const isCompressed of [false, true]) {
    if (isCompressed) await host.vmm.compressFork?.(directory, AbortSignal.timeout(60_000));
    const loaded = await host.vmm.loadFork?.(directory);
    if (loaded === undefined) throw new Error("this VMM cannot load forks");
    await using _loaded = loaded;
    const lines = { text: output.text.slice(0, record.processes[0]?.stdout.receivedBytes) };
    await using _child = await copy(host, { point: loaded, record, scratch }, () => (_stream, chunk) => {
      lines.text += Buffer.from(chunk).toString();
      return undefined;
    });
    const seen = lines.text.length;
    await until("the copy talks", () => lines.text.length > seen + 10);
    const numbers = lines.text.split("\n").slice(0, -1).map(Number);
    expect(numbers).toEqual(numbers.map((_, index) => index + 1));
  }
  expect(Math.max(...(await files()))).toBeLessThan(Math.max(...before) / 2);
  const kvm = { ...JSON.parse(await readFile(join(directory, "fork.json"), "utf8")) };
  kvm.origin.acceleration = "kvm";
  await writeFile(join(directory, "fork.json"), JSON.stringify(kvm));
  expect(await throwing(host.vmm.loadFork?.(directory))).toThrow("saved with KVM, and machines run with emulation now");
});

describe("the output of a machine that is forked ten times", () => {
  const TALK = {
    bulk: "i=0; while :; do i=$((i+1)); echo $i some text to fill the line; done",
    slow: "i=0; while :; do i=$((i+1)); echo $i some text to fill the line; sleep 0.2; done",
  };
  /** Number of lines that a copy writes. */
  const LINES = { bulk: 3000, slow: 3 };
  const linesOf = (text: string): string[] => text.split("\n").slice(0, -1);
  const expected = (count: number) => Array.from({ length: count }, (_, at) => `${at + 1} some text to fill the line`);

  test.each(["bulk", "slow"] as const)("continues exactly in the machine and in every copy: %s", async (kind) => {
    await using vm = await host.mounted();
    const { output } = start(vm, TALK[kind]);
    for (let round = 0; round < 10; round++) {
      const earlier = output.text.length;
      await until("the machine talks", () => output.text.length > earlier);
      await using forked = await fork(host, vm);
      const [process] = forked.record.processes;
      const before = output.text.slice(0, process?.stdout.receivedBytes);
      const after = { text: "" };
      const receive = (_stream: string, chunk: Uint8Array) => {
        after.text += Buffer.from(chunk).toString();
        return undefined;
      };
      await using _child = await copy(host, forked, () => receive);
      await until("the copy talks", () => linesOf(after.text).length > LINES[kind]);
      const lines = linesOf(before + after.text);
      expect(lines).toEqual(expected(lines.length));
    }
    const lines = linesOf(output.text);
    expect(lines).toEqual(expected(lines.length));
  });
});

describe("a fork that fails", () => {
  let vm: TestMachine;
  beforeAll(async () => {
    vm = await host.mounted();
  });
  afterAll(() => vm[Symbol.asyncDispose]());

  const filesOf = ({ machine }: TestMachine) => readdirSync(machine.directory).sort();
  const monitorFiles = ({ machine }: TestMachine) => readdirSync(`/proc/${machine.pid}/fd`).length;

  /** Runs `work`, after which neither this process nor the monitor may have more than before, and the guest answers. */
  async function leavingNothing(work: (scratchPath: string) => Promise<void>): Promise<void> {
    const [before, monitorBefore] = [footprint(host), monitorFiles(vm)];
    const scratchPath = newScratchPath(host);
    await work(scratchPath);
    await rm(scratchPath, { force: true });
    await until("the monitor has closed its files", () => monitorFiles(vm) <= monitorBefore);
    await until("this process has closed its files", () => Bun.deepEquals(footprint(host), before));
    expect(filesOf(vm)).toEqual(["L00", "S"]);
    expect((await shell(vm.agent, "echo alive")).stdout).toBe("alive\n");
  }

  test("because it is aborted before the pause leaves nothing behind", async () => {
    await leavingNothing(async (scratchPath) => {
      const gone = new AbortController();
      const aborted = vm.machine.prepareFork?.({ scratchPath, signal: gone.signal });
      await until("the copying has begun", () => copiers().length > 0 || existsSync(scratchPath));
      gone.abort(new Error("not wanted"));
      expect(await throwing(aborted)).toThrow("not wanted");
    });
    await leavingNothing(async (scratchPath) => {
      await using _prepared = await prepare(vm.machine, scratchPath);
    });
  });

  test("because the program that copies is killed leaves nothing behind", async () => {
    await leavingNothing(async (scratchPath) => {
      await using prepared = await prepare(vm.machine, scratchPath);
      await vm.agent.hold();
      for (const pid of copiers()) process.kill(pid, "SIGKILL");
      expect(await throwing(prepared.take())).toThrow("the memory was not copied: the program ended (SIGKILL)");
      await syncAgent(vm.agent);
    });
  });

  test("because its disk cannot be copied leaves nothing behind", async () => {
    await leavingNothing(async (scratchPath) => {
      await Bun.write(scratchPath, "in the way");
      expect(await throwing(prepare(vm.machine, scratchPath))).toThrow("EEXIST");
    });
  });

  test("leaves nothing behind, like one that succeeds and whose copies end", async () => {
    await leavingNothing(async () => {
      const forked = await fork(host, vm);
      const child = await copy(host, forked);
      await forked[Symbol.asyncDispose]();
      let isReleased = false;
      void forked.point.released.then(() => {
        isReleased = true;
      });
      // The copy maps the memory.
      expect((await shell(child.agent, "echo alive")).stdout).toBe("alive\n");
      expect(isReleased).toBe(false);
      await child[Symbol.asyncDispose]();
      await forked.point.released;
      expect(await throwing(pausedCopy(host, forked))).toThrow("the saved machine is gone");
      await rm(forked.scratch);
    });
  });

  test("because the machine cannot continue ends it with the reason", async () => {
    await using other = await host.mounted();
    await using prepared = await prepare(other.machine, newScratchPath(host));
    await other.agent.hold();
    other.machine.resume = () => Promise.reject(new Error("no room"));
    await prepared.take();
    const { reason, detail } = await other.machine.exited;
    expect({ reason, detail }).toEqual({
      reason: "vmm_died",
      detail: "the machine could not continue after a fork: no room",
    });
  });

  test("because the monitor is killed reports the machine's end", async () => {
    await using other = await host.mounted();
    await using prepared = await prepare(other.machine, newScratchPath(host));
    await other.agent.hold();
    process.kill(other.machine.pid, "SIGKILL");
    expect(await throwing(prepared.take())).toThrow();
    expect((await other.machine.exited).detail).toContain("was killed by signal 9");
  });
});
