import type { OperationId } from "../../../src/domain/ids.ts";
import type { InstanceProcess, RunningInstance } from "../../../src/supervisor/instance/running-instance.ts";
import { TimeLimit } from "../../../src/supervisor/instance/time-limit.ts";
import { nativeInstance, shellSpec } from "../native-instance.ts";
import type { Api } from "./api.ts";

/** An instance of alice's whose command runs on this host, as the interface sees it. */
export interface RunningFixture extends AsyncDisposable {
  readonly id: string;
  readonly path: string;
  readonly instance: RunningInstance;
  readonly command: InstanceProcess;
}

/** Begins an instance whose command is `script`; an image with the tag `base` must be there. */
export async function runningInstance(api: Api, script: string, timeoutMs = 60_000): Promise<RunningFixture> {
  const { uuid } = (await api.call("POST", "/v1/instances", { json: { image: "tag:base", command: "true" } })).json;
  const id = uuid as OperationId;
  api.operations.start(id);
  await using stack = new AsyncDisposableStack();
  const { instance } = stack.use(await nativeInstance());
  const run = stack.use(api.parts.instances.open(id, new TimeLimit(timeoutMs)));
  stack.use(run.enter(instance));
  const command = instance.start(shellSpec(script, timeoutMs), { started: () => undefined, output: () => undefined });
  await command.started;
  const owned = stack.move();
  return { id, path: `/v1/instances/${id}`, instance, command, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
