import { Elysia } from "elysia";
import { branchRoutes } from "./branches/branches.ts";
import { changeRoutes } from "./branches/changes.ts";
import { deletionRoutes } from "./branches/deletion.ts";
import { receiptRoutes } from "./branches/receipts.ts";
import { checkpointRoutes } from "./checkpoints.ts";
import { eventRoutes, operationSource, sandboxSource } from "./events.ts";
import { fileRoutes } from "./files.ts";
import { forkRoutes } from "./forks.ts";
import { imageRoutes } from "./image.ts";
import { imagesRoutes } from "./images.ts";
import { inspectRoutes } from "./inspection/inspect.ts";
import { instanceRoutes } from "./instances.ts";
import { operationRoutes } from "./operations.ts";
import { applianceRoutes } from "./operator/appliance.ts";
import { tokenRoutes } from "./operator/tokens.ts";
import { runningRoutes } from "./running/routes.ts";
import { INSTANCES, sandboxRunner } from "./running/runner.ts";
import { linkRoutes } from "./sandboxes/links.ts";
import { sandboxRoutes } from "./sandboxes/sandboxes.ts";
import { sandboxStateRoutes } from "./sandboxes/states.ts";
import type { Surface } from "./surface.ts";

/** The API of the specification. */
export function v1Plugin<const Prefix extends string>(prefix: Prefix, surface: Surface) {
  return new Elysia({ prefix })
    .use(imagesRoutes(surface))
    .use(imageRoutes(surface))
    .use(branchRoutes(surface))
    .use(changeRoutes(surface))
    .use(deletionRoutes(surface))
    .use(receiptRoutes(surface))
    .use(fileRoutes(surface))
    .use(instanceRoutes(surface))
    .use(runningRoutes(surface, INSTANCES))
    .use(checkpointRoutes(surface))
    .use(forkRoutes(surface))
    .use(sandboxRoutes(surface))
    .use(sandboxStateRoutes(surface))
    .use(runningRoutes(surface, sandboxRunner(surface)))
    .use(linkRoutes(surface))
    .use(eventRoutes(surface, sandboxSource(surface)))
    .use(operationRoutes(surface))
    .use(eventRoutes(surface, operationSource(surface)))
    .use(inspectRoutes(surface))
    .use(tokenRoutes(surface))
    .use(applianceRoutes(surface));
}
