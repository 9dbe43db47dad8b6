/** Additional processes, terminals and connections in a real guest, a frozen scratch, and a held stream. */

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { type AgentError, AgentRefusedError, type ExecHandle } from "../../../src/vm/agent/agent.ts";
import { PROCESSES_COUNT_MAX, Refusal } from "../../../src/vm/agent/protocol.ts";
import { openVmHost, shell, type TestMachine, type VmHost } from "../../support/guests/vm.ts";
import { pause } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(120_000);

let host: VmHost;
let vm: TestMachine;
beforeAll(async () => {
  host = await openVmHost();
  vm = await host.mounted();
});
afterAll(async () => {
  await vm[Symbol.asyncDispose]();
  await host[Symbol.asyncDispose]();
});

const SPEC = { env: { PATH: "/bin" }, cwd: "/", hostname: "shoot", timeoutMs: 60_000 };
const script = (text: string) => ({ ...SPEC, argv: ["/bin/sh", "-c", text] });

/** A command and its growing output, as text. */
interface Watched {
  readonly run: ExecHandle;
  readonly output: () => string;
  /** resolves when the output matches */
  until(pattern: string | RegExp): Promise<void>;
}

function watch(spec: Parameters<TestMachine["agent"]["exec"]>[0], command?: ExecHandle): Watched {
  let output = "";
  let wake: () => void = () => undefined;
  const run = vm.agent.exec(
    spec,
    (_, chunk) => {
      output += Buffer.from(chunk).toString();
      wake();
    },
    command === undefined ? {} : { target: command },
  );
  const ended = run.exit.then(() => undefined);
  ended.catch(() => undefined);
  const until = async (pattern: string | RegExp) => {
    const matches = () => (typeof pattern === "string" ? output.includes(pattern) : pattern.test(output));
    while (!matches()) {
      const changed = new Promise<boolean>((resolve) => {
        wake = () => resolve(false);
      });
      const over = await Promise.race([changed, ended.then(() => true)]);
      if (over && !matches()) throw new Error(`the command ended after ${JSON.stringify(output)}`);
    }
  };
  return { run, output: () => output, until };
}

async function end({ run }: Watched): Promise<number> {
  run.signal(9);
  return (await run.exit).exitCode;
}

describe("an additional process", () => {
  test("shares the command's processes, files and host name, and has a cgroup of its own", async () => {
    const main = watch(
      script("cd /; mkdir -p /tmp; mount -t tmpfs none /tmp; echo here > /tmp/file; echo up; sleep 100"),
    );
    await main.until("up");
    const text = "cat /tmp/file; hostname; busybox ps -o pid,args; cat /proc/self/cgroup";
    const extra = watch({ ...script(`busybox sh -c '${text}'`), hostname: "other", timeoutMs: 0 }, main.run);
    const exit = await extra.run.exit;
    expect(exit.exitCode).toBe(0);
    expect(extra.output()).toStartWith("here\nshoot\n");
    expect(extra.output()).toContain("sleep 100");
    expect(extra.output()).toEndWith("0::/\n");
    expect(exit.memoryPeakBytes).toBeGreaterThan(50_000n);
    expect(exit.memoryPeakBytes).toBeLessThan(50_000_000n);
    expect(await end(main)).toBe(137);
  });

  test("ends with the command, and leaves nothing behind when it ends before", async () => {
    const main = watch(script("echo up; sleep 100"));
    await main.until("up");
    const short = watch(script("sleep 77 & echo bye"), main.run);
    expect((await short.run.exit).exitCode).toBe(0);
    const listing = watch(script("busybox ps -o args"), main.run);
    await listing.run.exit;
    expect(listing.output()).not.toContain("sleep 77");
    const long = watch(script("echo up; sleep 100"), main.run);
    await long.until("up");
    await end(main);
    expect(await long.run.exit).toMatchObject({ exitCode: 137, signal: 9, timedOut: false });
    const late = watch(script("true"), main.run);
    const error = await late.run.exit.catch((reason: unknown) => reason);
    expect((error as AgentError).errno).toBe(3);
  });

  test("may be one of the maximum number", async () => {
    const main = watch(script("echo up; sleep 100"));
    await main.until("up");
    const all = Array.from({ length: PROCESSES_COUNT_MAX - 1 }, (_, index) =>
      watch({ ...script(`read line; echo ${index} $line`), stdin: "open" }, main.run),
    );
    await Promise.all(all.map(({ run }) => run.started));
    await Promise.all(all.map(async ({ run }) => [await run.write(Buffer.from("go\n")), await run.end()]));
    await Promise.all(all.map(({ run }) => run.exit));
    expect(all.map(({ output }) => output())).toEqual(all.map((_, index) => `${index} go\n`));
    await end(main);
  });
});

describe("what a lingering process leaves behind", () => {
  /** An idle command, which reaps what is left. */
  const idle = async (): Promise<Watched> => {
    const main = watch({ ...script("idle"), isIdle: true, timeoutMs: 0 });
    await main.run.started;
    return main;
  };
  const lingering = (text: string, more: object = {}) => ({ ...script(text), lingers: true, ...more });
  const output = async (text: string, main: Watched): Promise<string> => {
    const extra = watch(script(text), main.run);
    expect((await extra.run.exit).exitCode).toBe(0);
    return extra.output();
  };
  const CGROUPS = "mkdir /cgroups$$; mount -t cgroup2 none /cgroups$$; cd /cgroups$$";

  test("stays in a cgroup of its own, also when it was frozen, and is reaped", async () => {
    const main = await idle();
    const plain = watch(lingering("sleep 77 >/dev/null 2>&1 & echo $!"), main.run);
    expect(await plain.run.exit).toMatchObject({ exitCode: 0, timedOut: false });
    const freeze = "mkdir own; echo $! > own/cgroup.procs; echo 1 > own/cgroup.freeze";
    const frozen = watch(lingering(`${CGROUPS}; sleep 78 >/dev/null 2>&1 & echo $!; ${freeze}`), main.run);
    expect((await frozen.run.exit).exitCode).toBe(0);
    // The agent bounds the depth, so that it finds the deepest one.
    const nest = "while mkdir d; do cd d; done; echo $! > cgroup.procs";
    const deep = watch(lingering(`${CGROUPS}; sleep 78 >/dev/null 2>&1 & echo $!; { ${nest}; } 2>/dev/null`), main.run);
    expect((await deep.run.exit).exitCode).toBe(0);
    for (const { output: pid } of [plain, frozen, deep]) {
      const read = `cd /proc/${pid().trim()}; cat cgroup; busybox grep -e State -e PPid status`;
      expect(await output(read, main)).toMatch(/^0::\/\.\.\/left\nState:\tS .*\nPPid:\t1\n$/);
      await output(`kill ${pid().trim()}; while [ -e /proc/${pid().trim()} ]; do :; done`, main);
    }
    const last = watch(lingering("sleep 79 >/dev/null 2>&1 &"), main.run);
    expect((await last.run.exit).exitCode).toBe(0);
    expect(await end(main)).toBe(137);
    expect((await shell(vm.agent, "busybox ps -o args")).stdout).not.toContain("sleep");
  });

  test("does not take the processes that commands need", async () => {
    const main = await idle();
    const count = "ls -d /proc/[0-9]* | wc -l";
    const many = "i=0; while [ $i -lt 900 ]; do i=$((i+1)); sleep 77 & done >/dev/null 2>&1";
    expect((await watch(lingering(many), main.run).run.exit).exitCode).toBe(0);
    const left = Number(await output(count, main));
    expect(left).toBeGreaterThan(700);
    // 768 of them, the command, those that count, and some that have ended and are not reaped yet.
    expect(left).toBeLessThan(800);
    // It forks until it cannot.
    const bomb = "(while sleep 78 & do :; done) >/dev/null 2>&1 &";
    expect((await watch(lingering(bomb), main.run).run.exit).exitCode).toBe(0);
    expect(Number(await output(count, main))).toBeLessThan(800);
    await end(main);
  });

  test("is killed with the command that has frozen its own cgroup, at the time limit", async () => {
    const main = await idle();
    const freeze = `${CGROUPS}; sleep 78 & echo 1 > cgroup.freeze; sleep 79`;
    const frozen = watch(lingering(freeze, { timeoutMs: 3000 }), main.run);
    expect(await frozen.run.exit).toMatchObject({ exitCode: 137, timedOut: true });
    expect(await output("busybox ps -o args", main)).not.toContain("sleep");
    await end(main);
  });
});

describe("a command", () => {
  test("has the kernel's figures of its own processes", async () => {
    const busy = await shell(
      vm.agent,
      "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; head -c 20000000 /dev/zero | tail -c 1 | wc -c",
    );
    expect(busy.usage.userTimeUs + busy.usage.systemTimeUs).toBeGreaterThan(1000n);
    // The cgroup counts the work of the reaper, too.
    expect(busy.usage.userTimeUs + busy.usage.systemTimeUs).toBeLessThanOrEqual(busy.cpuTimeUs + 20_000n);
    expect(busy.usage.residentKibMax).toBeGreaterThan(300n);
    expect(busy.usage.residentKibMax).toBeLessThan(40_000n);
    expect(busy.usage.minorFaults).toBeGreaterThan(0n);
    const late = await shell(vm.agent, "while :; do :; done", { timeoutMs: 500 });
    expect(late).toMatchObject({ exitCode: 137, signal: 9, timedOut: true });
    expect(late.usage.userTimeUs + late.usage.systemTimeUs).toBeGreaterThan(100_000n);
  });

  test("may run as an ordinary user, with files of its own", async () => {
    const text = "id -u; id -g; echo x > /root/file || echo denied; echo again > /dev/stdout";
    const result = await shell(vm.agent, `busybox sh -c '${text}'`, { user: { uid: 1234, gid: 567 } });
    expect(result.stdout).toBe("1234\n567\ndenied\nagain\n");
  });

  test("can have a terminal of its own, with a size and job control", async () => {
    const main = watch({
      ...script("tty; stty size; echo up; read line; stty size; exit 3"),
      terminal: { rows: 24, columns: 80 },
    });
    await main.until("up");
    const extra = watch({ ...script("tty; sh -i"), terminal: { rows: 1, columns: 2 } }, main.run);
    await extra.until("/dev/pts/1");
    await extra.until("# ");
    // The signal interrupts the job, not the shell. The job writes first, so that it is in the foreground by then.
    await extra.run.write(Buffer.from("sh -c 'echo job$((0+1)); sleep 100'\n"));
    await extra.until("job1");
    await extra.run.write(Buffer.of(3));
    await extra.run.write(Buffer.from("echo still$((1+1))\n"));
    // Input before the prompt may be lost when the mode of the terminal changes.
    await extra.until(/still2\r\n[^\n]*# /);
    expect(extra.output()).not.toContain("job control turned off");
    await extra.run.end();
    await extra.run.exit;
    main.run.resize({ rows: 50, columns: 132 });
    await main.run.write(Buffer.from("\n"));
    expect((await main.run.exit).exitCode).toBe(3);
    expect(main.output().replaceAll("\r", "")).toBe("/dev/pts/0\n24 80\nup\n\n50 132\n");
  });
});

describe("a connection into the guest", () => {
  test("reaches a server, and is refused without one", async () => {
    const server = watch(script("echo up; busybox nc -l -p 8080 -e busybox cat"));
    await server.until("up");
    const bytes = Buffer.alloc(1_000_000, "coppice ");
    const connect = async () => {
      for (;;) {
        const result = await vm.agent.dial(8080).catch((error: unknown) => error);
        if (!(result instanceof AgentRefusedError)) return result as Awaited<ReturnType<typeof vm.agent.dial>>;
      }
    };
    await using connection = await connect();
    const sent = connection.write(bytes).then(() => connection.end());
    const chunks: Uint8Array[] = [];
    for await (const chunk of connection.chunks()) chunks.push(chunk);
    await sent;
    expect(Buffer.concat(chunks).equals(bytes)).toBe(true);
    expect((await server.run.exit).exitCode).toBe(0);
    const refused = await vm.agent.dial(8080).catch((error: unknown) => error);
    expect((refused as AgentRefusedError).reason).toBe(Refusal.refused);
  });
});

describe("a frozen scratch", () => {
  /** A hash of a disk's length and content. */
  const sum = async (): Promise<string> => {
    const hash = new Bun.CryptoHasher("sha256");
    for await (const chunk of Bun.file(join(vm.machine.directory, "S")).stream()) hash.update(chunk);
    return hash.digest("hex");
  };

  test("does not change on the host while a command writes, which continues afterwards", async () => {
    // The counter is overwritten without being emptied first: a freeze may come at any moment.
    const writer = watch(script("i=0; while :; do i=$((i+1)); echo $i 1<> /counter; busybox sync; echo $i; done"));
    await writer.until("3\n");
    await vm.agent.flush();
    const still = await vm.agent.quiesce(60_000);
    const seen = writer.output();
    const before = await sum();
    // Readers are not stopped, and read the disk.
    const counter = (await shell(vm.agent, "cat /counter")).stdout;
    expect(Number(counter)).toBeGreaterThan(2);
    expect(await sum()).toBe(before);
    // Only the line of the last completed write may be new.
    expect(writer.output().length - seen.length).toBeLessThan(20);
    expect(await still.thaw()).toBeGreaterThan(0n);
    await writer.until(`${Number(counter) + 2}\n`);
    await end(writer);
  });

  test("lets a writer be killed at its time limit", async () => {
    const writer = watch({ ...script("echo up; while :; do echo x > /late; done"), timeoutMs: 700 });
    await writer.until("up");
    const still = await vm.agent.quiesce(60_000);
    expect(await writer.run.exit).toMatchObject({ exitCode: 137, timedOut: true });
    const error = await still.thaw().catch((reason: unknown) => reason);
    expect((error as AgentError).errno).toBe(125);
  });

  test("thaws when its time is over", async () => {
    const still = await vm.agent.quiesce(100);
    expect((await shell(vm.agent, "echo x > /after; cat /after")).stdout).toBe("x\n");
    const error = await still.thaw().catch((reason: unknown) => reason);
    expect((error as AgentError).errno).toBe(110);
  });
});

describe("a held stream", () => {
  test("stops, and continues with every byte", async () => {
    let bytes = 0;
    let held = false;
    const run = vm.agent.exec(script("yes | head -c 6000000"), (_, chunk) => {
      expect(held).toBe(false);
      bytes += chunk.byteLength;
    });
    for (let round = 0; round < 3; round++) {
      await vm.agent.hold();
      held = true;
      // This was requested during the hold, and is answered after it.
      const other = shell(vm.agent, "echo other");
      other.catch(() => undefined);
      await pause("output and the answer would come", 100);
      held = false;
      await vm.agent.sync({ realtimeNs: BigInt(Date.now()) * 1_000_000n, entropy: new Uint8Array(32) });
      expect((await other).stdout).toBe("other\n");
    }
    expect((await run.exit).exitCode).toBe(0);
    expect(bytes).toBe(6_000_000);
  });
});
