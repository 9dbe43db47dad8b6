import type { OperationId } from "../../domain/ids.ts";
import type { Service } from "../../service/service.ts";
import type { accessPlugin } from "../access.ts";

/** Dependencies of the routes of this surface. */
export interface ContreeSurface {
  readonly service: Service;
  /** base of Location headers, with the prefix of the surface and without a trailing slash */
  readonly address: string;
  /** macros for the scopes of routes */
  readonly access: ReturnType<typeof accessPlugin>;
}

/** The Location header of an operation. */
export function operationLocation({ address }: ContreeSurface, id: OperationId): { readonly location: string } {
  return { location: `${address}/operations/${id}` };
}
