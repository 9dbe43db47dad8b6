import { Elysia } from "elysia";
import { accessPlugin } from "./access.ts";
import { answersPlugin } from "./answers.ts";
import { Arrivals } from "./arrivals.ts";
import { authenticate } from "./auth.ts";
import { BodyRooms } from "./body/room.ts";
import { CONTREE_ERRORS } from "./contree/errors.ts";
import { contreePlugin } from "./contree/plugin.ts";
import { DAV_ERRORS } from "./dav/errors.ts";
import { davPlugin } from "./dav/plugin.ts";
import { elysiaPathOf, pathOf, RouteTable, unknownRoute, unread } from "./elysia-gaps.ts";
import { type ErrorForm, errorReply, SPECIFIED_ERRORS } from "./errors.ts";
import { MCP_ERRORS } from "./mcp/errors.ts";
import { mcpPlugin } from "./mcp/plugin.ts";
import { openApiPlugin } from "./openapi/openapi.ts";
import { statusPlugin } from "./operator/health.ts";
import type { ApiOptions } from "./options.ts";
import type { Reply } from "./reply.ts";
import { type RequestState, RequestTracker } from "./request-tracker.ts";
import { describe, type RunnableRoute } from "./route.ts";
import { type Handshake, SOCKET_SETTINGS, type Socket, upgrade } from "./socket.ts";
import { v1Plugin } from "./v1/plugin.ts";
import { eventSocket, wantsEventSocket } from "./web/event-socket.ts";
import { webPlugin } from "./web/plugin.ts";
import { SessionGate } from "./web/session-gate.ts";

/** Prefix of the specified API. */
const V1_PREFIX = "/v1";
/** Prefix of the API for the public ConTree clients, which add the last part to their base address. */
const CONTREE_PREFIX = "/contree/v1";
/** Address of the Model Context Protocol. */
const MCP_PREFIX = "/mcp";
/** Address of the drive that file managers mount. */
const DAV_PREFIX = "/dav";
/** Prefix of the page's own paths, apart from the addresses of its views. */
const WEB_PREFIX = "/web";
/** Prefix of the specified API for the page: the credential there is the session; tokens are not accepted. */
const WEB_API_PREFIX = `${WEB_PREFIX}/api`;
/** Every path below one of these requires a token, even if no route matches it. */
const GUARDED_PREFIXES = [V1_PREFIX, CONTREE_PREFIX, MCP_PREFIX, DAV_PREFIX];
/** Idle connections are closed after this time, in `seconds`. The longest pause of a response is that of a long poll. */
const IDLE_TIMEOUT_SECONDS = 120;

const isBelow = (prefix: string, path: string): boolean => path === prefix || path.startsWith(`${prefix}/`);

/** The form of the errors of a path. */
export function errorFormOf(path: string): ErrorForm {
  if (isBelow(MCP_PREFIX, path)) return MCP_ERRORS;
  if (isBelow(DAV_PREFIX, path)) return DAV_ERRORS;
  return isBelow(CONTREE_PREFIX, path) ? CONTREE_ERRORS : SPECIFIED_ERRORS;
}

const replyTo = (cause: unknown, path: string): Reply => errorReply(cause, errorFormOf(path));

/**
 * The HTTP API: one plugin per surface. Elysia routes requests and validates them against the schemas of the routes. The
 * principal is known before anything else is read, and the same two hooks make every response.
 */
export function createApp({ service, accounts, verifyToken, publicUrl, metrics, log, web }: ApiOptions) {
  const requests = new RequestTracker({ metrics, log });
  const access = accessPlugin(requests, new BodyRooms(accounts, () => Bun.gc(true)));
  const addressOf = (prefix: string): string => `${publicUrl ?? ""}${prefix}`;
  const upgraded = upgraderOf(requests);
  const prefixes = { page: WEB_API_PREFIX, api: V1_PREFIX };
  const gate = web === null ? null : new SessionGate({ ...web, publicUrl, prefixes, apiAddress: addressOf(V1_PREFIX) });
  const webOptions = { prefix: WEB_PREFIX, version: service.status.version, publicUrl, log };
  const webRoutes =
    web === null || gate === null ? new Elysia() : webPlugin({ ...webOptions, gate, sessions: web.sessions });
  // Set below, before the application serves its first request.
  let served: readonly RunnableRoute[] = [];
  let table = new RouteTable(served);
  let serverOf = (): Handshake["server"] => null;
  const arrivals = new Arrivals(({ headers }) => headers.get("authorization") ?? headers.get("cookie"));
  /** Proves the caller of a request, and returns the path of the route that answers. */
  const proven = async (request: Request, state: RequestState, isOfPage: boolean): Promise<string> => {
    if (isOfPage && gate !== null) return await gate.admit(request, state);
    if (GUARDED_PREFIXES.some((prefix) => isBelow(prefix, state.path))) {
      const basic = isBelow(DAV_PREFIX, state.path);
      Object.assign(state, await authenticate(request, verifyToken, { basic }));
    }
    return state.path;
  };
  const app = new Elysia({
    // A path with and one without a trailing slash are different routes, which Bun's router cannot tell apart.
    strictPath: true,
    systemRouter: false,
    // Normalization would remove properties that a schema does not name, even from a record.
    normalize: false,
    websocket: SOCKET_SETTINGS,
    serve: { reusePort: false, idleTimeout: IDLE_TIMEOUT_SECONDS, maxRequestBodySize: Number.MAX_SAFE_INTEGER },
  })
    .onRequest(
      unread(async (context: { readonly request: Request }) => {
        const { request } = context;
        const state = requests.of(request);
        const isOfPage = gate !== null && isBelow(WEB_API_PREFIX, state.path);
        const path = await arrivals.admit(request, state, () => proven(request, state, isOfPage));
        const isReadRight = !isOfPage && request.method !== "HEAD" && elysiaPathOf(request.url) === path;
        if (isReadRight && !table.isShadowed(request.method, path)) return undefined;
        const match = table.find(request.method, path);
        if (match === null) throw unknownRoute(table, path);
        const isEventSocket = isOfPage && wantsEventSocket(request);
        const answer = await match.route.compile()(Object.assign(context, { params: match.params }));
        return isEventSocket ? eventSocket(answer, { request, server: serverOf() }, upgraded) : answer;
      }),
    )
    .use(answersPlugin(requests, (request) => unknownRoute(table, pathOf(request.url)), replyTo))
    .use(v1Plugin(V1_PREFIX, { service, address: addressOf(V1_PREFIX), access, upgrade: upgraded }))
    .use(contreePlugin(CONTREE_PREFIX, { service, address: addressOf(CONTREE_PREFIX), access }))
    .use(mcpPlugin(MCP_PREFIX, { service, accounts, access, requests, publicUrl, log }))
    .use(davPlugin(DAV_PREFIX, { service, requests }))
    .use(statusPlugin(service.status))
    .use(webRoutes)
    .use(openApiPlugin({ version: service.status.version, publicUrl, errorForm: errorFormOf }, () => describe(served)));
  served = app.routes as unknown as readonly RunnableRoute[];
  table = new RouteTable(served);
  serverOf = () => app.server;
  return app;
}

/** Opens a WebSocket for a caller who is known. */
function upgraderOf(requests: RequestTracker) {
  return (handshake: Handshake, protocol: string | null, socket: Socket) => {
    const { request } = handshake;
    const { id, principal } = requests.of(request);
    const isAllowed = () => requests.isAllowed(request);
    return upgrade(handshake, { requestId: id, protocol, socket, isAllowed, owner: principal?.accountId });
  };
}

/** The application with the types of its routes, for the typed client. */
export type App = ReturnType<typeof createApp>;
