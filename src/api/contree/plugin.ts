import { Elysia } from "elysia";
import { eventRoutes } from "./events.ts";
import { fileRoutes } from "./files.ts";
import { imageRoutes } from "./images.ts";
import { grepRoutes } from "./inspection/grep.ts";
import { inspectRoutes } from "./inspection/inspect.ts";
import { instanceRoutes } from "./instances.ts";
import { operationRoutes } from "./operations.ts";
import { subprocessRoutes } from "./subprocesses.ts";
import type { ContreeSurface } from "./surface.ts";
import { whoAmIRoutes } from "./who-am-i.ts";

/**
 * The API for the public ConTree clients: the same use cases with another wire format. The result has no types of its
 * routes: the typed client calls none of them, and type checks would be slower.
 */
export function contreePlugin(prefix: string, surface: ContreeSurface): Elysia {
  return new Elysia({ prefix })
    .use(whoAmIRoutes(surface))
    .use(imageRoutes(surface))
    .use(fileRoutes(surface))
    .use(instanceRoutes(surface))
    .use(operationRoutes(surface))
    .use(subprocessRoutes(surface))
    .use(eventRoutes(surface))
    .use(inspectRoutes(surface))
    .use(grepRoutes(surface)) as unknown as Elysia;
}
