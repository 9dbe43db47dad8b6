import { fileRoutes } from "./files.ts";
import { healthRoutes } from "./health.ts";
import { imageHistoryRoutes } from "./image-history.ts";
import { imageRoutes } from "./images.ts";
import { inspectRoutes } from "./inspect.ts";
import { instanceRoutes } from "./instances.ts";
import { openApiRoutes } from "./openapi.ts";
import { operationLogRoutes } from "./operation-log.ts";
import { operationRoutes } from "./operations.ts";
import type { Route } from "./route.ts";
import { saveImageRoute } from "./save-image.ts";
import type { ApiServices } from "./services.ts";

/** Every route of the service; the server, the API description and the tests are made from this one list. */
export function allRoutes(services: ApiServices): Route[] {
  const routes = [
    ...imageRoutes(services),
    ...imageHistoryRoutes(services),
    saveImageRoute(services),
    ...fileRoutes(services),
    ...instanceRoutes(services),
    ...operationRoutes(services),
    ...operationLogRoutes(services),
    ...inspectRoutes(services),
    ...healthRoutes(services),
  ];
  return [...routes, ...openApiRoutes(services, routes)];
}
