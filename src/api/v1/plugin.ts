import { Elysia } from "elysia";
import { branchRoutes } from "./branches/branches.ts";
import { changeRoutes } from "./branches/changes.ts";
import { deletionRoutes } from "./branches/deletion.ts";
import { checkpointRoutes } from "./checkpoints.ts";
import { eventRoutes } from "./events.ts";
import { fileRoutes } from "./files.ts";
import { imageRoutes } from "./image.ts";
import { imagesRoutes } from "./images.ts";
import { inspectRoutes } from "./inspection/inspect.ts";
import { instanceRoutes } from "./instances.ts";
import { operationRoutes } from "./operations.ts";
import { applianceRoutes } from "./operator/appliance.ts";
import { tokenRoutes } from "./operator/tokens.ts";
import { attachRoutes } from "./running/attach.ts";
import { fileStreamRoutes } from "./running/file-streams.ts";
import { fileRoutes as guestFileRoutes } from "./running/files.ts";
import { portRoutes } from "./running/ports.ts";
import { processRoutes } from "./running/processes.ts";
import { INSTANCES } from "./running/runner.ts";
import { statsRoutes } from "./running/stats.ts";
import type { Surface } from "./surface.ts";

/** The API of the specification. */
export function v1Plugin<const Prefix extends string>(prefix: Prefix, surface: Surface) {
  return new Elysia({ prefix })
    .use(imagesRoutes(surface))
    .use(imageRoutes(surface))
    .use(branchRoutes(surface))
    .use(changeRoutes(surface))
    .use(deletionRoutes(surface))
    .use(fileRoutes(surface))
    .use(instanceRoutes(surface))
    .use(statsRoutes(surface, INSTANCES))
    .use(portRoutes(surface, INSTANCES))
    .use(processRoutes(surface, INSTANCES))
    .use(attachRoutes(surface, INSTANCES))
    .use(guestFileRoutes(surface, INSTANCES))
    .use(fileStreamRoutes(surface, INSTANCES))
    .use(checkpointRoutes(surface))
    .use(operationRoutes(surface))
    .use(eventRoutes(surface))
    .use(inspectRoutes(surface))
    .use(tokenRoutes(surface))
    .use(applianceRoutes(surface));
}
