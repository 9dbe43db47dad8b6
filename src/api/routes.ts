import { openApiRoutes } from "./openapi/openapi.ts";
import { statusRoutes } from "./operator/health.ts";
import type { ApiOptions } from "./options.ts";
import type { Route } from "./route.ts";
import { v1Routes } from "./v1/routes.ts";

/** Where the interface of the specification is. Every path below it asks for a token, also one that does not exist. */
export const V1_PREFIX = "/v1";

/** Every route of the service; the server, the API description and the tests are made from this one list. */
export function allRoutes({ service, publicUrl }: Pick<ApiOptions, "service" | "publicUrl">): Route[] {
  const address = `${publicUrl ?? ""}${V1_PREFIX}`;
  const routes = [...below(V1_PREFIX, v1Routes({ service, address })), ...statusRoutes(service.status)];
  return [...routes, ...openApiRoutes({ version: service.status.version, publicUrl }, routes)];
}

function below(prefix: string, routes: readonly Route[]): Route[] {
  return routes.map((route) => ({ ...route, path: `${prefix}${route.path}` }));
}
