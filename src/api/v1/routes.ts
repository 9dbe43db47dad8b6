import type { Route } from "../route.ts";
import { fileRoutes } from "./files.ts";
import { imageRoutes } from "./image.ts";
import { imagesRoutes } from "./images.ts";
import { inspectRoutes } from "./inspect.ts";
import { instanceRoutes } from "./instances.ts";
import { operationRoutes } from "./operations.ts";
import type { Surface } from "./surface.ts";

/** The interface of the specification, with paths relative to its prefix. */
export function v1Routes(surface: Surface): Route[] {
  return [
    ...imagesRoutes(surface),
    ...imageRoutes(surface),
    ...fileRoutes(surface),
    ...instanceRoutes(surface),
    ...operationRoutes(surface),
    ...inspectRoutes(surface),
  ];
}
