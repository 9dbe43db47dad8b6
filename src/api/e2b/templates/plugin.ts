import { Elysia } from "elysia";
import type { E2bParts } from "../options.ts";
import { buildRoutes } from "./builds.ts";
import { templateRoutes } from "./templates.ts";

/** Templates, their builds and tags. */
export function templatesPlugin(parts: E2bParts): Elysia {
  return new Elysia().use(buildRoutes(parts)).use(templateRoutes(parts)) as unknown as Elysia;
}
