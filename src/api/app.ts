import { Elysia } from "elysia";
import { ApiError } from "../domain/errors.ts";
import type { Principal } from "../service/parts.ts";
import { authenticate } from "./auth.ts";
import { BodyRooms } from "./body-room.ts";
import { elysiaPathOf, pathOf, RouteTable, type Runner, runnerOf } from "./dispatch.ts";
import { errorReply, isInternal } from "./errors.ts";
import type { ApiOptions } from "./options.ts";
import { type Reply, toResponse } from "./reply.ts";
import { METHODS, type Route } from "./route.ts";
import { allRoutes, V1_PREFIX } from "./routes.ts";

/** Connections that are silent for so long are closed, in `seconds`; no answer is silent for longer than a long poll. */
const IDLE_TIMEOUT_SECONDS = 120;

const BODY_WAIT = { waitingBytes: 67_108_864, waitMsMax: 60_000, collect: () => Bun.gc(true) };
/** An account's share takes the largest body that any route does; a request takes about four times its body's length. */
const LARGE_BODIES = { totalBytes: 67_108_864, accountBytes: 33_554_432, ...BODY_WAIT };
const MEDIUM_BODIES = { totalBytes: 33_554_432, accountBytes: 8_388_608, ...BODY_WAIT };

const OPERATION_OF_LOCATION = /\/operations\/([0-9a-f-]{36})$/;

/** Label of requests that no route answers. */
const NO_ROUTE = "none";

/** What is known of a request from its first moment on. */
interface RequestState {
  readonly id: string;
  /** as the client spelled it, without the query */
  readonly path: string;
  readonly startedAt: number;
  principal: Principal | null;
  /** pattern of the route that answers; paths as they come would be labels without end */
  route: string;
}

/**
 * The HTTP interface. Every route is a value of the route table; Elysia routes to it. Bodies, queries and
 * answers are handled by the table's schemas, so that nothing is read before the caller is known and allowed.
 */
export function createApp(options: ApiOptions) {
  const routes = allRoutes(options);
  const table = new RouteTable(routes);
  const rooms = new BodyRooms(MEDIUM_BODIES, LARGE_BODIES);
  const runners = new Map(routes.map((route) => [route, runnerOf(route, rooms)] as const));
  const states = new WeakMap<Request, RequestState>();

  const answer = (request: Request, reply: Reply, cause?: unknown): Response => {
    const state = states.get(request) ?? newState(request);
    logAnswer(options, request, reply, state, cause);
    countAnswer(options, request, reply, state);
    return toResponse(reply, request.method, state.id);
  };
  const serve = async (request: Request, route: Route, params: Record<string, string>): Promise<Response> => {
    const state = states.get(request) ?? newState(request);
    if (table.isShadowed(route, state.path)) throw unknownRoute(table, state.path);
    const run = runners.get(route) as Runner;
    state.route = route.path;
    return answer(request, await run(request, state.principal, params));
  };

  const app = new Elysia({
    // Both spellings of a path are routes of their own, which Bun's router cannot tell apart.
    strictPath: true,
    systemRouter: false,
    serve: { reusePort: false, idleTimeout: IDLE_TIMEOUT_SECONDS, maxRequestBodySize: Number.MAX_SAFE_INTEGER },
  })
    .onRequest(async ({ request }) => {
      const state = newState(request);
      states.set(request, state);
      const { path } = state;
      if (path === V1_PREFIX || path.startsWith(`${V1_PREFIX}/`)) {
        state.principal = await authenticate(request, options.verifyToken);
      }
      // Elysia answers HEAD of a path with parameters by GET and the wrong length, so it does not get to see any,
      // and no request whose path it would take from the wrong place.
      if (request.method !== "HEAD" && elysiaPathOf(request.url) === path) return undefined;
      const found = table.find(request.method, path);
      if (found === null) throw unknownRoute(table, path);
      return serve(request, found.route, found.params);
    })
    .onError({ as: "global" }, ({ error, code, request }) => {
      const failure = code === "NOT_FOUND" ? unknownRoute(table, pathOf(request.url)) : error;
      return answer(request, errorReply(failure), failure);
    });

  for (const route of routes) {
    if (route.method === "HEAD") continue;
    app.route(route.method, route.path, ({ request, params }) => serve(request, route, { ...params }), {
      parse: "none",
    });
  }
  return app;
}

export type App = ReturnType<typeof createApp>;

function newState({ url }: Request): RequestState {
  return { id: Bun.randomUUIDv7(), path: pathOf(url), startedAt: performance.now(), principal: null, route: NO_ROUTE };
}

function unknownRoute(table: RouteTable, path: string): ApiError {
  const allow = table.allowed(path);
  if (allow.length === 0) return new ApiError("not_found", "no such route");
  return new ApiError("method_not_allowed", `this route knows only ${allow.join(", ")}`, { allow });
}

function countAnswer({ metrics }: ApiOptions, request: Request, reply: Reply, state: RequestState): void {
  const method = (METHODS as readonly string[]).includes(request.method) ? request.method : "other";
  const labels = { method, route: state.route };
  metrics.requests.add({ ...labels, status: String(reply.status) });
  metrics.requestSeconds.observe(labels, (performance.now() - state.startedAt) / 1000);
}

function logAnswer(options: ApiOptions, request: Request, reply: Reply, state: RequestState, cause?: unknown): void {
  const fields = {
    request: state.id,
    method: request.method,
    path: state.path,
    status: reply.status,
    account: state.principal?.accountId,
    duration_ms: Math.round(performance.now() - state.startedAt),
  };
  if (cause !== undefined && isInternal(cause) && !request.signal.aborted) {
    options.log.error("request failed", { ...fields, cause });
  } else {
    options.log.debug("request", fields);
  }
  // What ties the two ids together, for those who search the log.
  const operation = reply.status < 300 ? OPERATION_OF_LOCATION.exec(reply.headers["location"] ?? "")?.[1] : undefined;
  if (operation !== undefined) options.log.info("operation accepted", { operation, request: state.id });
}
