import { Elysia } from "elysia";
import type { E2bParts } from "../options.ts";
import { forkRoutes } from "./fork.ts";
import { logRoutes } from "./logs.ts";
import { metricRoutes } from "./metrics.ts";
import { networkRoutes } from "./network.ts";
import { snapshotRoutes } from "./snapshots.ts";

/** Further requests for sandboxes: forks, snapshots, changes of their networks, figures and logs. */
export function extrasPlugin(parts: E2bParts): Elysia {
  return new Elysia()
    .use(forkRoutes(parts))
    .use(snapshotRoutes(parts))
    .use(networkRoutes(parts))
    .use(metricRoutes(parts))
    .use(logRoutes(parts)) as unknown as Elysia;
}
