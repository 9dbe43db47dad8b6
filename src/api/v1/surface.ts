import type { OperationId } from "../../domain/ids.ts";
import type { Service } from "../../service/service.ts";
import type { accessPlugin } from "../access.ts";
import { json, respond } from "../reply.ts";
import type { Handshake, Socket } from "../socket.ts";

/** Dependencies of the routes of this surface. */
export interface Surface {
  readonly service: Service;
  /** base of Location headers, with the prefix of the surface and without a trailing slash */
  readonly address: string;
  /** macros for the scopes of routes */
  readonly access: ReturnType<typeof accessPlugin>;
  /** Answers a request with the upgrade to a WebSocket. @throws ApiError `validation_error` when it does not ask for one */
  readonly upgrade: (handshake: Handshake, protocol: string | null, socket: Socket) => Response;
}

/** The response to a request that started an operation. `never`, so that the route keeps the type of its schema. */
export function accepted({ address }: Surface, request: Request, status: 201 | 202, id: OperationId): never {
  return respond(json(status, { uuid: id }, { location: `${address}/operations/${id}` }), request) as never;
}
