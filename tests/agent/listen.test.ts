import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { closeSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createConnection, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { connectUnix, listenUnix } from "../../src/system/unix-sockets.ts";
import { Agent } from "../../src/vm/agent/agent.ts";
import { SocketChannel } from "../../src/vm/agent/channel.ts";
import { AgentFrame } from "../../src/vm/agent/protocol.ts";
import { EXIT_REFUSED, syncFrame } from "../support/agent/native-agent.ts";
import { pause, until } from "../support/waiting.ts";

const ROOT = resolve(import.meta.dir, "../..");
const LIMIT_MS = 20_000;

let directory: string;
let path: string;
let agent: ChildProcess;
let exited: Promise<number | null>;
beforeEach(() => {
  const build = ["-s", "-C", "vm-assets/agent", "native"];
  expect(spawnSync("make", build, { cwd: ROOT, timeout: 120_000 }).status).toBe(0);
  directory = mkdtempSync(join(tmpdir(), "coppice-agent-"));
  for (const each of ["l/00/upper", "s/upper", "r"]) mkdirSync(join(directory, each), { recursive: true });
  path = join(directory, "agent.sock");
  const listener = listenUnix(path);
  const log = `log_path=${join(directory, "sanitizer")}`;
  agent = spawn(join(ROOT, "build/agent/agent-native"), ["listen:3", directory], {
    stdio: ["ignore", "ignore", "ignore", listener],
    env: { PATH: "/usr/bin:/bin", ASAN_OPTIONS: `${log}:detect_leaks=0`, UBSAN_OPTIONS: `${log}:print_stacktrace=1` },
  });
  closeSync(listener);
  exited = new Promise((done) => void agent.on("exit", (code) => done(code)));
});
afterEach(async () => {
  agent.kill("SIGKILL");
  await exited;
  const reports = readdirSync(directory).filter((name) => name.startsWith("sanitizer"));
  expect(reports.map((name) => readFileSync(join(directory, name), "utf8"))).toEqual([]);
  rmSync(directory, { recursive: true, force: true });
});

/** A host of bare frames: the types of the frames that it received. */
class Host {
  readonly #socket: Socket = createConnection(path);
  #bytes = Buffer.alloc(0);
  readonly types: number[] = [];
  readonly closed: Promise<void>;

  constructor() {
    this.#socket.on("error", () => this.#socket.destroy());
    this.#socket.on("data", (chunk) => {
      this.#bytes = Buffer.concat([this.#bytes, chunk as Buffer]);
      for (let end = this.#end(); end !== null; end = this.#end()) {
        this.types.push(this.#bytes.readUInt16LE(4));
        this.#bytes = this.#bytes.subarray(end);
      }
    });
    this.closed = new Promise((done) => void this.#socket.on("close", () => done()));
  }

  #end(): number | null {
    const end = this.#bytes.length < 12 ? null : 12 + this.#bytes.readUInt32LE(0);
    return end === null || this.#bytes.length < end ? null : end;
  }

  send(...bytes: readonly Uint8Array[]): void {
    this.#socket.write(Buffer.concat(bytes));
  }

  async until(type: number): Promise<void> {
    await until(`a frame of type ${type} comes`, () => this.types.includes(type), LIMIT_MS);
  }

  leave(): void {
    this.#socket.destroy();
  }
}

describe("an agent that listens", () => {
  test("greets every host, and keeps the state of the one before", async () => {
    for (let visit = 0; visit < 5; visit++) {
      const channel = await SocketChannel.open(connectUnix(path));
      await using _channel = channel;
      const client = Agent.open(channel);
      await client.hello(AbortSignal.timeout(LIMIT_MS));
      await client.sync({ realtimeNs: BigInt(Date.now()) * 1_000_000n, entropy: new Uint8Array(32) });
      if (visit === 0) await client.mount({ layers: 1, scratch: true });
      const spec = { argv: ["/bin/sh", "-c", "exit 7"], env: {}, cwd: "/", hostname: "x", timeoutMs: LIMIT_MS };
      expect(await client.exec(spec, () => undefined).exit).toMatchObject({ exitCode: 7 });
    }
    expect(agent.exitCode).toBeNull();
  });

  test("serves one at a time", async () => {
    const first = new Host();
    await first.until(AgentFrame.hello);
    const second = new Host();
    second.send(syncFrame());
    first.send(syncFrame());
    await first.until(AgentFrame.synced);
    await pause("the second would be served", 50);
    expect(second.types).toEqual([]);
    first.leave();
    await second.until(AgentFrame.synced);
    expect(second.types).toEqual([AgentFrame.hello, AgentFrame.synced]);
    second.leave();
  });

  test("drops half a frame of a host that left, and answers for it", async () => {
    const first = new Host();
    first.send(syncFrame(), syncFrame().subarray(0, 20));
    await first.until(AgentFrame.synced);
    first.leave();
    const second = new Host();
    second.send(syncFrame(2n));
    await second.until(AgentFrame.synced);
    expect(second.types).toEqual([AgentFrame.hello, AgentFrame.synced]);
    second.leave();
  });

  test("ends for a malformed frame", async () => {
    const host = new Host();
    host.send(Buffer.alloc(64, 0xff));
    expect(await exited).toBe(EXIT_REFUSED);
    await host.closed;
  });
});
