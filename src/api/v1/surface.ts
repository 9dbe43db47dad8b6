import type { OperationId } from "../../domain/ids.ts";
import type { Service } from "../../service/service.ts";
import type { accessPlugin } from "../access.ts";
import { json, respond } from "../reply.ts";

/** What the routes of this surface stand on. */
export interface Surface {
  readonly service: Service;
  /** base of Location headers, with the prefix of the surface and without a trailing slash */
  readonly address: string;
  /** macros for the scopes of routes */
  readonly access: ReturnType<typeof accessPlugin>;
}

/** The answer to what started an operation; typed as nothing, so that the route has the type of its schema alone. */
export function accepted({ address }: Surface, request: Request, status: 201 | 202, id: OperationId): never {
  return respond(json(status, { uuid: id }, { location: `${address}/operations/${id}` }), request) as never;
}
