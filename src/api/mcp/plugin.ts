import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { ApiError } from "../../domain/errors.ts";
import type { accessPlugin } from "../access.ts";
import type { ApiOptions } from "../options.ts";
import { watchCredential } from "../output/credential-watch.ts";
import { empty, respond } from "../reply.ts";
import type { RequestTracker } from "../request-tracker.ts";
import { ANY_TOKEN, about, checked } from "../route.ts";
import { pullStream } from "../stream/pull.ts";
import { Calls } from "./calls.ts";
import { Message, passedOn } from "./message.ts";
import { isOwnOrigin } from "./origin.ts";
import { Progress } from "./progress.ts";
import type { McpExchange } from "./server.ts";

/** Longest message, in `bytes`: a file of 1 MiB in base64, and a command. */
const MESSAGE_BYTES_MAX = 2_097_152;
/** Longest name of a session, in `characters`; this service makes UUIDs. */
const SESSION_CHARACTERS_MAX = 128;
const SESSION_HEADER = "mcp-session-id";

export interface McpOptions extends Pick<ApiOptions, "service" | "accounts" | "log" | "publicUrl"> {
  readonly requests: RequestTracker;
  /** macros for the scopes of routes */
  readonly access: ReturnType<typeof accessPlugin>;
}

const SESSION_HEADERS = { "Mcp-Session-Id": "name of the session, which the answer to `initialize` has" };

const MESSAGE = {
  body: checked(Message),
  ...about({
    id: "mcp",
    tag: "MCP",
    summary: "Send a message of the Model Context Protocol (streamable HTTP); each tool needs scopes of its own",
    requestHeaders: {
      ...SESSION_HEADERS,
      "MCP-Protocol-Version": "version of the protocol that the client speaks",
      Origin: "of a web page: only pages of this machine and of the service itself are served",
    },
    responses: {
      200: {
        description: "server-sent events: news of the progress, and the answer as the last one",
        content: { "text/event-stream": Type.String() },
      },
      202: { description: "a notification was accepted" },
    },
    errors: ["forbidden", "too_many_requests"],
  }),
};

const END_SESSION = {
  ...about({
    id: "endMcpSession",
    tag: "MCP",
    summary: "End the requests of a session that wait for their answers",
    requestHeaders: SESSION_HEADERS,
    responses: { 204: { description: "they have ended" } },
  }),
};

/**
 * The Model Context Protocol over streamable HTTP. It is stateless: each message gets a new server object, and the code of
 * servers is loaded with the first message. The result has no types of its routes: the typed client calls none.
 */
export function mcpPlugin(prefix: string, options: McpOptions): Elysia {
  const { access, requests } = options;
  const calls = new Calls(options.accounts);
  let loading: Promise<McpExchange> | null = null;
  const exchange = (): Promise<McpExchange> => {
    loading ??= import("./server.ts").then(({ mcpExchange }) => mcpExchange(options));
    return loading;
  };
  return new Elysia({ prefix })
    .use(access)
    .post(
      "",
      async ({ request, body }) => {
        requireOwnOrigin(request, options.publicUrl);
        return (await answer(request, body, { calls, requests, exchange })) as never;
      },
      { takes: { scope: ANY_TOKEN, bytesMax: MESSAGE_BYTES_MAX, waitsForGuest: true }, ...MESSAGE },
    )
    .delete(
      "",
      ({ request, principal }) => {
        const session = sessionOf(request);
        if (session !== null) calls.endSession(principal.accountId, session);
        return respond(empty(204), request) as never;
      },
      { writes: ANY_TOKEN, ...END_SESSION },
    ) as unknown as Elysia;
}

/** @throws ApiError `forbidden` for a page of another origin, which may call the service without its user's consent */
function requireOwnOrigin(request: Request, publicUrl: string | null): void {
  const origin = request.headers.get("origin");
  if (origin === null || isOwnOrigin(origin, publicUrl)) return;
  throw new ApiError("forbidden", "web pages of this origin may not use the service");
}

function sessionOf(request: Request): string | null {
  return request.headers.get(SESSION_HEADER)?.slice(0, SESSION_CHARACTERS_MAX) ?? null;
}

interface Answering extends Pick<McpOptions, "requests"> {
  readonly calls: Calls;
  readonly exchange: () => Promise<McpExchange>;
}

async function answer(request: Request, body: Message, { calls, requests, exchange }: Answering): Promise<Response> {
  const principal = requests.principal(request);
  const { accountId } = principal;
  const session = sessionOf(request);
  // This service sends no requests to its clients, so it ignores their answers.
  if (body.method === undefined) return respond(empty(202), request);
  const { message, takeInput } = passedOn(body);
  const { method, id, params } = message;
  if (method === "notifications/cancelled") {
    const cancelled = rpcId(params?.["requestId"]);
    if (cancelled !== null) calls.cancel({ accountId, session, id: cancelled });
  }
  using undo = new DisposableStack();
  // The input of a tool is in memory until the tool has begun, and counts until the answer is complete.
  undo.use(requests.takeOver(request));
  const call = undo.use(calls.begin({ accountId, session, id: rpcId(id) }));
  undo.use(watchCredential(call.left, () => requests.isAllowed(request)));
  request.signal.addEventListener("abort", () => call[Symbol.dispose](), { once: true });
  request.signal.throwIfAborted();
  const { signal } = call.left;
  const headersAsked = new Headers(request.headers);
  // The library refuses clients that do not name both, such as simple scripts.
  headersAsked.set("accept", "application/json, text/event-stream");
  const asked = new Request(request.url, { method: "POST", headers: headersAsked, signal });
  const requestId = requests.of(request).id;
  const progress = new Progress();
  const response = await (await exchange())(asked, message, { principal, requestId, signal, takeInput, progress });
  const { status, body: sent } = response;
  const headers = Object.fromEntries(response.headers);
  delete headers["connection"];
  headers["cache-control"] = "no-store";
  // A client that guesses it can only end requests of its own account.
  if (method === "initialize" && response.ok) headers[SESSION_HEADER] = crypto.randomUUID();
  if (sent === null) return respond({ status, headers, body: null }, request);
  const held = undo.move();
  const leave = () => held.dispose();
  request.signal.addEventListener("abort", leave, { once: true });
  // A refused message is answered with an error as JSON.
  const isStream = headers["content-type"]?.startsWith("text/event-stream") === true;
  const chunks = isStream ? begun(sent, progress) : sent.values();
  return respond({ status, headers, body: pullStream(chunks, { held, onCancel: leave }) }, request);
}

/** A comment before the first event: Bun sends the headers with the first bytes, and detects a disconnect only after them. */
const BEGINNING = new TextEncoder().encode(":\n\n");

async function* begun(
  events: ReadableStream<Uint8Array>,
  progress: Progress,
): AsyncGenerator<Uint8Array, void, undefined> {
  yield BEGINNING;
  for await (const event of events) {
    progress.taken();
    yield event;
  }
}

function rpcId(value: unknown): string | number | null {
  return typeof value === "string" || typeof value === "number" ? value : null;
}
