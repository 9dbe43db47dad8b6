import { Elysia } from "elysia";
import { LISTED_STATES, type ListedStateName, type ListRecorded } from "../../../service/e2b/listing.ts";
import { json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { E2bError } from "../errors.ts";
import type { E2bParts } from "../options.ts";
import { ListQuery } from "./schema.ts";
import { listedOf } from "./wire.ts";

const LIMIT_MAX = 100;
const NAMES = Object.keys(LISTED_STATES) as ListedStateName[];

export function listingRoutes({ access, service }: E2bParts) {
  return new Elysia()
    .use(access)
    .get(
      "/sandboxes",
      ({ request, principal, query: { metadata } }) => {
        const sandboxes = [];
        for (let cursor: string | null | undefined; cursor !== null; ) {
          const page = { ...ALL, metadata: metadataOf(metadata), states: ["running"], cursor } as const;
          const { next, sandboxes: listed } = service.e2b.list(principal, page);
          sandboxes.push(...listed);
          cursor = next;
        }
        return respond(json(200, sandboxes.map(listedOf)), request) as never;
      },
      { reads: "instances:read", query: checked(ListQuery) },
    )
    .get(
      "/v2/sandboxes",
      ({ request, principal, query }) => {
        const { sandboxes, next } = service.e2b.list(principal, listOf(query));
        const headers: Record<string, string> = next === null ? {} : { "x-next-token": next };
        return respond(json(200, sandboxes.map(listedOf), headers), request) as never;
      },
      { reads: "instances:read", query: checked(ListQuery) },
    );
}

const ALL = { limit: LIMIT_MAX, template: null, order: "newest first" } as const;

/** @throws E2bError 400 */
function listOf(query: ListQuery): ListRecorded {
  const { metadata, state, limit = LIMIT_MAX, nextToken, order = "desc", startedAfter, template } = query;
  if (order !== "asc" && order !== "desc") throw new E2bError(400, "order must be asc or desc");
  return {
    metadata: metadataOf(metadata),
    states: statesOf(state),
    limit: Math.min(LIMIT_MAX, limit),
    // An empty one is that of a client that has read the last page.
    cursor: nextToken === "" ? undefined : nextToken,
    order: order === "asc" ? "oldest first" : "newest first",
    sinceMs: startedAfter === undefined ? undefined : timeOf(startedAfter),
    template: template === undefined || template === "" ? null : template,
  };
}

/** @throws E2bError 400 */
function statesOf(text: string | undefined): readonly ListedStateName[] {
  const names = (text ?? "").split(",").filter((name) => name !== "");
  const states = NAMES.filter((name) => names.includes(name));
  if (names.some((name) => !states.includes(name as ListedStateName))) {
    throw new E2bError(400, `state must be one or more of ${NAMES.join(", ")}`);
  }
  return states.length === 0 ? NAMES : states;
}

/** @throws E2bError 400 */
function timeOf(text: string): number {
  const time = Date.parse(text);
  if (Number.isNaN(time)) throw new E2bError(400, "startedAfter must be a time as RFC 3339 writes it");
  return time;
}

/**
 * The entries of a filter. Clients encode keys and values, make a form of them, which encodes them again, and send that form
 * as one value of the query.
 * @throws E2bError 400
 */
export function metadataOf(form: string | undefined): Readonly<Record<string, string>> {
  const decoded = [...new URLSearchParams(form ?? "")].map((entry) => entry.map(decode) as [string, string]);
  return Object.fromEntries(decoded);
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch (error) {
    if (!(error instanceof URIError)) throw error;
    throw new E2bError(400, "metadata must be percent-encoded");
  }
}
