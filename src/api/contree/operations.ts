import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import type { OperationId } from "../../domain/ids.ts";
import { isTerminal } from "../../domain/operation.ts";
import type { Operation } from "../../service/operations.ts";
import type { Principal } from "../../service/parts.ts";
import { mapped } from "../output/json-stream.ts";
import { SentOutputs } from "../output/sent-outputs.ts";
import { empty, respond } from "../reply.ts";
import { about, checked, jsonSpec, RETRY_AFTER } from "../route.ts";
import { POLL_SECONDS } from "../wire-fields.ts";
import { instanceResult } from "./instance-result.ts";
import { importFields, instanceFields } from "./metadata.ts";
import { resultImage, resultOf, type SummaryParts, summaryOf } from "./operation-wire.ts";
import { pageOf, pageReply } from "./page.ts";
import {
  KINDS,
  kindOf,
  OperationDetails,
  OperationQuery,
  OperationSummary,
  OperationsQuery,
  statusOf,
} from "./schema/operations.ts";
import type { ContreeSurface } from "./surface.ts";

const LIST = {
  query: checked(OperationsQuery),
  ...about({
    id: "contreeListOperations",
    tag: "ConTree",
    summary: "List operations, the newest first",
    responses: { 200: jsonSpec("a page of operations", Type.Array(OperationSummary)) },
    errors: ["too_many_requests"],
  }),
};

const GET = {
  query: checked(OperationQuery),
  ...about({
    id: "contreeGetOperation",
    tag: "ConTree",
    summary: "Read an operation, with its request and its result",
    responses: { 200: jsonSpec("the operation", OperationDetails, RETRY_AFTER) },
    errors: ["not_found", "too_many_requests"],
  }),
};

const CANCEL = {
  ...about({
    id: "contreeCancelOperation",
    tag: "ConTree",
    summary: "Cancel an operation that has not ended",
    responses: { 202: { description: "the operation ends CANCELLED, or has done so already" } },
    errors: ["not_found", "conflict"],
  }),
};

export function operationRoutes(surface: ContreeSurface) {
  const { operations } = surface.service;
  return new Elysia({ prefix: "/operations" })
    .use(surface.access)
    .get(
      "",
      async ({ request, principal, query }) => {
        const status = statusOf(query.status);
        const { signal } = request;
        const filter = { ...pageOf(query), kind: kindOf(query.kind), kinds: KINDS, signal } as const;
        const page = status === "ASSIGNED" ? [] : await operations.list(principal, { ...filter, status });
        const parts = summaryParts(surface, principal, page);
        return respond(await pageReply(mapped(page, (operation) => summaryOf(operation, parts))), request) as never;
      },
      { reads: "operations:read", ...LIST },
    )
    .get(
      "/:id",
      async ({ request, principal, params, query: { inflight = false } }) => {
        const operation = operations.get(principal, params.id as OperationId);
        using outputs = new SentOutputs();
        const asked = { principal, signal: request.signal, inflight };
        const body = {
          ...summaryOf(operation, summaryParts(surface, principal, [operation])),
          metadata: await metadataOf(surface, operation, asked, outputs),
          result: resultOf(operation),
        };
        const headers = isTerminal(operation.status) ? {} : { "retry-after": String(POLL_SECONDS) };
        return respond(await outputs.reply(body, 200, headers), request) as never;
      },
      { reads: "operations:read", ...GET },
    )
    .delete(
      "/:id",
      ({ request, principal, params }) => {
        operations.cancel(principal, params.id as OperationId);
        return respond(empty(202), request);
      },
      { writes: "operations:cancel", ...CANCEL },
    );
}

/** The request of an operation; for an instance with the result of its command. */
async function metadataOf(
  { service }: ContreeSurface,
  operation: Operation,
  asked: Parameters<typeof instanceResult>[2],
  outputs: SentOutputs,
) {
  const kept = service.operations.request(asked.principal, operation.id);
  if (operation.kind === "image_import") return importFields(kept);
  const result = await instanceResult(service, operation, asked, outputs);
  return { ...instanceFields(operation, kept), result };
}

/** The data for the summaries of operations. */
function summaryParts(surface: ContreeSurface, principal: Principal, page: readonly Operation[]): SummaryParts {
  const images = page.map(resultImage).filter((image) => image !== null);
  return { imageSizes: surface.service.operations.imageSizes(principal, images), nowMs: Date.now() };
}
