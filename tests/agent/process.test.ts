/** Processes in the namespaces of a command, their users, terminals, and ends. */
import { describe, expect, test } from "bun:test";
import { chmodSync, readFileSync } from "node:fs";
import { AgentFrame, ExitFlag, HostFrame, SignalFlag, Stream } from "../../src/vm/agent/protocol.ts";
import {
  collect,
  type ExecRequest,
  execFrames,
  execute,
  frame,
  NativeAgent,
  parseError,
  signalFrame,
  u16,
  u64,
} from "../support/agent/native-agent.ts";

const shell = (script: string, more: Partial<ExecRequest> = {}): ExecRequest => ({
  argv: ["/bin/sh", "-c", script],
  ...more,
});

/** Starts a command and waits for STARTED. */
async function start(agent: NativeAgent, session: number, request: ExecRequest): Promise<void> {
  agent.send(execFrames(session, request));
  const { type, payload } = await agent.next();
  if (type !== AgentFrame.started) throw new Error(`a frame of type ${type}: ${payload.toString("latin1")}`);
}

/** Output of a session until it contains `text`. */
async function read(agent: NativeAgent, text: string): Promise<string> {
  let seen = "";
  while (!seen.includes(text)) {
    const { type, payload } = await agent.next();
    if (type === AgentFrame.exit || type === AgentFrame.error) throw new Error(`the end, after ${seen}`);
    if (type === AgentFrame.output) seen += payload.subarray(4).toString();
  }
  return seen;
}

describe("the end of a process", () => {
  test("has its wait status and the kernel's figures", async () => {
    await using agent = await NativeAgent.mounted();
    const outcome = await execute(agent, shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 5"));
    expect(outcome.status).toBe(5 << 8);
    const [userUs = 0, systemUs = -1, residentKib = 0, minorFaults = 0] = outcome.usage;
    expect(userUs).toBeGreaterThan(0);
    expect(userUs + systemUs).toBeLessThan(10 * Number(outcome.wallUs));
    expect(residentKib).toBeGreaterThan(500);
    expect(minorFaults).toBeGreaterThan(10);
    expect(outcome.usage).toHaveLength(9);
  });

  test("by a signal has the signal's status", async () => {
    await using agent = await NativeAgent.mounted();
    expect((await execute(agent, shell("kill -TERM $$"))).status).toBe(15);
    const late = await execute(agent, shell("sleep 60", { timeoutMs: 100 }));
    expect([late.status, late.exitCode, late.flags]).toEqual([9, 137, ExitFlag.timedOut]);
  });

  test("by a signal that its group gets with its start comes after its start", async () => {
    await using agent = await NativeAgent.mounted();
    for (let session = 1; session <= 200; session++) {
      const signal = signalFrame(session, 15, SignalFlag.group);
      agent.send(Buffer.concat([execFrames(session, { argv: ["sleep", "60"] }), signal]));
      expect((await agent.next()).type).toBe(AgentFrame.started);
      expect((await collect(agent, session)).status).toBe(15);
    }
  });

  test("counts its own memory, and not the data that the agent buffers for others", async () => {
    await using agent = await NativeAgent.mounted();
    const [, , before = 0] = (await execute(agent, { argv: ["true"] })).usage;
    // Unread output fills the rings of ten processes.
    const ids = Array.from({ length: 10 }, (_, index) => 100 + index);
    for (const id of ids) await start(agent, id, { argv: ["sleep", "60"], stdin: true });
    for (const id of ids) {
      agent.send(frame(HostFrame.stdin, id, Buffer.alloc(65_536)));
      while ((await agent.next()).type !== AgentFrame.window);
      for (let piece = 0; piece < 4; piece++) agent.send(frame(HostFrame.stdin, id, Buffer.alloc(65_536, 1)));
    }
    const [, , after = 0] = (await execute(agent, { argv: ["true"] })).usage;
    expect(after - before).toBeLessThan(1024);
  });
});

describe("a time limit", () => {
  test("that is changed counts from the start of the process, also when it is changed before the start", async () => {
    await using agent = await NativeAgent.mounted();
    await start(agent, 3, shell("sleep 3; exit 4", { timeoutMs: 2000 }));
    agent.send(frame(HostFrame.limit, 3, u64(60_000)));
    expect(await collect(agent, 3)).toMatchObject({ exitCode: 4, flags: 0 });
    await start(agent, 4, shell("sleep 60"));
    agent.send(frame(HostFrame.limit, 4, u64(1)));
    expect(await collect(agent, 4)).toMatchObject({ exitCode: 137, flags: ExitFlag.timedOut });
    // Between its opening and its specification.
    const frames = execFrames(5, shell("sleep 60"));
    const head = 12 + 36;
    agent.send(frames.subarray(0, head), frame(HostFrame.limit, 5, u64(100)), frames.subarray(head));
    expect(await collect(agent, 5)).toMatchObject({ exitCode: 137, flags: ExitFlag.timedOut });
    // The session is over: late frames are dropped.
    agent.send(frame(HostFrame.limit, 5, u64(1)));
    expect((await execute(agent, shell("true"))).exitCode).toBe(0);
  });

  test("does not interrupt the draining of an ended process", async () => {
    await using agent = await NativeAgent.mounted();
    // It starts no program to wait for the end of the command. Even so, a busy host may let the 200 ms pass.
    const late = shell("(while kill -0 $$ 2>/dev/null; do :; done; echo late) & exit 2");
    const outs = new Set<string>();
    for (let attempt = 0; attempt < 5 && !outs.has("late\n"); attempt++) {
      agent.send(execFrames(3, late), frame(HostFrame.limit, 3, u64(60_000)));
      const outcome = await collect(agent, 3);
      expect(outcome.exitCode).toBe(2);
      outs.add(outcome.stdout.toString());
    }
    expect(outs).toContain("late\n");
  });
});

describe("a signal", () => {
  test("reaches the command alone, or its whole group", async () => {
    await using agent = await NativeAgent.mounted();
    const script =
      "trap 'echo parent; exit 3' USR1; (trap 'echo child; exit' USR1; echo up; while :; do sleep 0.05; done) & wait";
    for (const [flags, expected] of [
      [0, ["parent"]],
      [SignalFlag.group, ["child", "parent"]],
    ] as const) {
      agent.send(execFrames(4, shell(script)));
      await read(agent, "up");
      agent.send(signalFrame(4, 10, flags));
      let seen = "";
      for (let ended = false; !ended; ) {
        const { type, payload } = await agent.next();
        // On standard error the shells also report the sleep that the signal ended.
        if (type === AgentFrame.output && payload.readUInt32LE(0) === Stream.stdout) seen += payload.subarray(4);
        ended = type === AgentFrame.exit;
      }
      expect(seen.trim().split("\n").sort()).toEqual([...expected]);
      agent.send(frame(HostFrame.forget, 4));
    }
  });
});

describe("a process with a target", () => {
  test("runs without a time limit, and ends by itself", async () => {
    await using agent = await NativeAgent.mounted();
    await start(agent, 3, shell("sleep 60"));
    agent.send(execFrames(4, shell("echo second; exit 6", { main: 3, timeoutMs: 0 })));
    const outcome = await collect(agent, 4);
    expect([outcome.stdout.toString(), outcome.exitCode, outcome.status]).toEqual(["second\n", 6, 6 << 8]);
    agent.send(signalFrame(3, 9));
    expect((await collect(agent, 3)).status).toBe(9);
  });

  test("needs a command that runs in namespaces of its own", async () => {
    await using agent = await NativeAgent.mounted();
    const errno = async (session: number, main: number) => {
      agent.send(execFrames(session, shell("true", { main })));
      return parseError(await agent.next());
    };
    expect(await errno(4, 3)).toEqual({ errno: 3, text: "target process 3: No such process" });
    await start(agent, 3, shell("sleep 60"));
    await start(agent, 5, shell("sleep 60", { main: 3 }));
    expect((await errno(6, 5)).errno).toBe(3);
    expect((await errno(7, 7)).errno).toBe(3);
    agent.send(signalFrame(3, 9));
    while ((await agent.next()).type !== AgentFrame.exit);
    expect((await errno(8, 3)).errno).toBe(3);
  });
});

describe("a user and a group", () => {
  test("are those of the command, without further groups", async () => {
    await using agent = await NativeAgent.mounted();
    chmodSync(agent.directory, 0o755);
    const { stdout, exitCode } = await execute(
      agent,
      shell("id -u; id -g; id -G; echo again > /dev/stdout; cat /proc/self/status | grep CapEff", {
        uid: 1234,
        gid: 567,
      }),
    );
    expect(stdout.toString()).toBe("1234\n567\n567\nagain\nCapEff:\t0000000000000000\n");
    expect(exitCode).toBe(0);
    const group = await execute(agent, shell("id -u; id -g", { gid: 567 }));
    expect(group.stdout.toString()).toBe("0\n567\n");
  });

  test("that stand for no change in the kernel are refused", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(execFrames(3, shell("true", { uid: 0xffff_ffff })), execFrames(3, shell("true", { gid: 0xffff_ffff })));
    // Each is refused when it is opened; its specification is dropped.
    expect(parseError(await agent.next()).errno).toBe(22);
    expect(parseError(await agent.next()).errno).toBe(22);
  });
});

describe("a terminal", () => {
  const terminal = { terminal: true, rows: 24, columns: 80 };

  test("is all three streams, controls its session, and can be resized", async () => {
    await using agent = await NativeAgent.mounted();
    const script =
      "trap 'stty size; exit 4' WINCH; test -t 0 -a -t 1 -a -t 2 && echo tty; stty size; echo up > /dev/tty; while :; do sleep 0.05; done";
    await start(agent, 3, shell(script, terminal));
    expect(await read(agent, "up")).toBe("tty\r\n24 80\r\nup\r\n");
    agent.send(frame(HostFrame.resize, 3, u16(50), u16(132)));
    expect(await read(agent, "132")).toBe("50 132\r\n");
    while ((await agent.next()).type !== AgentFrame.exit);
    // The session is over: a late resize is dropped.
    agent.send(frame(HostFrame.resize, 3, u16(1), u16(1)));
    expect((await execute(agent, shell("true"))).exitCode).toBe(0);
  });

  test("echoes, edits lines, and gives signals for its keys", async () => {
    await using agent = await NativeAgent.mounted();
    await start(
      agent,
      3,
      shell("trap 'echo interrupted' INT; read line; echo \"got $line\"; read line; exit 2", terminal),
    );
    agent.send(frame(HostFrame.stdin, 3, Buffer.from("heü\x7fllo\r")));
    expect(await read(agent, "got")).toContain("got hello");
    agent.send(frame(HostFrame.stdin, 3, Buffer.of(3)));
    await read(agent, "interrupted");
    agent.send(frame(HostFrame.stdin, 3, Buffer.from("\n")));
    const exit = await untilExit(agent);
    expect(exit.payload.readUInt32LE(4)).toBe(2);
  });

  test("passes the end of input to a reader of lines", async () => {
    await using agent = await NativeAgent.mounted();
    await start(agent, 3, shell("cat; echo end", terminal));
    agent.send(frame(HostFrame.stdin, 3, Buffer.from("line\n")), frame(HostFrame.stdin, 3));
    expect(await read(agent, "end")).toBe("line\r\nline\r\nend\r\n");
    await untilExit(agent);
  });

  test("passes a large input whole to a slow reader in raw mode", async () => {
    await using agent = await NativeAgent.mounted();
    const bytes = Buffer.alloc(300_000, "0123456789abcdef");
    await start(agent, 3, shell(`stty raw -echo; echo up; sleep 0.2; head -c ${bytes.length} | sha256sum`, terminal));
    await read(agent, "up");
    let credit = 65_536;
    for (let at = 0; at < bytes.length; ) {
      const part = bytes.subarray(at, at + Math.min(credit, 65_536));
      if (part.length > 0) agent.send(frame(HostFrame.stdin, 3, part));
      at += part.length;
      credit -= part.length;
      if (credit > 0 || at === bytes.length) continue;
      const { type, payload } = await agent.next();
      if (type === AgentFrame.window) credit += payload.readUInt32LE(4);
    }
    const hash = new Bun.CryptoHasher("sha256").update(bytes).digest("hex");
    expect(await read(agent, "-")).toStartWith(hash);
    await untilExit(agent);
  });

  test("hangs up when its command ends, after all output", async () => {
    await using agent = await NativeAgent.mounted();
    const { stdout, stderr, exitCode } = await execute(agent, shell("seq 1 2000; echo err >&2; exit 9", terminal));
    const lines = Array.from({ length: 2000 }, (_, index) => `${index + 1}\r\n`).join("");
    expect([stdout.toString(), stderr.toString(), exitCode]).toEqual([`${lines}err\r\n`, "", 9]);
  });

  test("belongs to the user of its command", async () => {
    await using agent = await NativeAgent.mounted();
    const { stdout } = await execute(agent, shell("stat -c %u $(tty)", { ...terminal, uid: 1234 }));
    expect(stdout.toString()).toBe("1234\r\n");
  });

  async function untilExit(agent: NativeAgent) {
    for (;;) {
      const answer = await agent.next();
      if (answer.type === AgentFrame.exit) return answer;
    }
  }
});

describe("the agent's memory", () => {
  test("is freed from inputs that were not read", async () => {
    await using agent = await NativeAgent.mounted();
    const residentKib = () => {
      const status = readFileSync(`/proc/${agent.pid}/status`, "latin1");
      return Number(/RssAnon:\s+(\d+)/.exec(status)?.[1]);
    };
    const fill = async (ids: readonly number[]): Promise<number> => {
      let granted = 0;
      for (const id of ids) await start(agent, id, { argv: ["sleep", "60"], stdin: true });
      for (const id of ids) {
        agent.send(frame(HostFrame.stdin, id, Buffer.alloc(65_536, 1)));
        let answer = await agent.next();
        while (answer.type !== AgentFrame.window) answer = await agent.next();
        const credit = answer.payload.readUInt32LE(4);
        granted += credit;
        for (let left = credit; left > 0; left -= 65_536)
          agent.send(frame(HostFrame.stdin, id, Buffer.alloc(65_536, 1)));
      }
      return granted;
    };
    const ids = Array.from({ length: 64 }, (_, index) => 100 + index);
    const before = residentKib();
    const granted = await fill(ids);
    // 64 initial windows, and more for those that asked first.
    expect(granted).toBe(64 * 65_536 + 16 * 196_608);
    expect((await agent.sync()).type).toBe(AgentFrame.synced);
    const full = residentKib() - before;
    expect(full).toBeGreaterThan(granted / 1024 - 1024);
    expect(full).toBeLessThan(granted / 1024 + 2048);
    for (const id of ids) agent.send(signalFrame(id, 9));
    for (let ended = 0; ended < ids.length; ) if ((await agent.next()).type === AgentFrame.exit) ended += 1;
    expect(residentKib() - before).toBeLessThan(2048);
    for (const id of ids) agent.send(frame(HostFrame.forget, id));
    // The credit is available again, too.
    expect(await fill([1])).toBe(262_144);
  });
});
