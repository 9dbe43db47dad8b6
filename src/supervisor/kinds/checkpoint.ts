import type { OperationId } from "../../domain/ids.ts";
import {
  type CheckpointContext,
  type CheckpointSubmission,
  checkpointWorker,
} from "../instance/checkpoint-instance.ts";
import type { Kind } from "../operations/kind.ts";
import { jsonBytes, type Requests } from "../operations/requests.ts";
import { instanceOrigin } from "./instance.ts";

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
  worker: (tools) => checkpointWorker({ ...tools, originOf: (id) => instanceOrigin(tools.requests.stored(id)) }),
};
