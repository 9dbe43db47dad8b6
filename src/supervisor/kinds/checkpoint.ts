import type { ImageOrigin } from "../../db/images/history.ts";
import type { StoredRequest } from "../../db/requests.ts";
import type { OperationId } from "../../domain/ids.ts";
import {
  type CheckpointContext,
  type CheckpointSubmission,
  checkpointWorker,
} from "../instance/checkpoint-instance.ts";
import type { Kind } from "../operations/kind.ts";
import { jsonBytes, type Requests } from "../operations/requests.ts";
import { instanceOrigin } from "./instance.ts";
import { type SandboxBody, sandboxOrigin } from "./sandbox.ts";

/** The request of a checkpoint, as clients can read it. */
export interface KeptCheckpoint {
  readonly kind: "checkpoint";
  readonly instanceId: OperationId;
  readonly tag: string | null;
  readonly timeoutSeconds: number;
}

/** Dependencies of the worker of checkpoints. */
export interface CheckpointTools extends Omit<CheckpointContext, "originOf"> {
  readonly requests: Pick<Requests, "stored">;
}

export const checkpointKind: Kind<CheckpointSubmission, CheckpointSubmission, KeptCheckpoint, CheckpointTools> = {
  name: "checkpoint",
  store: (body) => ({
    row: { body, sizeBytes: jsonBytes(body) },
    stdin: null,
    credentials: null,
    imageId: body.imageId,
  }),
  read: ({ body }) => body as CheckpointSubmission,
  kept({ body }) {
    const { instanceId, tag, timeoutSeconds } = body as CheckpointSubmission;
    return { kind: "checkpoint", instanceId, tag, timeoutSeconds };
  },
  worker: (tools) => checkpointWorker({ ...tools, originOf: (id) => originOf(tools.requests.stored(id)) }),
};

/** How images of an instance are made, which may be that of a sandbox. */
function originOf(stored: StoredRequest): ImageOrigin {
  if (!("sandboxId" in stored.body)) return instanceOrigin(stored);
  const body = stored.body as SandboxBody;
  return sandboxOrigin(body, body.network !== null);
}
