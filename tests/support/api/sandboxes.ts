import { join } from "node:path";
import { getImage } from "../../../src/db/images/images.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import { findSandbox } from "../../../src/db/sandboxes/rows.ts";
import type { AccountId, ImageId, OperationId, SandboxId } from "../../../src/domain/ids.ts";
import { NO_DEFAULTS } from "../../../src/domain/image-defaults.ts";
import { SIGKILL_SIGNAL } from "../../../src/domain/signals.ts";
import type { RunningInstance } from "../../../src/supervisor/instance/running-instance.ts";
import { TimeLimit } from "../../../src/supervisor/instance/time-limit.ts";
import { nativeInstance, shellSpec } from "../guests/native-instance.ts";
import { quietNetwork } from "../instance-network.ts";
import { until } from "../waiting.ts";
import type { Api } from "./api.ts";
import { makeLayer } from "./layers.ts";

const ALICE = "alice" as AccountId;
const FOREVER_MS = 600_000;

/** A sandbox of alice whose processes run on this host, as the interface sees it. */
export interface SandboxFixture extends AsyncDisposable {
  readonly id: string;
  readonly path: string;
  readonly instance: RunningInstance;
  /** the root of its files, on this host */
  readonly root: string;
  /** Waits until a request has ended the machine, and saves or gives up its files as the supervisor does. */
  finish(): Promise<void>;
}

/** Opens a sandbox of alice, which gets no machine yet. An image with the tag `base` must exist. */
export async function openSandbox(api: Api, fields: Readonly<Record<string, unknown>> = {}): Promise<string> {
  const answer = await api.call("POST", "/v1/sandboxes", { json: { image: "tag:base", ...fields } });
  if (answer.status !== 201) throw new Error(answer.text);
  return answer.json.uuid;
}

/** Gives a machine to a sandbox that waits for one. */
export async function runSandbox(api: Api, id: string): Promise<SandboxFixture> {
  const { db, lives, instances, operations } = api.parts;
  const sandboxId = id as SandboxId;
  const operationId = findSandbox(db, sandboxId)?.operationId ?? null;
  if (operationId === null) throw new Error("the sandbox waits for no machine");
  operations.start(operationId);
  await using stack = new AsyncDisposableStack();
  const life = stack.use(await lives.begin({ id: operationId, accountId: ALICE, kind: "sandbox" }, sandboxId));
  const { instance, directory } = stack.use(await nativeInstance(life.numbers));
  const root = join(directory, "r");
  const network = stack.use(quietNetwork(null));
  const parts = { limit: new TimeLimit(FOREVER_MS), hostname: "box", events: life.events, network };
  const run = stack.use(instances.open(operationId, parts));
  stack.use(run.enter(instance));
  const sink = { started: () => undefined, output: () => undefined, bytes: () => ({ kept: 0, dropped: 0 }) };
  const command = instance.start(shellSpec("exec sleep 600", FOREVER_MS), {
    ...sink,
    exited: () => undefined,
  } as never);
  await command.started;
  life.started();
  const finish = async () => {
    await until("a request ends the machine", () => life.ending !== null);
    const { ending } = life;
    await command.exit;
    // In a guest, they die with the command.
    for (const process of instance.processes) process.signal(SIGKILL_SIGNAL, { group: true });
    await instance.settled();
    if (ending === null) throw new Error("no request has ended the machine");
    const saved = ending === "discard" ? null : await savedImage(api, sandboxId, { ...ending, operationId });
    const image = saved === null ? {} : { image: saved.image.id };
    const result = { cpu_time_ms: 1, memory_bytes: 1, isolation: "vm", ...image };
    // A request may have ended the sandbox while its machine started.
    const isPublished = publishOperation(db, { operationId, result, now: Date.now(), ...saved });
    if (!isPublished && findSandbox(db, sandboxId)?.state !== "ended") throw new Error("it has ended");
    await owned.disposeAsync();
    if (isPublished) operations.tell(operationId);
  };
  const owned = stack.move();
  return { id, path: `/v1/sandboxes/${id}`, instance, root, finish, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

/** Makes the image of a checkpoint of a sandbox that is queued, or will be, as the supervisor does. */
export async function finishCheckpoint(api: Api, id: string): Promise<ImageId> {
  const { db, operations } = api.parts;
  let operationId = "" as OperationId;
  await until("the checkpoint is queued", async () => {
    const { json } = await api.call("GET", "/v1/operations?kind=checkpoint&status=PENDING");
    operationId = json[0]?.id;
    return operationId !== undefined;
  });
  operations.start(operationId);
  const sandboxId = id as SandboxId;
  const instance = findSandbox(db, sandboxId)?.operationId;
  const saved = await savedImage(api, sandboxId, { reason: "checkpoint", tag: null, operationId });
  const sandbox = { ...saved.sandbox, instance, isPaused: false } as typeof saved.sandbox;
  const result = { image: saved.image.id };
  if (!publishOperation(db, { operationId, result, now: Date.now(), ...saved, sandbox }))
    throw new Error("it has ended");
  operations.tell(operationId);
  return saved.image.id;
}

type Saving = { readonly reason: "pause" } & Record<string, unknown>;

/** The rows of a saved state with one more file. */
async function savedImage(api: Api, id: SandboxId, saving: object) {
  const { db, layout } = api.parts;
  const { reason, tag, operationId } = saving as Saving & { tag: string | null; operationId: never };
  const parentId = findSandbox(db, id)?.headId as ImageId;
  const below = getImage(db, ALICE, parentId);
  if (below === null) throw new Error("the head is gone");
  const layer = await makeLayer(layout, [{ path: `saved-${Bun.randomUUIDv7()}`, type: "f", content: "x" }]);
  const { diskBytes, entryCount } = layer;
  const rows = { format: "ext4", sizeBytes: diskBytes, diskBytes, entryCount } as const;
  return {
    layer: { id: layer.id, parentId: below.layerId, ...rows },
    image: {
      ...{ id: Bun.randomUUIDv7() as ImageId, parentId, layerId: layer.id, sizeBytes: diskBytes },
      ...{ defaults: NO_DEFAULTS, origin: { command: ["sandbox"] } },
    },
    ...(tag === null ? {} : { tag }),
    sandbox: { id, instance: operationId, reason, isPaused: true },
  };
}
