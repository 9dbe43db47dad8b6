import { Elysia } from "elysia";
import type { E2bParts } from "../options.ts";

/** Sandboxes: their creation, listing, deadlines, and lives. */
export function controlPlugin(_parts: E2bParts): Elysia {
  return new Elysia();
}
