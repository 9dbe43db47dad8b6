import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { ApiError } from "../../domain/errors.ts";
import { given } from "../../domain/given.ts";
import { isoTime, type OperationId } from "../../domain/ids.ts";
import { isTerminal, KIND_FACTS, type StoredInstanceResult, type StoredOutput } from "../../domain/operation.ts";
import type { OutputStream } from "../../domain/output.ts";
import { LIMIT_DEFAULT } from "../../domain/tree/listing.ts";
import type { Operation as StoredOperation } from "../../service/operations.ts";
import type { Principal } from "../../service/parts.ts";
import type { Service } from "../../service/service.ts";
import { SentOutputs } from "../output/sent-outputs.ts";
import { json, type Reply, respond } from "../reply.ts";
import { about, checked, jsonSpec, RETRY_AFTER } from "../route.ts";
import { POLL_SECONDS } from "../wire-fields.ts";
import { operationRequestOf } from "./operation-request.ts";
import { OperationRequest } from "./schema/operation-requests.ts";
import { LogLine, Operation } from "./schema/operations.ts";
import { OperationQuery, OperationsQuery } from "./schema/query.ts";
import { type SentOutput, sentOutput } from "./sent-output.ts";
import type { Surface } from "./surface.ts";

const LIST = {
  query: checked(OperationsQuery),
  ...about({
    id: "listOperations",
    tag: "Operations",
    summary: "List operations, the newest first; results do not include stdout, stderr and network",
    responses: { 200: jsonSpec("a page of operations", Type.Array(Operation)) },
    errors: ["too_many_requests"],
  }),
};

const GET = {
  query: checked(OperationQuery),
  ...about({
    id: "getOperation",
    tag: "Operations",
    summary: "Read an operation, at once or after waiting for its end",
    responses: { 200: jsonSpec("the operation", Operation, RETRY_AFTER) },
    errors: ["not_found", "too_many_requests"],
  }),
};

const CANCEL = {
  ...about({
    id: "cancelOperation",
    tag: "Operations",
    summary: "Cancel an operation that has not ended",
    responses: { 202: jsonSpec("the operation ends CANCELLED, or has done so already", Operation, RETRY_AFTER) },
    errors: ["not_found", "conflict"],
  }),
};

const REQUEST = {
  ...about({
    id: "operationRequest",
    tag: "Operations",
    summary: "Read the request of an operation; values of variables, standard input and passwords are not stored",
    responses: { 200: jsonSpec("the request", OperationRequest) },
    errors: ["not_found"],
  }),
};

const LOG = {
  ...about({
    id: "operationLog",
    tag: "Operations",
    summary: "Read the lines that the service has logged about an operation since its start",
    responses: { 200: jsonSpec("the log lines, the oldest first", Type.Array(LogLine)) },
    errors: ["not_found"],
  }),
};

export function operationRoutes(surface: Surface) {
  return new Elysia({ prefix: "/operations" })
    .use(surface.access)
    .get(
      "",
      async ({ request, principal, query: { limit = LIMIT_DEFAULT, offset = 0, about: isAbout = false, ...rest } }) => {
        const { operations: useCases } = surface.service;
        const { signal } = request;
        const operations = await useCases.list(principal, { ...rest, limit, offset, signal });
        const lines = isAbout ? await useCases.lines(operations.map(({ id }) => id)) : null;
        return operations.map((operation) => {
          const listed = operationOf(operation, resultWithoutOutput(operation)) as unknown as Operation;
          return lines === null ? listed : { ...listed, ...aboutOf(operation, lines.get(operation.id)) };
        });
      },
      { reads: "operations:read", ...LIST },
    )
    .get(
      "/:id",
      async ({ request, principal, params, query: { wait = 0 } }) => {
        const id = params.id as OperationId;
        const { operations } = surface.service;
        const operation = await operations.wait(principal, id, wait * 1000, request.signal);
        const reply = await operationReply(surface, operation, { principal, signal: request.signal });
        return respond(reply, request);
      },
      { reads: "operations:read", ...GET },
    )
    .delete(
      "/:id",
      async ({ request, principal, params }) => {
        const operation = surface.service.operations.cancel(principal, params.id as OperationId);
        // Elysia types the handler's result by the schema, which does not allow a `Response`.
        return respond(json(202, operationOf(operation, null), retryAfter(operation)), request) as never;
      },
      { writes: "operations:cancel", ...CANCEL },
    )
    .get(
      "/:id/request",
      ({ principal, params }) => {
        const id = params.id as OperationId;
        const request = surface.service.operations.request(principal, id);
        if (request === null) throw new ApiError("not_found", "the request of the operation was not stored", { id });
        return operationRequestOf(request);
      },
      { reads: "operations:read", ...REQUEST },
    )
    .get(
      "/:id/log",
      ({ principal, params }) => {
        const lines = surface.service.operations.log(principal, params.id as OperationId);
        return lines.map(({ at, level, message, fields, phases }) => ({
          time: isoTime(at),
          level,
          message,
          ...fields,
          ...given({ phases }),
        }));
      },
      { reads: "operations:read", ...LOG },
    );
}

interface Asked {
  readonly principal: Principal;
  readonly signal: AbortSignal;
}

/** An operation with its outputs. */
async function operationReply({ service }: Surface, operation: StoredOperation, asked: Asked): Promise<Reply> {
  using outputs = new SentOutputs();
  const result = operation.status === "SUCCESS" ? await resultWithOutput(service, operation, asked, outputs) : null;
  return await outputs.reply(operationOf(operation, result), 200, retryAfter(operation));
}

function retryAfter({ status }: StoredOperation): Record<string, string> {
  return isTerminal(status) ? {} : { "retry-after": String(POLL_SECONDS) };
}

/**
 * The wire form of an operation. `result` and the audit of the network have that form already; the audit becomes a field of
 * the result. Fields are set one by one, because spreading objects takes twice the time, and a listing has many operations.
 */
function operationOf(operation: StoredOperation, result: Record<string, unknown> | null): Record<string, unknown> {
  const {
    id,
    status,
    kind,
    createdAt,
    startedAt,
    finishedAt,
    error,
    network = null,
    parentId,
    forkedAtEvent,
  } = operation;
  const wire: Record<string, unknown> = { id, status, kind, created_at: isoTime(createdAt) };
  if (startedAt !== null) wire["started_at"] = isoTime(startedAt);
  if (finishedAt !== null) wire["finished_at"] = isoTime(finishedAt);
  if (startedAt !== null && finishedAt !== null) wire["duration_ms"] = Math.max(0, finishedAt - startedAt);
  if (parentId !== null) wire["parent"] = parentId;
  if (forkedAtEvent !== null) wire["forked_at_event"] = forkedAtEvent;
  if (result !== null) wire["result"] = network === null ? result : { ...result, network };
  else if (network !== null) wire["network"] = network;
  if (error !== null) wire["error"] = error;
  return wire;
}

/** The fields of a listing about the request. An import starts from no image. */
function aboutOf({ kind, imageId }: StoredOperation, line: string | undefined): Pick<Operation, "about" | "image"> {
  return {
    ...given({ about: line }),
    ...(KIND_FACTS[kind].hasInputImage ? given({ image: imageId }) : {}),
  };
}

function resultWithoutOutput({ status, result }: StoredOperation): Record<string, unknown> | null {
  if (status !== "SUCCESS" || result === null) return null;
  const { stdout: _stdout, stderr: _stderr, ...rest } = result;
  return rest;
}

async function resultWithOutput(
  { operations }: Service,
  operation: StoredOperation,
  { principal, signal }: Asked,
  outputs: SentOutputs,
): Promise<Record<string, unknown> | null> {
  const { kind, result } = operation;
  if (result === null || kind !== "instance") return result;
  const { exit_code, stdout, stderr, ...rest } = result as StoredInstanceResult;
  const opened = outputs.hold(await operations.outputs(principal, operation, signal));
  const send = async (stream: OutputStream, { truncated }: StoredOutput): Promise<SentOutput> =>
    await sentOutput(outputs, await opened.read(stream), truncated);
  return { exit_code, stdout: await send("stdout", stdout), stderr: await send("stderr", stderr), ...rest };
}
