import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { parseTimeBound } from "../../../domain/text/time-bound.ts";
import { LIMIT_DEFAULT } from "../../../domain/tree/listing.ts";
import type { Principal } from "../../../service/parts.ts";
import type { Sandbox as StoredSandbox } from "../../../service/sandboxes/sandboxes.ts";
import { authorize } from "../../auth.ts";
import { json, respond } from "../../reply.ts";
import { about, checked, jsonSpec } from "../../route.ts";
import { SPAWN_BODY_BYTES_MAX } from "../../wire-fields.ts";
import {
  EndQuery,
  NEXT_CURSOR,
  Sandbox,
  SandboxesQuery,
  SandboxPatch,
  SandboxRequest,
  SettledQuery,
} from "../schema/sandboxes.ts";
import type { Surface } from "../surface.ts";
import { sandboxInputOf, sandboxOf, settingsOf } from "./sandbox-wire.ts";

const OPEN = {
  query: checked(SettledQuery),
  body: checked(SandboxRequest),
  ...about({
    id: "openSandbox",
    tag: "Sandboxes",
    summary: "Open a sandbox: a machine that lives on an image until it is paused or ended",
    responses: { 201: jsonSpec("the sandbox starts", Sandbox, { Location: "address of the sandbox" }) },
    errors: ["not_found", "conflict", "invalid_path", "too_many_requests", "unavailable"],
  }),
};

const LIST = {
  query: checked(SandboxesQuery),
  ...about({
    id: "listSandboxes",
    tag: "Sandboxes",
    summary: "List sandboxes, the newest first unless the query says otherwise; ended ones only on request",
    responses: { 200: jsonSpec("a page of sandboxes", Type.Array(Sandbox), NEXT_CURSOR) },
  }),
};

const GET = about({
  id: "getSandbox",
  tag: "Sandboxes",
  summary: "Read a sandbox",
  responses: { 200: jsonSpec("the sandbox", Sandbox) },
  errors: ["not_found"],
});

const CHANGE = {
  body: checked(SandboxPatch),
  ...about({
    id: "changeSandbox",
    tag: "Sandboxes",
    summary: "Change the settings of a sandbox",
    responses: { 200: jsonSpec("the sandbox with its new settings", Sandbox) },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
};

const END = {
  query: checked(EndQuery),
  ...about({
    id: "endSandbox",
    tag: "Sandboxes",
    summary: "End a sandbox for good; its saved states stay as images",
    responses: {
      200: jsonSpec("the sandbox has ended", Sandbox),
      202: jsonSpec("it ends when its files are saved", Sandbox),
    },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
};

export function sandboxRoutes(surface: Surface) {
  const { sandboxes, ingress } = surface.service;
  const answerOf = (sandbox: StoredSandbox) =>
    sandboxOf(sandbox, { memory: sandboxes.memoryOf(sandbox), pattern: ingress.patternOf(sandbox.id) });
  return new Elysia({ prefix: "/sandboxes" })
    .use(surface.access)
    .post(
      "",
      async ({ request, principal, query: { wait = 0 }, body }) => {
        authorizeSettings(principal, body);
        if (body.start !== undefined || body.boot !== undefined) authorize(principal, "instances:exec");
        const { id } = await sandboxes.open(principal, sandboxInputOf(body));
        const goal = { goal: "settled", waitMs: wait * 1000, signal: request.signal } as const;
        const opened = answerOf(await sandboxes.wait(principal, id, goal));
        return respond(json(201, opened, { location: `${surface.address}/sandboxes/${id}` }), request) as never;
      },
      { takes: { scope: "instances:spawn", bytesMax: SPAWN_BODY_BYTES_MAX, waitsForGuest: true }, ...OPEN },
    )
    .get(
      "",
      ({ request, principal, query: { state, limit = LIMIT_DEFAULT, since, order, ...filter } }) => {
        const sinceMs = since === undefined ? undefined : parseTimeBound(since, "since", Date.now());
        const inOrder = order === "asc" ? "oldest first" : "newest first";
        const page = sandboxes.list(principal, { ...filter, sinceMs, order: inOrder, states: state, limit });
        const headers = page.next === null ? {} : { "x-next-cursor": page.next };
        return respond(json(200, page.sandboxes.map(answerOf), headers), request) as never;
      },
      { reads: "instances:read", ...LIST },
    )
    .get(
      "/:sandbox",
      ({ principal, params }) => answerOf(sandboxes.get(principal, sandboxes.find(principal, params.sandbox))),
      { reads: "instances:read", ...GET },
    )
    .patch(
      "/:sandbox",
      async ({ principal, params, body }) => {
        authorizeSettings(principal, body);
        const id = sandboxes.find(principal, params.sandbox);
        return answerOf(await sandboxes.change(principal, id, settingsOf(body)));
      },
      { takes: { scope: "instances:spawn", waitsForGuest: true }, ...CHANGE },
    )
    .delete(
      "/:sandbox",
      async ({ request, principal, params, query: { keep = false, tag, wait = 0 } }) => {
        if (tag !== undefined) authorize(principal, "images:tag");
        const id = sandboxes.find(principal, params.sandbox);
        await sandboxes.end(principal, id, { keep, tag });
        const goal = { goal: "ended", waitMs: wait * 1000, signal: request.signal } as const;
        const sandbox = await sandboxes.wait(principal, id, goal);
        return respond(json(sandbox.state === "ended" ? 200 : 202, answerOf(sandbox)), request) as never;
      },
      { writes: "instances:spawn", ...END },
    );
}

/** @throws ApiError `forbidden` for settings that need scopes of their own */
function authorizeSettings(principal: Principal, { network, public_ports }: SandboxPatch): void {
  if (typeof network === "object" && network !== null) authorize(principal, "instances:network");
  if (public_ports !== undefined && public_ports.length > 0) authorize(principal, "instances:ingress");
}
