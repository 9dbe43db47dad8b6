import { given } from "../../domain/given.ts";
import { type NetworkRequest, networkInputOf } from "../../domain/network.ts";
import type { KeptInstance } from "../../domain/spawn.ts";
import type { KeptRequest } from "../../service/operations.ts";
import type {
  InstanceOperationRequest,
  OperationRequest,
  SandboxOperationRequest,
} from "./schema/operation-requests.ts";

/** The wire form of the request of an operation. */
export function operationRequestOf(request: KeptRequest): OperationRequest {
  if (request.kind === "instance") return instanceOf(request);
  if (request.kind === "sandbox") return sandboxOf(request);
  const { tag, timeoutSeconds: timeout } = request;
  const common = { ...given({ tag }), timeout };
  if (request.kind === "checkpoint") return { kind: request.kind, instance: request.instanceId, ...common };
  const { source } = request;
  const from = source.kind === "registry" ? { registry: source.reference } : { file: source.fileId };
  return { kind: request.kind, ...from, ...common };
}

/** Leaves out the fields that the request left out. */
function instanceOf(request: KeptInstance): InstanceOperationRequest {
  const { kind, imageId, command, args, shell, envNames, uid, gid, hostname, tag, terminal, network } = request;
  return {
    kind,
    image: imageId,
    command,
    args: [...args],
    shell,
    uid,
    gid,
    ...(request.isCwdGiven ? { cwd: request.cwd } : {}),
    ...given({ hostname, tag }),
    env_names: [...envNames],
    stdin_bytes: request.stdinBytes,
    stdin_open: request.stdinOpen,
    timeout: request.timeoutSeconds,
    disposable: request.disposable,
    truncate_output_at: request.truncateOutputAtBytes,
    ...(terminal === null ? {} : { pty: { rows: terminal.rows, cols: terminal.columns } }),
    files: filesOf(request),
    ...resourcesOf(request),
    network: networkWire(network),
    ...(request.isCut ? { truncated: true } : {}),
  };
}

function sandboxOf(request: Extract<KeptRequest, { kind: "sandbox" }>): SandboxOperationRequest {
  const { kind, sandboxId: sandbox, imageId: image, hostname, network } = request;
  const files = filesOf(request);
  return { kind, sandbox, image, hostname, files, ...resourcesOf(request), network: networkWire(network) };
}

function resourcesOf({ resources }: Pick<KeptInstance, "resources">): Pick<InstanceOperationRequest, "resources"> {
  if (resources === null) return {};
  const { vcpus, memoryBytes, diskBytes } = resources;
  return { resources: { vcpus, memory_bytes: memoryBytes, disk_bytes: diskBytes } };
}

function filesOf({ files }: Pick<KeptInstance, "files">): InstanceOperationRequest["files"] {
  const mode = (bits: number) => bits.toString(8).padStart(4, "0");
  const entries = files.map((file) => [
    file.path,
    { uuid: file.fileId as string, mode: mode(file.mode), uid: file.uid, gid: file.gid },
  ]);
  return Object.fromEntries(entries);
}

/** The wire form of a network. */
export function networkWire(network: NetworkRequest | null): InstanceOperationRequest["network"] {
  return networkInputOf(network) as InstanceOperationRequest["network"];
}
