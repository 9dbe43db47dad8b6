import type { OperationId } from "../../domain/ids.ts";
import { json, type Reply } from "../reply.ts";
import type { Surface } from "./surface.ts";

/** The answer to what started an operation. */
export function accepted({ address }: Surface, status: 201 | 202, id: OperationId): Reply {
  return json(status, { uuid: id }, { location: `${address}/operations/${id}` });
}
