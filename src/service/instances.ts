import { getFile } from "../db/files.ts";
import { imageDefaults, resolveImage } from "../db/images/images.ts";
import { ApiError } from "../domain/errors.ts";
import type { ImageId, OperationId } from "../domain/ids.ts";
import { checkAbsentTag, type ImageReference } from "../domain/image.ts";
import { checkVariables, onImage, resultDefaults } from "../domain/image-defaults.ts";
import { CHECKPOINT_TIMEOUT_SECONDS_DEFAULT, type InstanceStats } from "../domain/instance.ts";
import { checkMemoryForks } from "../domain/memory-fork.ts";
import type { NetworkInput, NetworkRequest } from "../domain/network.ts";
import { isTerminal } from "../domain/operation.ts";
import {
  type CheckedSpawn,
  checkSpawn,
  checkTimeout,
  type SpawnInput,
  type SpawnLimits,
  type SubmittedFile,
} from "../domain/spawn.ts";
import type { RunningInstance } from "../supervisor/instance/running-instance.ts";
import { checkpointKind } from "../supervisor/kinds/checkpoint.ts";
import { instanceKind } from "../supervisor/kinds/instance.ts";
import type { MemoryFork } from "../supervisor/kinds/instance-forks.ts";
import { type Changed, change } from "./change.ts";
import { ceilingOf, networkOf } from "./network.ts";
import type { Principal, ServiceParts } from "./parts.ts";
import {
  idOf,
  liveTarget,
  notRunning,
  onMachine,
  requireInstance,
  storedTarget,
  type Target,
} from "./running/running.ts";

const NOTHING_TO_CHANGE = "timeout or network is required";

export interface StatsRequest {
  readonly id: Target;
  /** ends the stream of samples */
  readonly signal: AbortSignal;
}

/** A connection to a port of a guest. */
export type GuestConnection = Awaited<ReturnType<RunningInstance["dial"]>>;

/** The fields of an instance to change; the others stay. */
export interface InstanceChange {
  /** time limit of the command from its start, in seconds: not shorter than the present one */
  readonly timeoutSeconds?: number | undefined;
  readonly network?: NetworkInput | undefined;
}

/** The network that a change has set; null: none. */
export interface SetNetwork {
  readonly network: NetworkRequest | null;
}

/** A connection that keeps a sandbox from being idle. Disposal resets it, unless both sides have ended it. */
export interface HeldConnection extends Disposable {
  readonly connection: GuestConnection;
}

export interface CheckpointInput {
  /** id of the instance */
  readonly id: OperationId;
  /** tag to move to the image */
  readonly tag?: string | undefined;
  /** the default is CHECKPOINT_TIMEOUT_SECONDS_DEFAULT */
  readonly timeoutSeconds?: number | undefined;
}

export interface InstanceForkInput {
  readonly count: number;
  /** number of a signal for the processes of each copy */
  readonly signal?: number | undefined;
  /** time limit of the command from the fork, in seconds; absent: what is left of that of the instance */
  readonly timeoutSeconds?: number | undefined;
  readonly disposable?: boolean | undefined;
  readonly stdinOpen?: boolean | undefined;
  /** the client has left: the fork is abandoned when no copy has begun */
  readonly abandoned: AbortSignal;
}

export interface InstanceUseCases {
  /** Limits of an instance that the operator sets. */
  readonly bounds: Pick<SpawnLimits, "instanceTimeoutSecondsMax" | "diskBytesMax">;
  /**
   * Queues a run of a command. The image and the files are resolved now: the instance keeps its image when a tag moves
   * before it starts.
   * @throws ApiError `validation_error`, `invalid_path`, `not_found` for the image or a file; `forbidden` for a network that
   *   the operator does not allow; as `OperationsPort.submit` does
   */
  spawn(principal: Principal, request: SpawnInput): Promise<Changed<OperationId>>;
  /**
   * Samples a running instance, once a second until it ends.
   * @throws ApiError `not_found`, or `conflict` when the instance is not running
   */
  stats(principal: Principal, request: StatsRequest): AsyncIterable<InstanceStats>;
  /**
   * Queues a checkpoint of a running instance. An instance has one at a time: another one is refused until it has ended.
   * @throws ApiError `not_found`; `conflict` when the instance is not running or has a checkpoint; as `OperationsPort.submit` does
   */
  checkpoint(principal: Principal, request: CheckpointInput): Promise<Changed<OperationId>>;
  /**
   * Copies a running instance with its memory; each copy is an instance whose processes continue.
   * @throws ApiError `validation_error`, `not_found`; as `InstanceForks.fork` does
   */
  fork(principal: Principal, id: OperationId, request: InstanceForkInput): Promise<Changed<MemoryFork<OperationId>>>;
  /** Takes one sample. @throws as `stats` does */
  statsOnce(principal: Principal, request: StatsRequest): Promise<InstanceStats>;
  /**
   * Changes a running instance. Returns the network that it has now; null: none.
   * @throws ApiError `not_found`; `validation_error` for a longer time than the operator allows, or a wrong network;
   *   `forbidden` for a network that the operator does not allow; `conflict` when the instance is not running, has a longer
   *   limit, or has changed its network too often; other codes when its guest cannot have a network
   */
  change(principal: Principal, id: OperationId, to: InstanceChange): Promise<Changed<SetNetwork>>;
  /**
   * Connects to a TCP port of the guest's loopback interface. A paused sandbox that allows it is resumed first.
   * @param signal abandons the wait for a machine
   * @throws ApiError `not_found`; `conflict` when the instance is not running, or nothing listens on the port;
   *   `too_many_requests` when the guest has too many connections
   */
  dial(principal: Principal, target: Target, port: number, signal: AbortSignal): Promise<Changed<HeldConnection>>;
}

export function instanceUseCases(parts: ServiceParts): InstanceUseCases {
  const { operations, limits } = parts;
  const running = (principal: Principal, { id, signal }: StatsRequest) => {
    const { log, refusal } = storedTarget(parts, principal, id);
    const samples = log.instance === null ? null : operations.stats(log.instance, signal);
    if (samples === null) throw refusal();
    return { samples, refusal };
  };
  return {
    bounds: limits,
    async spawn(principal, request) {
      return await change(parts, principal, { noun: "instance", verb: "spawn", id: (id) => id }, async () => {
        const { image, files, ...spawn } = checkSpawn(request, limits);
        const imageId = resolveImageId(parts, principal, image);
        const { network } = request;
        const { id } = await operations.submit(principal.accountId, instanceKind, {
          ...onParent(parts, imageId, spawn),
          imageId,
          files: files.map((file) => resolveFile(parts, principal, file)),
          network: network === "ceiling" ? ceilingOf(principal, limits.network) : networkOf(network, limits.network),
          requestedAt: request.timeoutFrom === "request" ? Date.now() : null,
        });
        return id;
      });
    },
    async checkpoint(principal, { id: instanceId, tag = null, timeoutSeconds = CHECKPOINT_TIMEOUT_SECONDS_DEFAULT }) {
      const { imageId, status } = requireInstance(parts, principal, instanceId);
      if (imageId === null || isTerminal(status)) throw notRunning(status);
      const submission = { instanceId, imageId, tag, timeoutSeconds };
      return await change(parts, principal, { noun: "instance", verb: "checkpoint", id: instanceId }, async () => {
        return (await operations.submit(principal.accountId, checkpointKind, submission)).id;
      });
    },
    async fork(principal, id, { count, signal, timeoutSeconds, disposable, stdinOpen = false, abandoned }) {
      const { imageId, status } = requireInstance(parts, principal, id);
      if (imageId === null || isTerminal(status)) throw notRunning(status);
      checkMemoryForks(count);
      if (timeoutSeconds !== undefined) checkTimeout(timeoutSeconds, limits.instanceTimeoutSecondsMax);
      const request = { count, disposable, stdinOpen, timeoutSeconds: timeoutSeconds ?? null, signal: signal ?? null };
      const details = ({ ids }: MemoryFork<OperationId>) => ({ forks: ids });
      return await change(parts, principal, { noun: "instance", verb: "fork", id, details }, () =>
        parts.forks.fork(principal.accountId, id, request, abandoned),
      );
    },
    stats: (principal, request) => running(principal, request).samples,
    async statsOnce(principal, request) {
      const enough = new AbortController();
      const signal = AbortSignal.any([request.signal, enough.signal]);
      const { samples, refusal } = running(principal, { ...request, signal });
      for await (const sample of samples) {
        enough.abort();
        return sample;
      }
      throw refusal();
    },
    async change(principal, id, { timeoutSeconds, network: input }) {
      const { status } = requireInstance(parts, principal, id);
      const { instances } = parts;
      const network = networkOf(input, limits.network);
      if (timeoutSeconds !== undefined) checkTimeout(timeoutSeconds, limits.instanceTimeoutSecondsMax);
      else if (input === undefined) throw new ApiError("validation_error", NOTHING_TO_CHANGE, { field: "timeout" });
      return await change(parts, principal, { noun: "instance", verb: "change", id }, async () => {
        if (timeoutSeconds !== undefined && !instances.extend(id, timeoutSeconds * 1000)) throw notRunning(status);
        if (input !== undefined && !(await instances.setNetwork(id, network))) throw notRunning(status);
        return { network };
      });
    },
    async dial(principal, target, port, signal) {
      storedTarget(parts, principal, target);
      const details = () => ({ port });
      return await change(parts, principal, { noun: "instance", verb: "connect", id: idOf(target), details }, () =>
        dial(parts, principal, { target, port, signal }),
      );
    },
  };
}

/** The request with the defaults of its image. @throws ApiError `validation_error` for variables that are too many, or too long */
function onParent<Spawn extends Omit<CheckedSpawn, "image" | "files">>(
  { db }: ServiceParts,
  id: ImageId,
  spawn: Spawn,
): Spawn {
  if (!spawn.inherit && !spawn.preserveEnv) return spawn;
  const defaults = imageDefaults(db, id);
  if (spawn.preserveEnv) checkVariables(resultDefaults(spawn, defaults).variables);
  return onImage(spawn, defaults);
}

interface Dial {
  readonly target: Target;
  readonly port: number;
  readonly signal: AbortSignal;
}

/** A connection that holds its target. */
async function dial(
  parts: ServiceParts,
  principal: Principal,
  { target, port, signal }: Dial,
): Promise<HeldConnection> {
  using undo = new DisposableStack();
  const live = undo.use(await liveTarget(parts, principal, target, { signal, resumes: true }));
  const connection = await onMachine(parts, target, live, () => live.instance.dial(port));
  undo.defer(() => connection.reset());
  const held = undo.move();
  return { connection, [Symbol.dispose]: () => held.dispose() };
}

/** The image of a reference. @throws ApiError `not_found` */
export function resolveImageId({ db }: ServiceParts, { accountId }: Principal, reference: ImageReference): ImageId {
  const row = resolveImage(db, accountId, reference);
  if (row !== null) return row.id;
  if ("tag" in reference) checkAbsentTag(reference.tag);
  throw new ApiError("not_found", "no such image", { field: "image", ...reference });
}

/** @throws ApiError `not_found` */
export function resolveFile(
  { db }: ServiceParts,
  { accountId }: Principal,
  file: CheckedSpawn["files"][number],
): SubmittedFile {
  const row = getFile(db, accountId, { uuid: file.fileId });
  if (row === null) {
    throw new ApiError("not_found", "no such file", { field: "files", path: file.path, uuid: file.fileId });
  }
  return { ...file, sha256: row.sha256, sizeBytes: row.sizeBytes };
}
