import { given } from "../../domain/given.ts";
import { type NetworkRequest, networkInputOf } from "../../domain/network.ts";
import type { KeptInstance } from "../../domain/spawn.ts";
import type { KeptRequest } from "../../service/operations.ts";
import type { InstanceOperationRequest, OperationRequest } from "./schema/operation-requests.ts";

/** The wire form of the request of an operation. */
export function operationRequestOf(request: KeptRequest): OperationRequest {
  if (request.kind === "instance") return instanceOf(request);
  const { tag, timeoutSeconds: timeout } = request;
  const common = { ...given({ tag }), timeout };
  if (request.kind === "checkpoint") return { kind: request.kind, instance: request.instanceId, ...common };
  const { source } = request;
  const from = source.kind === "registry" ? { registry: source.reference } : { file: source.fileId };
  return { kind: request.kind, ...from, ...common };
}

/** Leaves out the fields that the request left out. */
function instanceOf(request: KeptInstance): InstanceOperationRequest {
  const { kind, imageId, command, args, shell, envNames, uid, gid, hostname, tag, terminal, resources, network } =
    request;
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
    ...(resources === null
      ? {}
      : {
          resources: {
            vcpus: resources.vcpus,
            memory_bytes: resources.memoryBytes,
            disk_bytes: resources.diskBytes,
          },
        }),
    network: networkWire(network),
    ...(request.isCut ? { truncated: true } : {}),
  };
}

function filesOf({ files }: KeptInstance): InstanceOperationRequest["files"] {
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
