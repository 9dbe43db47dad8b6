import { Elysia } from "elysia";
import type { E2bParts } from "../options.ts";

/** Forks, snapshots, networks, figures, logs, and what is refused by name. */
export function extrasPlugin(_parts: E2bParts): Elysia {
  return new Elysia();
}
