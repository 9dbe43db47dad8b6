import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import type { NumbersOptions } from "../../../src/supervisor/instance/instance-process.ts";
import { RunningInstance } from "../../../src/supervisor/instance/running-instance.ts";
import type { ReadyMachine } from "../../../src/supervisor/machines/machine-source.ts";
import { Agent } from "../../../src/vm/agent/agent.ts";
import { SocketChannel } from "../../../src/vm/agent/channel.ts";
import { SYNC_ENTROPY_BYTES } from "../../../src/vm/agent/protocol.ts";
import type { MachineExit } from "../../../src/vm/vmm.ts";
import { buildNativeAgent, NATIVE_AGENT } from "../agent/native-agent.ts";

const NEVER = new AbortController().signal;

/** An instance whose guest is this host: the sanitizer build of the real agent starts real processes. */
export interface NativeInstance extends AsyncDisposable {
  readonly instance: RunningInstance;
  /** of the agent, in place of its disks */
  readonly directory: string;
}

export async function nativeInstance(numbers?: NumbersOptions): Promise<NativeInstance> {
  await buildNativeAgent();
  await using stack = new AsyncDisposableStack();
  const directory = mkdtempSync(join(NATIVE_AGENT, "../run-"));
  stack.defer(() => rmSync(directory, { recursive: true, force: true }));
  for (const path of ["l/00/upper", "s/upper", "r"]) mkdirSync(join(directory, path), { recursive: true });
  const child = Bun.spawn([NATIVE_AGENT, "3", directory], {
    stdio: ["ignore", "ignore", "ignore", "pipe"],
    env: { PATH: "/usr/bin:/bin", ASAN_OPTIONS: `log_path=${join(directory, "sanitizer")}:detect_leaks=0` },
  });
  const channel = stack.use(await SocketChannel.open(child.stdio[3] as number));
  const agent = Agent.open(channel);
  await agent.sync({ realtimeNs: BigInt(Date.now()) * 1_000_000n, entropy: new Uint8Array(SYNC_ENTROPY_BYTES) });
  await agent.mount({ layers: 1, scratch: true });
  const kill = async () => {
    channel.close();
    await child.exited;
  };
  stack.defer(kill);
  const exited = child.exited.then((): MachineExit => ({ reason: "killed", detail: "" }) as MachineExit);
  const usage = { cpuTimeMs: 0, memoryBytes: 0, memoryPeakBytes: 0, cacheBytes: 0, pids: 1 };
  const machine = { exited, kill, cgroup: { stats: async () => usage } };
  const ready = { machine, agent, isolation: "vm", [Symbol.asyncDispose]: kill } as unknown as ReadyMachine;
  const take = async () => ready;
  const machines = { take, takeUnpooled: take, launcher: async () => "/launch" };
  const instance = stack.use(await RunningInstance.take(machines, { vcpus: 1, memoryBytes: 1 }, NEVER, numbers));
  const owned = stack.move();
  return { instance, directory, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

/** A command of the host's shell. */
export function shellSpec(script: string, timeoutMs = 60_000) {
  const env = { PATH: "/usr/bin:/bin" };
  return { argv: ["/bin/sh", "-c", script], env, cwd: "/", hostname: "box", timeoutMs };
}
