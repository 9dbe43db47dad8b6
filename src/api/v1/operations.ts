import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { isoTime, type OperationId } from "../../domain/ids.ts";
import { LIMIT_DEFAULT } from "../../domain/listing.ts";
import { isTerminal, type StoredInstanceResult, type StoredOutput } from "../../domain/operation.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";
import type { Output, Operation as StoredOperation } from "../../service/operations.ts";
import { jsonPieces, LongText } from "../json-stream.ts";
import { JSON_TYPE, json, type Reply, respond } from "../reply.ts";
import { about, checked, jsonSpec, RETRY_AFTER } from "../route.ts";
import { streamed } from "../stream.ts";
import { LogLine, Operation, type OutputObject, outputObject } from "./schema/operations.ts";
import { OperationQuery, OperationsQuery } from "./schema/query.ts";
import type { Surface } from "./surface.ts";

/** Interval at which a client should poll an operation that has not ended, in `seconds`. */
const RETRY_AFTER_SECONDS = 1;

const LIST = {
  query: checked(OperationsQuery),
  ...about({
    id: "listOperations",
    tag: "Operations",
    summary: "List operations, the newest first; results do not include stdout and stderr",
    responses: { 200: jsonSpec("a page of operations", Type.Array(Operation)) },
  }),
};

const GET = {
  query: checked(OperationQuery),
  ...about({
    id: "getOperation",
    tag: "Operations",
    summary: "Read an operation, at once or after waiting for its end",
    responses: { 200: jsonSpec("the operation", Operation, RETRY_AFTER) },
    errors: ["not_found"],
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

const LOG = {
  ...about({
    id: "operationLog",
    tag: "Operations",
    summary: "Read the lines that the service has logged about an operation since the service started",
    responses: { 200: jsonSpec("the log lines, the oldest first", Type.Array(LogLine)) },
    errors: ["not_found"],
  }),
};

export function operationRoutes(surface: Surface) {
  return new Elysia({ prefix: "/operations" })
    .use(surface.access)
    .get(
      "",
      async ({ principal, query: { limit = LIMIT_DEFAULT, offset = 0, ...rest } }) => {
        const operations = await surface.service.operations.list(principal, { ...rest, limit, offset });
        return operations.map(
          (operation) => operationOf(operation, resultWithoutOutput(operation)) as unknown as Operation,
        );
      },
      { reads: "operations:read", ...LIST },
    )
    .get(
      "/:id",
      async ({ request, principal, params, query: { wait = 0 } }) => {
        const id = params.id as OperationId;
        const { operations } = surface.service;
        const operation = await operations.wait(principal, id, wait * 1000, request.signal);
        return respond(await operationReply(surface, operation, 200), request);
      },
      { reads: "operations:read", ...GET },
    )
    .delete(
      "/:id",
      async ({ request, principal, params }) => {
        const operation = surface.service.operations.cancel(principal, params.id as OperationId);
        // Elysia types the handler's result by the schema, which does not allow a `Response`.
        return respond(await operationReply(surface, operation, 202), request) as never;
      },
      { writes: "operations:cancel", ...CANCEL },
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
          ...(phases === undefined ? {} : { phases }),
        }));
      },
      { reads: "operations:read", ...LOG },
    );
}

async function operationReply({ service }: Surface, operation: StoredOperation, status: number): Promise<Reply> {
  const headers: Record<string, string> = isTerminal(operation.status)
    ? {}
    : { "retry-after": String(RETRY_AFTER_SECONDS) };
  using held = new DisposableStack();
  const open = async (stream: OutputStream): Promise<Output> => {
    const output = await service.operations.output(operation, stream);
    if (output.kind === "long") held.use(output);
    return output;
  };
  const result = operation.status === "SUCCESS" ? await resultWithOutput(operation, open) : null;
  const shown = operationOf(operation, result);
  if (!isLong(result)) return json(status, shown, headers);
  return { ...(await streamed(JSON_TYPE, jsonPieces(shown), held.move())), status };
}

/** The wire form of an operation. `result` has that form already. */
function operationOf({ createdAt, startedAt, finishedAt, ...operation }: StoredOperation, result: unknown) {
  return {
    id: operation.id,
    status: operation.status,
    kind: operation.kind,
    created_at: isoTime(createdAt),
    ...(startedAt === null ? {} : { started_at: isoTime(startedAt) }),
    ...(finishedAt === null ? {} : { finished_at: isoTime(finishedAt) }),
    ...(startedAt === null || finishedAt === null ? {} : { duration_ms: Math.max(0, finishedAt - startedAt) }),
    ...(result === null ? {} : { result }),
    ...(operation.error === null ? {} : { error: operation.error }),
  };
}

function resultWithoutOutput({ status, result }: StoredOperation): Record<string, unknown> | null {
  if (status !== "SUCCESS" || result === null) return null;
  const { stdout: _stdout, stderr: _stderr, ...rest } = result;
  return rest;
}

/** An output object. The content of a long one is read while it is sent. */
type SentOutput = OutputObject | (Omit<OutputObject, "content"> & { readonly content: LongText });

function isLong(result: Record<string, unknown> | null): boolean {
  return OUTPUT_STREAMS.some((stream) => (result?.[stream] as SentOutput | undefined)?.content instanceof LongText);
}

async function resultWithOutput(
  { kind, result }: StoredOperation,
  open: (stream: OutputStream) => Promise<Output>,
): Promise<Record<string, unknown> | null> {
  if (result === null || kind !== "instance") return result;
  const { exit_code, stdout, stderr, ...rest } = result as StoredInstanceResult;
  const sent = async (stream: OutputStream, { truncated }: StoredOutput): Promise<SentOutput> => {
    const output = await open(stream);
    if (output.kind === "short") return outputObject(output.bytes, truncated);
    const encoding = (await output.isAscii()) ? "ascii" : "base64";
    return { content: new LongText(output.text(encoding)), encoding, truncated };
  };
  return { exit_code, stdout: await sent("stdout", stdout), stderr: await sent("stderr", stderr), ...rest };
}
