import { Elysia } from "elysia";
import { empty, respond } from "../../reply.ts";
import { envdOf } from "../envd-access.ts";
import type { E2bParts } from "../options.ts";

/** The agent's service filesystem.Filesystem, and its files by HTTP. */
export function filesPlugin({ requests }: E2bParts): Elysia {
  return new Elysia().get("/health", ({ request }) => {
    // Without a sandbox, it is the health of the listener.
    if (requests.of(request).principal !== null) envdOf(request);
    return respond(empty(204), request);
  }) as unknown as Elysia;
}
