import { type Static, Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { parseUuidOrDigits, type SandboxId } from "../../../domain/ids.ts";
import { TAG_DEFAULT } from "../../../domain/templates/names.ts";
import type { Principal } from "../../../service/parts.ts";
import type { Snapshot } from "../../../service/templates/snapshots.ts";
import { authorize } from "../../auth.ts";
import { json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { liveSandbox } from "../control/life.ts";
import { optional } from "../control/schema.ts";
import type { E2bParts } from "../options.ts";

const LIMIT_MAX = 100;

const NewSnapshot = Type.Object({
  name: optional(Type.String({ minLength: 1, maxLength: 300, error: "name must be NAME or NAME:TAG" })),
});
const SnapshotsQuery = Type.Object({
  sandboxID: Type.Optional(Type.String()),
  name: Type.Optional(Type.String()),
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: Number.MAX_SAFE_INTEGER,
      error: "limit must be an integer of at least 1",
    }),
  ),
  nextToken: Type.Optional(Type.String()),
});
type SnapshotsQuery = Static<typeof SnapshotsQuery>;

export function snapshotRoutes(parts: E2bParts) {
  const { access, service } = parts;
  const { templates } = service;
  return new Elysia()
    .use(access)
    .post(
      "/sandboxes/:sandboxID/snapshots",
      async ({ request, principal, params, body: { name } }) => {
        authorize(principal, "images:tag");
        const { id: sandbox } = liveSandbox(parts, principal, params.sandboxID).sandbox;
        const snapshot = await templates.snapshot(principal, {
          sandbox,
          name: name ?? undefined,
          signal: request.signal,
        });
        return respond(json(201, snapshotOf(principal, snapshot)), request) as never;
      },
      { takes: { scope: "instances:exec", waitsForGuest: true, mayBeEmpty: true }, body: checked(NewSnapshot) },
    )
    .get(
      "/snapshots",
      ({ request, principal, query }) => {
        const { snapshots, next } = pageOf(parts, principal, query);
        const headers: Record<string, string> = next === null ? {} : { "x-next-token": next };
        const answers = snapshots.map((snapshot) => snapshotOf(principal, snapshot));
        return respond(json(200, answers, headers), request) as never;
      },
      { reads: "images:read", query: checked(SnapshotsQuery) },
    );
}

function pageOf({ service }: E2bParts, principal: Principal, query: SnapshotsQuery) {
  const { sandboxID, name, limit = LIMIT_MAX, nextToken } = query;
  const sandboxId = sandboxID === undefined ? undefined : parseUuidOrDigits<SandboxId>(sandboxID);
  // No sandbox has another id.
  if (sandboxId === null) return { snapshots: [], next: null };
  return service.templates.snapshots(principal, {
    sandboxId,
    name: name?.toLowerCase(),
    limit: Math.min(LIMIT_MAX, limit),
    // An empty one is that of a client that has read the last page.
    cursor: nextToken === "" ? undefined : nextToken,
  });
}

/** Its id is what a creation takes as its template. */
function snapshotOf({ accountId }: Principal, { name, tag }: Snapshot) {
  return {
    snapshotID: tag === TAG_DEFAULT ? name : `${name}:${tag}`,
    names: [`${accountId}/${name}:${tag}`],
  };
}
