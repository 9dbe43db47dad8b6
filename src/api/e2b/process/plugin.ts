import { Elysia } from "elysia";
import type { E2bParts } from "../options.ts";

/** The agent's service process.Process. */
export function processPlugin(_parts: E2bParts): Elysia {
  return new Elysia();
}
