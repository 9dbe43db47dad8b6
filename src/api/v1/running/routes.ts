import { Elysia } from "elysia";
import type { Surface } from "../surface.ts";
import { attachRoutes } from "./attach.ts";
import { fileStreamRoutes } from "./file-streams.ts";
import { fileRoutes } from "./files.ts";
import { portRoutes } from "./ports.ts";
import { processRoutes } from "./processes.ts";
import type { Runner } from "./runner.ts";
import { statsRoutes } from "./stats.ts";

/** All routes of a noun that runs processes. */
export function runningRoutes<const Prefix extends string>(surface: Surface, runner: Runner<Prefix>) {
  return new Elysia()
    .use(statsRoutes(surface, runner))
    .use(portRoutes(surface, runner))
    .use(fileRoutes(surface, runner))
    .use(fileStreamRoutes(surface, runner))
    .use(processRoutes(surface, runner))
    .use(attachRoutes(surface, runner));
}
