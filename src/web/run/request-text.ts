import type { OperationRequest } from "../../client/types.ts";
import { shellLine } from "./form/shell-words.ts";

/** The request of an operation, in a line. */
export function requestText(request: OperationRequest): string {
  if (request.kind === "instance") {
    const { command, args, shell } = request;
    return shell === true && args.length === 0 ? command : shellLine([command, ...args]);
  }
  if (request.kind === "checkpoint") return "Checkpoint of a run";
  if (request.kind === "image_import") return request.registry ?? "An uploaded archive";
  return "The machine of a sandbox";
}
