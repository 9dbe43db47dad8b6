import { Elysia } from "elysia";
import type { E2bParts } from "../options.ts";

/** Templates, their builds and tags. */
export function templatesPlugin(_parts: E2bParts): Elysia {
  return new Elysia();
}
