import { describe, expect, test } from "bun:test";
import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import {
  AgentFrame,
  ExitFlag,
  FRAME_PAYLOAD_BYTES_MAX,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  INPUT_WINDOW_BYTES_MAX,
  PROCESSES_COUNT_MAX,
  Stream,
} from "../../src/vm/agent/protocol.ts";
import {
  collect,
  type ExecRequest,
  execFrames,
  execOpen,
  execSpec,
  execute,
  frame,
  NativeAgent,
  parseError,
  signalFrame,
  syncFrame,
  u32,
} from "../support/agent/native-agent.ts";
import { until } from "../support/waiting.ts";

const shell = (script: string, more: Partial<ExecRequest> = {}): ExecRequest => ({
  argv: ["/bin/sh", "-c", script],
  ...more,
});

describe("a command", () => {
  test("has its arguments, environment, directory and streams, and an exit code", async () => {
    await using agent = await NativeAgent.mounted();
    const cwd = join(agent.directory, "made/on/the/way");
    const script = 'printf "%s|" "$@" "$A" "$PWD"; printf err >&2; umask; exit 3';
    const outcome = await execute(agent, {
      argv: ["sh", "-c", script, "zero", "one", "", "t w o"],
      env: ["PATH=/nowhere::/usr/bin:/bin", "A=b=c", `PWD=${cwd}`],
      cwd,
    });
    expect(outcome.stdout.toString()).toBe(`one||t w o|b=c|${cwd}|0022\n`);
    expect(outcome.stderr.toString()).toBe("err");
    expect([outcome.exitCode, outcome.flags]).toEqual([3, 0]);
    expect(outcome.wallUs).toBeGreaterThan(0n);
  });

  test("gets bytes that are not text unchanged", async () => {
    await using agent = await NativeAgent.mounted();
    const odd = Uint8Array.of(0xff, 0xfe, 0x0a, 0x80);
    const { stdout } = await execute(agent, { argv: ["printf", "%s", odd] });
    expect(new Uint8Array(stdout)).toEqual(odd);
  });

  test("holds no descriptor but its streams, blocks no signal and ignores none", async () => {
    await using agent = await NativeAgent.mounted();
    const { stdout } = await execute(agent, shell("ls /proc/self/fd; grep -E 'Sig(Blk|Ign)' /proc/self/status"));
    // 3 is the directory that ls itself reads.
    // Signals 32 and 33 are the C library's own: make leaves them ignored, and no program can reset them.
    const text = stdout.toString().replace(/(?<=SigIgn:\t0000000)[01]8(?=0000000)/, "00");
    expect(text).toBe("0\n1\n2\n3\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  });

  test("that is killed by a signal ends with 128 + n", async () => {
    await using agent = await NativeAgent.mounted();
    expect((await execute(agent, shell("kill -9 $$"))).exitCode).toBe(137);
    expect((await execute(agent, shell("kill -TERM $$"))).exitCode).toBe(143);
  });

  test("that cannot run ends with 127 or 126 and a message", async () => {
    await using agent = await NativeAgent.mounted();
    const file = (name: string, text: string, mode: number): string => {
      const path = join(agent.directory, name);
      writeFileSync(path, text);
      chmodSync(path, mode);
      return path;
    };
    const bin = join(agent.directory, "bin");
    mkdirSync(bin);
    file("bin/plain", "echo x\n", 0o644);
    const cases: [string, number, string][] = [
      ["no-such-command", 127, "no-such-command: command not found\n"],
      ["/no/such/file", 127, "/no/such/file: No such file or directory\n"],
      [join(bin, "plain/x"), 127, `${join(bin, "plain/x")}: Not a directory\n`],
      ["", 127, ": command not found\n"],
      ["plain", 126, "plain: Permission denied\n"],
      [bin, 126, `${bin}: Permission denied\n`],
      [file("bin/script", "echo x\n", 0o755), 126, `${join(bin, "script")}: Exec format error\n`],
    ];
    for (const [name, code, message] of cases) {
      const { exitCode, stderr } = await execute(agent, { argv: [name], env: [`PATH=/usr/bin:${bin}`] });
      expect([name, exitCode, stderr.toString()]).toEqual([name, code, message]);
    }
  });

  test("is killed with its group when its time is up", async () => {
    await using agent = await NativeAgent.mounted();
    const script = "trap '' TERM; sh -c 'sleep 60' & echo started; while :; do sleep 1; done";
    const outcome = await execute(agent, shell(script, { timeoutMs: 3000 }));
    expect([outcome.exitCode, outcome.flags]).toEqual([137, ExitFlag.timedOut]);
    expect(outcome.stdout.toString()).toBe("started\n");
    expect(Number(outcome.wallUs)).toBeGreaterThanOrEqual(3_000_000);
  });

  test("leaves no process behind", async () => {
    await using agent = await NativeAgent.mounted();
    const before = Date.now();
    const outcome = await execute(agent, shell("sleep 60 & echo $!"));
    expect([outcome.exitCode, outcome.flags]).toEqual([0, 0]);
    // Output is drained for 200 ms, in case another process still writes, and then everything is killed.
    expect(Date.now() - before).toBeGreaterThanOrEqual(180);
    // Gone, or a zombie that the init of this machine has not reaped.
    const status = `/proc/${outcome.stdout.toString().trim()}/status`;
    const text = () => readFile(status, "utf8").catch(() => "State:\tX");
    await until("it is dead", async () => /^State:\t[ZX]/m.test(await text()));
  });

  test("gets signals", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(execFrames(5, shell("trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.05; done")));
    expect((await agent.next()).type).toBe(AgentFrame.started);
    expect((await agent.next()).payload.subarray(4).toString()).toBe("ready\n");
    agent.send(signalFrame(5, 10));
    expect((await agent.next()).payload.subarray(4).toString()).toBe("got\n");
    const exit = await agent.next();
    expect([exit.type, exit.payload.readUInt32LE(4)]).toEqual([AgentFrame.exit, 7]);
  });
});

describe("standard input", () => {
  /** Sends all of `bytes` as credit arrives, then the end. */
  async function feed(agent: NativeAgent, session: number, bytes: Uint8Array): Promise<void> {
    let credit = INPUT_WINDOW_BYTES_INITIAL;
    let at = 0;
    for (;;) {
      while (at < bytes.length && credit > 0) {
        const part = bytes.subarray(at, at + Math.min(65_536, credit));
        agent.send(frame(HostFrame.stdin, session, part));
        at += part.length;
        credit -= part.length;
      }
      if (at === bytes.length) break;
      const { type, payload } = await agent.next();
      if (type === AgentFrame.exit) return;
      if (type === AgentFrame.window) credit += payload.readUInt32LE(4);
      else if (type !== AgentFrame.started) throw new Error(`a frame of type ${type}`);
    }
    agent.send(frame(HostFrame.stdin, session));
  }

  test("of 3 MiB arrives whole at a reader that starts late", async () => {
    await using agent = await NativeAgent.mounted();
    const bytes = Buffer.alloc(3 << 20, "coppice ");
    agent.send(execFrames(3, shell("sleep 0.3; exec sha256sum", { stdin: true })));
    await feed(agent, 3, bytes);
    // feed has taken STARTED.
    const seen: Buffer[] = [];
    for (let ended = false; !ended; ) {
      const { type, payload } = await agent.next();
      if (type === AgentFrame.output) seen.push(payload.subarray(4));
      ended = type === AgentFrame.exit;
    }
    const hash = new Bun.CryptoHasher("sha256").update(bytes).digest("hex");
    expect(Buffer.concat(seen).toString()).toBe(`${hash}  -\n`);
  });

  test("without a reader stops at its credit, and ends with the command", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(execFrames(3, shell("exec sleep 60", { stdin: true })));
    agent.send(frame(HostFrame.stdin, 3, Buffer.alloc(INPUT_WINDOW_BYTES_INITIAL)));
    const first = [await agent.next(), await agent.next()].sort((one, other) => one.type - other.type);
    expect(first.map(({ type }) => type)).toEqual([AgentFrame.started, AgentFrame.window]);
    // The pipe takes what fits: that credit is returned, with a larger window. The rest stays in the agent.
    expect(first[1]?.payload.readUInt32LE(4)).toBe(INPUT_WINDOW_BYTES_MAX);
    const pieces = INPUT_WINDOW_BYTES_MAX / FRAME_PAYLOAD_BYTES_MAX;
    agent.send(
      ...Array.from({ length: pieces }, () => frame(HostFrame.stdin, 3, Buffer.alloc(FRAME_PAYLOAD_BYTES_MAX))),
    );
    expect(await agent.quiet(200)).toBe(true);
    agent.send(signalFrame(3, 9));
    for (let ended = false; !ended; ) ended = (await agent.next()).type === AgentFrame.exit;
  });

  test("gives credit back in quarters of a window, and no frame for each line", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(execFrames(3, { argv: ["cat"], stdin: true }));
    expect((await agent.next()).type).toBe(AgentFrame.started);
    const quarter = INPUT_WINDOW_BYTES_INITIAL / 4;
    const line = Buffer.alloc(1024, "a");
    const grants: number[] = [];
    for (let sent = 0, back = 0; back < quarter || grants.length === 0; ) {
      if (sent === back && sent < quarter) {
        agent.send(frame(HostFrame.stdin, 3, line));
        sent += line.length;
      }
      const { type, payload } = await agent.next();
      if (type === AgentFrame.window) grants.push(sent, payload.readUInt32LE(4));
      else back += payload.length - 4;
    }
    expect(grants).toEqual([quarter, quarter]);
    agent.send(frame(HostFrame.stdin, 3));
  });

  test("may be closed by the command while the host still sends", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(execFrames(3, shell("exec <&-; sleep 0.3; echo done", { stdin: true })));
    await feed(agent, 3, Buffer.alloc(1 << 20));
    const { type } = await agent.next();
    expect([AgentFrame.output, AgentFrame.window, AgentFrame.exit] as number[]).toContain(type);
  });

  test("is /dev/null when there is none, and empty when it is empty", async () => {
    await using agent = await NativeAgent.mounted();
    expect((await execute(agent, shell("readlink /proc/self/fd/0"))).stdout.toString()).toBe("/dev/null\n");
    agent.send(execFrames(8, shell("cat; echo end", { stdin: true })), frame(HostFrame.stdin, 8));
    expect((await collect(agent, 8)).stdout.toString()).toBe("end\n");
  });
});

describe("output", () => {
  test("stays within its credit, each stream separately", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(execFrames(3, shell("(yes | head -c 400000) & (sleep 0.2; echo err >&2); wait", { timeoutMs: 20_000 })));
    const bytes = [0, 0, 0];
    let frames = 0;
    while ((bytes[1] ?? 0) < 262_144 || (bytes[2] ?? 0) === 0) {
      const { type, payload } = await agent.next();
      if (type === AgentFrame.started) continue;
      expect(type).toBe(AgentFrame.output);
      const stream = payload.readUInt32LE(0);
      bytes[stream] = (bytes[stream] ?? 0) + payload.length - 4;
      frames += 1;
    }
    expect(bytes).toEqual([0, 262_144, 4]);
    expect(frames).toBeLessThan(200);
    expect(await agent.quiet(300)).toBe(true);
    agent.send(frame(HostFrame.window, 3, u32(Stream.stdout), u32(1)));
    expect((await agent.next()).payload.length).toBe(5);
    expect(await agent.quiet(100)).toBe(true);
    agent.send(frame(HostFrame.window, 3, u32(Stream.stdout), u32(262_144)));
    expect((await collectAfterStart(agent)).length).toBe(400_000 - 262_144 - 1);
  });

  /** Standard output up to EXIT of a command that has started. */
  async function collectAfterStart(agent: NativeAgent): Promise<Buffer> {
    const chunks: Buffer[] = [];
    for (;;) {
      const { type, payload } = await agent.next();
      if (type === AgentFrame.exit) return Buffer.concat(chunks);
      if (type === AgentFrame.output) chunks.push(payload.subarray(4));
    }
  }

  test("that used its credit exactly still ends", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(execFrames(3, shell("head -c 262144 /dev/zero")));
    expect((await agent.next()).type).toBe(AgentFrame.started);
    expect((await collectAfterStart(agent)).length).toBe(262_144);
  });

  test("waits for credit after the death of its command", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(execFrames(3, shell("head -c 300000 /dev/zero")));
    // The rest is in the pipe when the command ends; EXIT comes after it.
    let bytes = 0;
    while (bytes < 262_144) {
      const { type, payload } = await agent.next();
      if (type === AgentFrame.output) bytes += payload.length - 4;
    }
    expect(await agent.quiet(600)).toBe(true);
    agent.send(frame(HostFrame.window, 3, u32(Stream.stdout), u32(100_000)));
    expect((await collectAfterStart(agent)).length).toBe(300_000 - 262_144);
  });

  test("of 8 MiB arrives whole", async () => {
    await using agent = await NativeAgent.mounted();
    const { stdout } = await execute(agent, shell("head -c 8388608 /dev/zero | tr '\\0' x"));
    expect(stdout.length).toBe(8_388_608);
    expect(stdout.every((byte) => byte === 0x78)).toBe(true);
  });
});

describe("sessions", () => {
  test("run at the same time, and end with their own codes", async () => {
    await using agent = await NativeAgent.mounted();
    const ids = Array.from({ length: PROCESSES_COUNT_MAX }, (_, index) => 1000 + index);
    // Each ends when its standard input does, so that all are alive at once.
    for (const id of ids) agent.send(execFrames(id, shell(`echo ${id}; cat; exit ${id - 1000}`, { stdin: true })));
    agent.send(execFrames(5000, shell("true")), execFrames(1003, shell("true")));
    const output = new Map<number, string>();
    const codes = new Map<number, number>();
    const errors: [number, string][] = [];
    while (codes.size < ids.length) {
      const { type, session, payload } = await agent.next();
      if (type === AgentFrame.output) output.set(session, payload.subarray(4).toString());
      if (type === AgentFrame.exit) {
        codes.set(session, payload.readUInt32LE(4));
        agent.send(frame(HostFrame.forget, session));
      }
      if (type === AgentFrame.error) errors.push([session, payload.subarray(8).toString()]);
      if (type === AgentFrame.error && errors.length === 2) {
        for (const id of ids) agent.send(frame(HostFrame.stdin, id));
      }
    }
    expect(errors).toEqual([
      [5000, `${PROCESSES_COUNT_MAX} processes are alive`],
      [1003, "session 1003 is alive"],
    ]);
    expect(ids.map((id) => [output.get(id), codes.get(id)])).toEqual(ids.map((id) => [`${id}\n`, id - 1000]));
    expect((await execute(agent, shell("echo again"))).stdout.toString()).toBe("again\n");
  });

  test("prevent freezing of the disks", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(execFrames(3, shell("exec sleep 60")), frame(HostFrame.freeze, 4));
    // STARTED may come before or after the refusal. Until then a signal would end what starts the command.
    const answers = [await agent.next(), await agent.next()];
    const [refusal, ...more] = answers.filter(({ type }) => type !== AgentFrame.started);
    expect(more).toEqual([]);
    expect(refusal && parseError(refusal).text).toBe("sessions are alive");
    agent.send(signalFrame(3, 9));
    await collect(agent, 3);
    agent.send(frame(HostFrame.freeze, 4));
    expect((await agent.next()).type).toBe(AgentFrame.done);
    agent.send(execFrames(5, shell("true")));
    expect(parseError(await agent.next()).text).toBe("no root file system is mounted");
  });
});

describe("a specification", () => {
  const open = (size: number, timeoutMs: bigint | number = 1000) => execOpen(3, size, { timeoutMs });
  const whole = execSpec({ argv: ["true"], env: ["A=b"] });

  test("that cannot be parsed is an error, and the agent continues", async () => {
    await using agent = await NativeAgent.mounted();
    const bad: Buffer[] = [
      Buffer.alloc(16, 0xff),
      Buffer.concat([whole, u32(0)]),
      execSpec({ argv: [] }),
      execSpec({ argv: ["tr\0ue"] }),
      execSpec({ argv: ["true"], env: ["A"] }),
      execSpec({ argv: ["true"], env: ["=A"] }),
      execSpec({ argv: ["true"], cwd: "relative" }),
      execSpec({ argv: ["true"], hostname: "h".repeat(65) }),
      execSpec({ argv: ["true"], cwd: `/${"d".repeat(4096)}` }),
    ];
    for (let length = 1; length < whole.length; length++) bad.push(whole.subarray(0, length));
    for (const spec of bad) {
      agent.send(open(spec.length), frame(HostFrame.execSpec, 3, spec));
      expect(parseError(await agent.next()).errno).toBeGreaterThan(0);
    }
    agent.send(open(0), open(0x7fff_ffff), open(16, 0), open(16, 0xffff_ffff_ffff_ffffn), syncFrame(9n));
    for (let index = 0; index < 4; index++) expect(parseError(await agent.next()).errno).toBeGreaterThan(0);
    expect((await agent.next()).payload.readBigUInt64LE()).toBe(9n);
  });

  test("may be large", async () => {
    await using agent = await NativeAgent.mounted();
    const argv = ["sh", "-c", "echo $#", "sh", ...Array.from({ length: 1000 }, () => "x".repeat(1000))];
    expect((await execute(agent, { argv })).stdout.toString()).toBe("1000\n");
    const tooLarge = { argv: ["true", "x".repeat(200_000)] };
    const outcome = await execute(agent, tooLarge);
    expect([outcome.exitCode, outcome.stderr.toString()]).toEqual([126, "true: Argument list too long\n"]);
  });

  test("with an impossible working directory is an error", async () => {
    await using agent = await NativeAgent.mounted();
    writeFileSync(join(agent.directory, "file"), "");
    agent.send(execFrames(3, { argv: ["true"], cwd: join(agent.directory, "file/below") }));
    expect(parseError(await agent.next()).text).toContain("file: Not a directory");
  });
});
