import { Elysia, ElysiaCustomStatusResponse, ParseError, ValidationError } from "elysia";
import { json, type Reply, respond } from "./reply.ts";
import type { RequestTracker } from "./request-tracker.ts";
import { validationError } from "./schema.ts";

/**
 * Turns the results and errors of all handlers, of every surface, into responses. A handler's result becomes JSON, unless
 * it is a Response or a stream.
 * @param unknown makes the error for a request that no route matches
 * @param errorReply the answer to a failure of a request with this path
 */
export function answersPlugin(
  requests: RequestTracker,
  unknown: (request: Request) => Error,
  errorReply: (cause: unknown, path: string) => Reply,
) {
  return new Elysia({ name: "answers" })
    .mapResponse({ as: "global" }, ({ request, responseValue, set, route }) => {
      if (requests.of(request).isAnswered) return undefined;
      const [status, value] = statusAndValue(responseValue, set.status);
      if (isStream(value)) {
        // Elysia sends the stream with these header fields.
        const begun = requests.answer(request, new Response(null, { status }), { route });
        Object.assign(set.headers, Object.fromEntries(begun.headers));
        return undefined;
      }
      // With another status here, Elysia would copy the response to set it.
      set.status = 200;
      const response = value instanceof Response ? value : respond(json(status, value), request);
      return requests.answer(request, response, { route });
    })
    .onError({ as: "global" }, ({ error, code, request, set, route }) => {
      const cause = code === "NOT_FOUND" ? unknown(request) : reasonOf(error);
      set.status = 200;
      // `never`, so that the typed client's types of the routes stay as they are.
      const reply = errorReply(cause, requests.of(request).path);
      return requests.answer(request, respond(reply, request), { route, cause }) as never;
    });
}

/** Elysia unwraps the result of `status(...)` only for routes whose responses it validates. */
function statusAndValue(result: unknown, status: number | string | undefined): readonly [number, unknown] {
  if (result instanceof ElysiaCustomStatusResponse) return [Number(result.code), result.response];
  return [typeof status === "number" ? status : 200, result];
}

function isStream(value: unknown): boolean {
  return value instanceof ReadableStream || typeof (value as { next?: unknown } | null)?.next === "function";
}

/** Unwraps an error that Elysia has wrapped. */
function reasonOf(error: unknown): unknown {
  if (error instanceof ParseError) return error.cause;
  if (!(error instanceof ValidationError) || error.type === "response") return error;
  const { validator, value } = error as unknown as {
    readonly validator: { Errors(value: unknown): { First(): Parameters<typeof validationError>[0] | undefined } };
    readonly value: unknown;
  };
  const first = validator.Errors(value).First();
  return first === undefined ? error : validationError(first);
}
