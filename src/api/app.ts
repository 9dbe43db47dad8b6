import { Elysia } from "elysia";
import { accessPlugin } from "./access.ts";
import { answersPlugin } from "./answers.ts";
import { authenticate } from "./auth.ts";
import { BodyRooms } from "./body-room.ts";
import { elysiaPathOf, pathOf, RouteTable, unknownRoute } from "./elysia-gaps.ts";
import { openApiPlugin } from "./openapi/openapi.ts";
import { statusPlugin } from "./operator/health.ts";
import type { ApiOptions } from "./options.ts";
import { Requests } from "./requests.ts";
import { describe, type ServedRoute } from "./route.ts";
import { v1Plugin } from "./v1/plugin.ts";

/** Where the interface of the specification is. Every path below it asks for a token, also one that does not exist. */
const V1_PREFIX = "/v1";
/** Connections that are silent for so long are closed, in `seconds`; no answer is silent for longer than a long poll. */
const IDLE_TIMEOUT_SECONDS = 120;

const BODY_WAIT = { waitingBytes: 67_108_864, waitMsMax: 60_000, collect: () => Bun.gc(true) };
/** An account's share takes the largest body that any route does; a request takes about four times its body's length. */
const LARGE_BODIES = { totalBytes: 67_108_864, accountBytes: 33_554_432, ...BODY_WAIT };
const MEDIUM_BODIES = { totalBytes: 33_554_432, accountBytes: 8_388_608, ...BODY_WAIT };
/** 32 uploads of one account; they may last for hours. What they leave in memory is given back as it is written. */
const UPLOADS = { totalBytes: 268_435_456, accountBytes: 67_108_864, ...BODY_WAIT, collect: () => undefined };

/**
 * The HTTP interface: one plugin per surface. Elysia routes, and checks by the schemas of the routes; the principal is
 * known before it looks at anything else, and every answer and error leaves through the same two hooks.
 */
export function createApp({ service, verifyToken, publicUrl, metrics, log }: ApiOptions) {
  const requests = new Requests({ metrics, log });
  const access = accessPlugin(
    requests,
    new BodyRooms({ medium: MEDIUM_BODIES, large: LARGE_BODIES, uploads: UPLOADS }),
  );
  const address = `${publicUrl ?? ""}${V1_PREFIX}`;
  // Known when the application is; no request comes before.
  let served: readonly RunnableRoute[] = [];
  let table = new RouteTable(served);
  const app = new Elysia({
    // Both spellings of a path are routes of their own, which Bun's router cannot tell apart.
    strictPath: true,
    systemRouter: false,
    // It would take away what a schema does not name, also from a record.
    normalize: false,
    serve: { reusePort: false, idleTimeout: IDLE_TIMEOUT_SECONDS, maxRequestBodySize: Number.MAX_SAFE_INTEGER },
  })
    .onRequest(async (context) => {
      const { request } = context;
      const state = requests.of(request);
      const { path } = state;
      if (path === V1_PREFIX || path.startsWith(`${V1_PREFIX}/`)) {
        state.principal = await authenticate(request, verifyToken);
      }
      const isReadRight = request.method !== "HEAD" && elysiaPathOf(request.url) === path;
      if (isReadRight && !table.isShadowed(request.method, path)) return undefined;
      const found = table.find(request.method, path);
      if (found === null) throw unknownRoute(table, path);
      // Under another name, so that Elysia does not take this for a hook that looks at everything, and prepare that.
      const whole = context;
      return await found.route.compile()(Object.assign(whole, { params: found.params }));
    })
    .use(answersPlugin(requests, (request) => unknownRoute(table, pathOf(request.url))))
    .use(v1Plugin(V1_PREFIX, { service, address, access }))
    .use(statusPlugin(service.status))
    .use(openApiPlugin({ version: service.status.version, publicUrl }, () => describe(served)));
  served = app.routes as unknown as readonly RunnableRoute[];
  table = new RouteTable(served);
  return app;
}

/** A route of Elysia's, which runs all of its hooks for a context that was made already. */
interface RunnableRoute extends ServedRoute {
  compile(): (context: unknown) => Response | Promise<Response>;
}

/** The interface with the types of its routes, for a typed client. */
export type App = ReturnType<typeof createApp>;
