import { given } from "../../../domain/given.ts";
import { isoTime } from "../../../domain/ids.ts";
import { networkInputOf } from "../../../domain/network.ts";
import type { SandboxSample as StoredSample } from "../../../domain/sandbox.ts";
import type { SandboxInput, SettingsInput } from "../../../service/sandboxes/checks.ts";
import type {
  KeptMemory as StoredMemory,
  Sandbox as StoredSandbox,
  SavedState as StoredState,
} from "../../../service/sandboxes/sandboxes.ts";
import { commandOf, filesOf, resourcesOf } from "../command-wire.ts";
import type { NetworkFields } from "../schema/network.ts";
import type { Sandbox, SandboxPatch, SandboxRequest, SandboxSample, SavedState } from "../schema/sandboxes.ts";

/**
 * The wire form of a sandbox.
 * @param memory its kept memory; null: none
 * @param pattern address of its ports; null: the operator serves none
 */
export function sandboxOf(
  sandbox: StoredSandbox,
  { memory, pattern }: { readonly memory: StoredMemory | null; readonly pattern: string | null },
): Sandbox {
  const { id, imageId, headId, operationId, idleTimeoutMs, onTimeout, autoResume, envNames, resources } = sandbox;
  const { name, state, createdAt, stateAt, endedAt, endsAt, cwd, user, network, metadata, publicPorts, error } =
    sandbox;
  const { parentId, forkedAtEvent, pauseMemory } = sandbox;
  return {
    uuid: id,
    name,
    image: imageId,
    head: headId,
    state,
    ...given({ parent: parentId, forked_at_event: forkedAtEvent }),
    instance: operationId,
    ...(memory === null ? {} : { memory: memoryOf(memory) }),
    created_at: isoTime(createdAt),
    state_changed_at: isoTime(stateAt),
    ...(endedAt === null ? {} : { ended_at: isoTime(endedAt) }),
    ends_at: endsAt === null ? null : isoTime(endsAt),
    idle_timeout: idleTimeoutMs === null ? null : idleTimeoutMs / 1000,
    on_timeout: onTimeout,
    auto_resume: autoResume,
    pause_memory: pauseMemory,
    env_names: [...envNames],
    cwd,
    user,
    network: network === null ? null : (networkInputOf(network) as NetworkFields),
    resources: { vcpus: resources.vcpus, memory_bytes: resources.memoryBytes, disk_bytes: resources.diskBytes },
    metadata: { ...metadata },
    public_ports: [...publicPorts],
    ...given({ error }),
    ...(pattern === null ? {} : { urls: { pattern } }),
  };
}

function memoryOf({ createdAt, sizeBytes, problem }: StoredMemory): NonNullable<Sandbox["memory"]> {
  return { created_at: isoTime(createdAt), size_bytes: sizeBytes, ...given({ problem }) };
}

/** The wire form of a saved state. */
export function savedStateOf(state: StoredState): SavedState {
  const { seq, imageId, parentSeq, reason, tags, createdAt, isHead, headDistance } = state;
  return {
    seq,
    image: imageId,
    parent: parentSeq,
    reason,
    tags: [...tags],
    created_at: isoTime(createdAt),
    is_head: isHead,
    ref: headDistance === null ? null : headDistance === 0 ? "HEAD" : `HEAD~${headDistance}`,
  };
}

/** The wire form of a sample. */
export function sampleOf({ at, cpuPercent, memoryBytes, cacheBytes, diskBytes }: StoredSample): SandboxSample {
  return {
    at: isoTime(at),
    cpu_percent: cpuPercent,
    memory_bytes: memoryBytes,
    cache_bytes: cacheBytes,
    disk_bytes: diskBytes,
  };
}

/** The settings of a request. */
export function settingsOf(request: SandboxPatch): SettingsInput {
  const { timeout, idle_timeout, on_timeout, auto_resume, pause_memory, metadata, name, network, public_ports } =
    request;
  return {
    timeoutSeconds: timeout,
    idleTimeoutSeconds: idle_timeout,
    onTimeout: on_timeout,
    autoResume: auto_resume,
    pauseMemory: pause_memory,
    metadata,
    name,
    network,
    publicPorts: public_ports,
  };
}

/** A request for a sandbox. */
export function sandboxInputOf(request: SandboxRequest): SandboxInput {
  const { image, env, cwd, user, resources, files, start, boot } = request;
  return {
    ...settingsOf(request),
    image,
    env,
    cwd,
    user,
    resources: resources === undefined ? undefined : resourcesOf(resources),
    files: files === undefined ? undefined : filesOf(files),
    start: start === undefined ? undefined : { ...commandOf(start), timeoutSeconds: start.timeout },
    boot: boot === undefined ? undefined : commandOf(boot),
  };
}
