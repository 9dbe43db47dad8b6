import { Elysia } from "elysia";
import type { E2bParts } from "../options.ts";
import { createRoutes } from "./create.ts";
import { lifeRoutes } from "./life.ts";
import { listingRoutes } from "./listing.ts";

/** Sandboxes: their creation, listing, deadlines, and lives. */
export function controlPlugin(parts: E2bParts): Elysia {
  return new Elysia().use(createRoutes(parts)).use(listingRoutes(parts)).use(lifeRoutes(parts)) as unknown as Elysia;
}
