import { Type } from "@sinclair/typebox";
import { getOperation, listOperationsFar, type OperationRow } from "../db/operations.ts";
import { ApiError } from "../domain/errors.ts";
import { isoTime, type OperationId } from "../domain/ids.ts";
import { LIMIT_DEFAULT } from "../domain/listing.ts";
import { isTerminal, Operation, type StoredInstanceResult, type StoredOutput } from "../domain/operation.ts";
import { type OutputObject, outputObject } from "../domain/output.ts";
import { OperationQuery, OperationsQuery } from "../domain/query.ts";
import { timeBounds } from "../domain/time-bound.ts";
import { LongOutput, OUTPUT_STREAMS, type OutputStream, readOutput } from "../storage/outputs.ts";
import { jsonPieces, LongText } from "./json-stream.ts";
import { JSON_TYPE, json, type Reply } from "./reply.ts";
import { jsonSpec, RETRY_AFTER } from "./responses.ts";
import { type Route, route } from "./route.ts";
import type { ApiServices, Principal } from "./services.ts";
import { streamed } from "./stream.ts";

/** How soon to look again at an operation that has not ended, in `seconds`. */
const RETRY_AFTER_SECONDS = 1;

export function operationRoutes(services: ApiServices): Route[] {
  return [listRoute(services), getRoute(services), cancelRoute(services)];
}

function listRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/operations",
    scope: "operations:read",
    id: "listOperations",
    tag: "Operations",
    summary: "List operations, the newest first; results come without stdout and stderr",
    query: OperationsQuery,
    responses: { 200: jsonSpec("a page of operations", Type.Array(Operation)) },
    handle: async ({ principal, query }) => {
      const rows = await listOperationsFar(services.db, principal.accountId, {
        limit: query.limit ?? LIMIT_DEFAULT,
        offset: query.offset ?? 0,
        status: query.status,
        kind: query.kind,
        ...timeBounds(query, services.clock()),
      });
      return json(
        200,
        rows.map((row) => operationOf(row, resultWithoutOutput(row))),
      );
    },
  });
}

function getRoute(services: ApiServices): Route {
  return route({
    method: "GET",
    path: "/v1/operations/:id",
    scope: "operations:read",
    id: "getOperation",
    tag: "Operations",
    summary: "Read an operation, if wanted after its end",
    query: OperationQuery,
    responses: { 200: jsonSpec("the operation", Operation, RETRY_AFTER) },
    errors: ["not_found"],
    handle: async ({ request, principal, params, query }) => {
      const id = params["id"] as OperationId;
      const row = requireOperation(services, principal, id);
      if (query.wait === undefined || query.wait === 0 || isTerminal(row.status)) return operationReply(services, row);
      await services.operations.waitForEnd(id, query.wait * 1000, request.signal);
      return operationReply(services, requireOperation(services, principal, id));
    },
  });
}

function cancelRoute(services: ApiServices): Route {
  return route({
    method: "DELETE",
    path: "/v1/operations/:id",
    scope: "operations:cancel",
    id: "cancelOperation",
    tag: "Operations",
    summary: "Cancel an operation that has not ended",
    responses: { 202: jsonSpec("the operation ends CANCELLED, or has done so already", Operation, RETRY_AFTER) },
    errors: ["not_found", "conflict"],
    handle: async ({ principal, params }) => {
      const id = params["id"] as OperationId;
      const outcome = services.operations.cancel(principal.accountId, id);
      if (outcome === "not_found") throw noSuchOperation(id);
      const row = requireOperation(services, principal, id);
      if (outcome === "terminal") {
        throw new ApiError("conflict", `the operation has ended: ${row.status}`, { status: row.status });
      }
      return operationReply(services, row, 202);
    },
  });
}

function requireOperation(services: ApiServices, principal: Principal, id: OperationId): OperationRow {
  const row = getOperation(services.db, principal.accountId, id);
  if (row === null) throw noSuchOperation(id);
  return row;
}

function noSuchOperation(id: OperationId): ApiError {
  return new ApiError("not_found", "no such operation", { id });
}

async function operationReply(services: ApiServices, row: OperationRow, status = 200): Promise<Reply> {
  const headers: Record<string, string> = isTerminal(row.status) ? {} : { "retry-after": String(RETRY_AFTER_SECONDS) };
  using held = new DisposableStack();
  const open: OpenOutput = (stream) => {
    const output = LongOutput.open(services.layout, row.id, stream);
    return output === null ? null : held.use(output);
  };
  const result = row.status === "SUCCESS" ? await resultWithOutput(services, row, open) : null;
  const operation = operationOf(row, result);
  if (!isLong(result)) return json(status, operation, headers);
  return { ...(await streamed(JSON_TYPE, jsonPieces(operation), held.move())), status };
}

/** An operation as the interface shows it. */
function operationOf(row: OperationRow, result: unknown) {
  return {
    id: row.id,
    status: row.status,
    kind: row.kind,
    created_at: isoTime(row.createdAt),
    ...(row.startedAt === null ? {} : { started_at: isoTime(row.startedAt) }),
    ...(row.finishedAt === null ? {} : { finished_at: isoTime(row.finishedAt) }),
    ...(row.startedAt === null || row.finishedAt === null
      ? {}
      : { duration_ms: Math.max(0, row.finishedAt - row.startedAt) }),
    ...(result === null ? {} : { result }),
    ...(row.error === null ? {} : { error: row.error }),
  };
}

function resultWithoutOutput(row: OperationRow): Record<string, unknown> | null {
  if (row.status !== "SUCCESS" || row.result === null) return null;
  const { stdout: _stdout, stderr: _stderr, ...rest } = row.result;
  return rest;
}

/** Opens what is too long to be held; null where it is short. */
type OpenOutput = (stream: OutputStream) => LongOutput | null;

/** An output object whose content may be read while it is sent. */
type SentOutput = OutputObject | (Omit<OutputObject, "content"> & { readonly content: LongText });

function isLong(result: Record<string, unknown> | null): boolean {
  return OUTPUT_STREAMS.some((stream) => (result?.[stream] as SentOutput | undefined)?.content instanceof LongText);
}

async function resultWithOutput(
  services: ApiServices,
  row: OperationRow,
  open: OpenOutput,
): Promise<Record<string, unknown> | null> {
  if (row.result === null || row.kind !== "instance") return row.result;
  const result = row.result as StoredInstanceResult;
  const { exit_code, stdout, stderr, ...rest } = result;
  const output = async (stream: OutputStream, stored: StoredOutput): Promise<SentOutput> => {
    if (stored.empty === true) return noOutput(stored);
    const long = open(stream);
    return long === null
      ? outputObject(await readOutput(services.layout, row.id, stream), stored.truncated)
      : await longOutput(long, stored);
  };
  return { exit_code, stdout: await output("stdout", stdout), stderr: await output("stderr", stderr), ...rest };
}

async function longOutput(long: LongOutput, { truncated }: StoredOutput): Promise<SentOutput> {
  const encoding = (await long.isAscii()) ? "ascii" : "base64";
  return { content: new LongText(long.text(encoding)), encoding, truncated };
}

function noOutput({ truncated }: StoredOutput): OutputObject {
  return { content: "", encoding: "ascii", truncated };
}
