import { join } from "node:path";
import type { OperationId } from "../../../src/domain/ids.ts";
import { Spid } from "../../../src/domain/log-event.ts";
import type { NetworkRequest } from "../../../src/domain/network.ts";
import { OUTPUT_BYTES_DEFAULT } from "../../../src/domain/output.ts";
import type { InstanceProcess } from "../../../src/supervisor/instance/instance-process.ts";
import { ProcessLog } from "../../../src/supervisor/instance/process-log.ts";
import type { RunningInstance } from "../../../src/supervisor/instance/running-instance.ts";
import { TimeLimit } from "../../../src/supervisor/instance/time-limit.ts";
import type { InstanceNetwork } from "../../../src/supervisor/network/instance-network.ts";
import type { AgentExecSpec } from "../../../src/vm/agent/agent.ts";
import { nativeInstance, shellSpec } from "../guests/native-instance.ts";
import { quietNetwork } from "../instance-network.ts";
import type { Api } from "./api.ts";

/** An instance of alice whose command runs on this host, as the interface sees it. */
export interface RunningFixture extends AsyncDisposable {
  readonly id: string;
  readonly path: string;
  readonly instance: RunningInstance;
  readonly network: InstanceNetwork;
  readonly command: InstanceProcess;
  readonly log: ProcessLog;
  /** the directory that requests for files have as their root; commands have the host's */
  readonly root: string;
  /** Waits for the end of the command, and ends the operation as a run does. */
  finish(): Promise<void>;
}

export interface RunningOptions {
  /** true: the log is a ring, and the output has no other limit */
  readonly logsToRing?: boolean;
  readonly timeoutMs?: number;
  readonly spec?: Partial<AgentExecSpec>;
  readonly network?: NetworkRequest | null;
}

/** Queues an instance of alice. An image with the tag `base` must exist. */
export async function queuedInstance(api: Api): Promise<OperationId> {
  const { uuid } = (await api.call("POST", "/v1/instances", { json: { image: "tag:base", command: "true" } })).json;
  return uuid as OperationId;
}

/** Starts an instance whose command is `script`, or one that is queued. */
export async function runningInstance(
  api: Api,
  script: string,
  { timeoutMs = 60_000, spec: more = {}, network: from = null, logsToRing = false }: RunningOptions = {},
  queued?: OperationId,
): Promise<RunningFixture> {
  const id = queued ?? (await queuedInstance(api));
  api.operations.start(id);
  await using stack = new AsyncDisposableStack();
  const { eventLogs } = api.parts;
  const events = stack.use(logsToRing ? await eventLogs.openRing(id) : eventLogs.open(id));
  stack.defer(() => events.end());
  const { instance, directory } = stack.use(await nativeInstance());
  const network = stack.use(quietNetwork(from));
  const parts = { limit: new TimeLimit(timeoutMs), hostname: "box", events, network };
  const run = stack.use(api.parts.instances.open(id, parts));
  stack.use(run.enter(instance));
  const truncateOutputAtBytes = logsToRing ? null : OUTPUT_BYTES_DEFAULT;
  const log = new ProcessLog(events, { spid: Spid.command, truncateOutputAtBytes });
  const spec = { ...shellSpec(script, timeoutMs), ...more };
  const command = instance.start(spec, log.sink(spec));
  await command.started;
  await events.written();
  const finish = async () => {
    await command.exit;
    await instance.settled();
    await events.end();
    const stored = (stream: "stdout" | "stderr") => ({ truncated: false, bytes: log.bytes(stream).kept });
    const figures = { cpu_time_ms: 1, memory_bytes: 1, timed_out: false, isolation: "vm" };
    const { exitCode } = await command.exit;
    api.operations.succeed(id, { exit_code: exitCode, stdout: stored("stdout"), stderr: stored("stderr"), ...figures });
    run[Symbol.dispose]();
  };
  const owned = stack.move();
  const path = `/v1/instances/${id}`;
  const root = join(directory, "r");
  const fixture = { id, path, instance, network, command, log, root, finish };
  return { ...fixture, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
