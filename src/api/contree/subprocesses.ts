import { Elysia } from "elysia";
import { ApiError, type ErrorCode, type ErrorDetails } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import { STDIN_BYTES_MAX } from "../../domain/instance.ts";
import { Spid } from "../../domain/log-event.ts";
import { isTerminal } from "../../domain/operation.ts";
import { SIGKILL_SIGNAL } from "../../domain/signals.ts";
import { PROCESS_STDIN_BYTES_MAX } from "../../domain/spawn.ts";
import type { Principal } from "../../service/parts.ts";
import type { ProcessUseCases } from "../../service/running/processes.ts";
import type { Service } from "../../service/service.ts";
import { SentOutputs } from "../output/sent-outputs.ts";
import { empty, json, type Reply, respond } from "../reply.ts";
import { about, checked, jsonSpec } from "../route.ts";
import { requireSignal, SIGNAL_DEFAULT, SignalQuery, SPAWN_BODY_BYTES_MAX } from "../wire-fields.ts";
import { commandOf } from "./command-wire.ts";
import { processResult } from "./instance-result.ts";
import { GONE, gone, TOO_EARLY, tooEarly } from "./retry.ts";
import { ExecSpec, StdinPayload } from "./schema/instances.ts";
import { ProcessResult } from "./schema/operations.ts";
import { StartedProcess } from "./schema/subprocesses.ts";
import { inputBytes } from "./streams.ts";
import type { ContreeSurface } from "./surface.ts";

/** Longest wait of a request for the start of a command whose instance has its machine, in `milliseconds`. */
const BEGIN_MS_MAX = 5000;

const START = {
  body: checked(ExecSpec),
  ...about({
    id: "contreeStartSubprocess",
    tag: "ConTree",
    summary: "Run an additional process in a running instance",
    responses: {
      201: jsonSpec("the process has started", StartedProcess, { Location: "address of the process" }),
      ...TOO_EARLY,
    },
    errors: ["not_found", "conflict", "invalid_path", "too_many_requests", "unavailable"],
  }),
};

const GET = {
  ...about({
    id: "contreeSubprocess",
    tag: "ConTree",
    summary: "Read the result of a process of an instance, or its output so far",
    responses: { 200: jsonSpec("the process", ProcessResult), ...TOO_EARLY },
    errors: ["not_found", "too_many_requests"],
  }),
};

const SIGNAL = {
  query: checked(SignalQuery),
  ...about({
    id: "contreeSignalSubprocess",
    tag: "ConTree",
    summary: "Send a signal to the process group of a process",
    responses: { 204: { description: "the signal was sent to the guest" }, ...TOO_EARLY },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
};

const STDIN = {
  body: checked(StdinPayload),
  ...about({
    id: "contreeWriteStdin",
    tag: "ConTree",
    summary: "Write to the standard input of a process, and close it unless close is false",
    responses: { 204: { description: "the guest has received all bytes" }, ...TOO_EARLY, ...GONE },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
};

export function subprocessRoutes(surface: ContreeSurface) {
  const { service } = surface;
  const { processes } = service;
  return new Elysia({ prefix: "/operations/:id/subprocesses" })
    .use(surface.access)
    .post(
      "",
      async ({ request, principal, params, body }) => {
        const id = params.id as OperationId;
        const start = async (): Promise<Reply> => {
          const spid = await startProcess(processes, { principal, id, signal: request.signal }, body);
          return json(201, { spid }, { location: `${surface.address}/operations/${id}/subprocesses/${spid}` });
        };
        const asked = { principal, id, spid: null, signal: request.signal };
        return respond(await inInstance(service, asked, start), request) as never;
      },
      { takes: { scope: "instances:exec", bytesMax: SPAWN_BODY_BYTES_MAX, waitsForGuest: true }, ...START },
    )
    .get(
      "/:spid",
      async ({ request, principal, params }) => {
        const { signal } = request;
        const name = nameOf(params);
        using outputs = new SentOutputs();
        const read = async (): Promise<Reply> => {
          const process = await processes.get(principal, name, signal);
          const opened = outputs.hold(await processes.outputs(principal, name.id, process, signal));
          return await outputs.reply(await processResult(outputs, opened, process), 200);
        };
        requireInstance(service, principal, name.id, "not_found");
        return respond(await inInstance(service, { ...name, principal, signal }, read), request) as never;
      },
      { reads: "operations:read", ...GET },
    )
    .delete(
      "/:spid",
      async ({ request, principal, params, query }) => {
        const name = nameOf(params);
        const number = requireSignal(query.signal ?? SIGNAL_DEFAULT);
        const send = async (): Promise<Reply> => {
          await processes.signal(principal, name, number);
          return empty(204);
        };
        const asked = { ...name, principal, signal: request.signal };
        return respond(await inInstance(service, asked, send), request);
      },
      { writes: "instances:exec", ...SIGNAL },
    )
    .post(
      "/:spid/stdin",
      async ({ request, principal, params, body }) => {
        const input = { ...nameOf(params), close: body.close ?? true, signal: request.signal };
        const content = [inputBytes(body, "value")];
        const write = async (): Promise<Reply> => {
          await processes.write(principal, { ...input, content });
          return empty(204);
        };
        return respond(await inInstance(service, { ...input, principal }, write, gone), request);
      },
      { takes: { scope: "instances:exec", bytesMax: SPAWN_BODY_BYTES_MAX, waitsForGuest: true }, ...STDIN },
    );
}

function nameOf({ id, spid }: { readonly id: string; readonly spid: string }) {
  return { id: id as OperationId, spid: Number(spid) };
}

/**
 * Starts a process, and returns its number. Input that is too long for the start is written while the process runs: the
 * request keeps its room in memory until the guest has received all of it, or the process has ended. If the client leaves
 * before, the process is killed.
 * @throws ApiError as `start` and `write` do
 */
async function startProcess(
  processes: ProcessUseCases,
  { principal, id, signal }: Omit<Asked, "spid">,
  body: ExecSpec,
): Promise<number> {
  const command = commandOf(body);
  const { stdin } = body;
  const bytes = inputBytes(stdin ?? { value: "" }, "stdin.value");
  if (bytes.byteLength <= PROCESS_STDIN_BYTES_MAX) return (await processes.start(principal, id, command, signal)).spid;
  if (bytes.byteLength > STDIN_BYTES_MAX) {
    throw new ApiError("validation_error", `stdin must be at most ${STDIN_BYTES_MAX} bytes`, { field: "stdin" });
  }
  const streaming = { ...command, stdin: undefined, stdinOpen: true };
  const { spid } = await processes.start(principal, id, streaming, signal);
  const isConflict = (error: unknown): boolean => error instanceof ApiError && error.code === "conflict";
  try {
    await processes.write(principal, { id, spid, content: [bytes], close: stdin?.close !== false, signal });
  } catch (error) {
    // The process has ended: it need not read all of its input.
    if (isConflict(error)) return spid;
    try {
      await processes.signal(principal, { id, spid }, SIGKILL_SIGNAL);
    } catch (late) {
      if (!isConflict(late)) throw late;
    }
    throw error;
  }
  return spid;
}

/** A request about a process of an instance. */
interface Asked {
  readonly principal: Principal;
  readonly id: OperationId;
  /** null: one that is to be started */
  readonly spid: number | null;
  readonly signal: AbortSignal;
}

/**
 * Does `work` once the command of the instance has begun, and distinguishes the reasons for which the use cases refuse it.
 * @param ended makes the answer when the instance has ended; a conflict by default
 * @throws ApiError `not_found`, also for a process that has ended; `conflict`; other errors of `work`
 */
async function inInstance(
  service: Service,
  asked: Asked,
  work: () => Reply | Promise<Reply>,
  ended?: (details: ErrorDetails) => Reply,
): Promise<Reply> {
  const { principal, id, spid } = asked;
  requireInstance(service, principal, id, "conflict");
  let refused: ApiError;
  try {
    return await work();
  } catch (error) {
    refused = refusalOf(error, spid);
  }
  if (!isTerminal(service.operations.get(principal, id).status)) {
    if (!(await begins(service, asked))) return tooEarly({ id });
    try {
      return await work();
    } catch (error) {
      refused = refusalOf(error, spid);
    }
  }
  // The errors of the use cases have the state of an instance that no longer runs.
  if (ended !== undefined && refused.details["status"] !== undefined) return ended({ id });
  throw refused;
}

/**
 * The error of a use case for which the state of the instance can be the reason.
 * @throws ApiError `not_found` for a process that has ended; any other error
 */
function refusalOf(error: unknown, spid: number | null): ApiError {
  if (!(error instanceof ApiError)) throw error;
  const { code, details } = error;
  const isUnknownCommand = code === "not_found" && spid === Spid.command;
  if (code !== "conflict" && !isUnknownCommand) throw error;
  if (details["spid"] !== undefined && code === "conflict") {
    throw new ApiError("not_found", "the process has ended", details);
  }
  return error;
}

/** @throws ApiError `not_found`; `code` when the operation is not an instance */
function requireInstance({ operations }: Service, principal: Principal, id: OperationId, code: ErrorCode): void {
  const { kind } = operations.get(principal, id);
  if (kind !== "instance") throw new ApiError(code, "the operation is not an instance", { id });
}

/**
 * Whether the command of an instance has begun or never will. Waits while the instance gets its machine, because some
 * clients never repeat a request, but not for an instance that is still queued, which may take long.
 */
async function begins({ operations }: Service, { principal, id, signal }: Asked): Promise<boolean> {
  if (operations.get(principal, id).status === "PENDING") return false;
  const late = AbortSignal.timeout(BEGIN_MS_MAX);
  const either = AbortSignal.any([signal, late]);
  const query = { id, since: -1, follow: true, spid: Spid.command, limit: 1, signal: either };
  using events = operations.events(principal, query);
  try {
    await events.next();
    return true;
  } catch (error) {
    if (late.aborted && !signal.aborted) return false;
    throw error;
  }
}
