import { Elysia } from "elysia";
import { accessPlugin } from "../access.ts";
import { answersPlugin } from "../answers.ts";
import { Arrivals } from "../arrivals.ts";
import type { Caller } from "../auth.ts";
import { BodyRooms } from "../body/room.ts";
import { RouteTable, unknownRoute, unread } from "../elysia-gaps.ts";
import { RequestTracker } from "../request-tracker.ts";
import type { RunnableRoute } from "../route.ts";
import { controlPlugin } from "./control/plugin.ts";
import { EnvdAccess } from "./envd-access.ts";
import { E2bError, e2bReply } from "./errors.ts";
import { extrasPlugin } from "./extras/plugin.ts";
import { refusalOf } from "./extras/refusals.ts";
import { filesPlugin } from "./files/plugin.ts";
import type { E2bOptions, E2bParts } from "./options.ts";
import { provenByAddress, provenByKey, UPLOAD_PREFIX } from "./principal.ts";
import { processPlugin } from "./process/plugin.ts";
import { isEnvdPath } from "./routing.ts";
import { Calls } from "./rpc/calls.ts";
import { SignedLinks } from "./signatures.ts";
import { templatesPlugin } from "./templates/plugin.ts";

/** Field in which the gateway names the sandbox of a request to an agent; absent: the request is for the API. */
export const SANDBOX_FIELD = "x-coppice-sandbox";
/** Releases of the clients that the tests run. */
const TESTED =
  "e2b for Python 2.20.3, 2.31.0, 2.45.1 and 2.63.0, e2b for JavaScript 2.45.0 and 2.51.0, @e2b/cli 2.19.0";

/** Pages of any origin may call: no cookies are involved. */
export const CORS: readonly (readonly [name: string, value: string])[] = [
  ["Access-Control-Allow-Origin", "*"],
  ["Access-Control-Expose-Headers", "X-Next-Token"],
];

/** Paths have ids in other spellings than UUIDs, and names: their routes check them. @throws E2bError 400 */
function requireDecoded(params: Readonly<Record<string, string | null>>): void {
  for (const name in params) {
    // Elysia's value for one that cannot be decoded.
    if (params[name] === null) throw new E2bError(400, `${name} must be percent-encoded`);
  }
}

/**
 * The application behind the gateway, which alone can reach it. The caller is known before anything else of a request is
 * read, and the same two hooks make every response.
 */
export function createE2bApp({ metrics, ...options }: E2bOptions) {
  const requests = new RequestTracker({ metrics, log: options.log });
  const rooms = new BodyRooms(options.accounts, () => Bun.gc(true));
  const access = accessPlugin(requests, rooms, requireDecoded);
  const parts: E2bParts = { ...options, requests, access, calls: new Calls(options.accounts, rooms) };
  const envds = new EnvdAccess(parts, new SignedLinks(parts));
  const arrivals = new Arrivals(({ headers }) => headers.get("x-api-key") ?? headers.get("x-access-token"));
  let table = new RouteTable<RunnableRoute>([]);
  const unknown = (path: string): Error => {
    if (table.allowed(path).length > 0) return unknownRoute(table, path);
    return new E2bError(404, refusalOf(path) ?? `no such route; tested clients: ${TESTED}`);
  };
  const proven = async (request: Request, path: string): Promise<Caller | null> => {
    const sandbox = request.headers.get(SANDBOX_FIELD);
    if (sandbox !== null && isEnvdPath(path)) return await envds.prove(request, { path, sandbox });
    if (sandbox === null && path.startsWith(UPLOAD_PREFIX))
      return await provenByAddress(request, path, options.service);
    // A path that another place has exists nowhere here: only a caller with a key learns that.
    const caller = await provenByKey(request, options.verifyToken);
    if (sandbox !== null || isEnvdPath(path)) throw unknown("");
    return caller;
  };
  const app = new Elysia({ strictPath: true, systemRouter: false, normalize: false })
    .onRequest(
      unread(async (context: { readonly request: Request }) => {
        const { request } = context;
        const state = requests.of(request);
        state.finish = (headers) => {
          for (const [name, value] of CORS) headers.set(name, value);
        };
        const { path } = state;
        await arrivals.admit(request, state, async () => Object.assign(state, await proven(request, path)));
        await envds.ready(request);
        if (request.method !== "HEAD" && !table.isShadowed(request.method, path)) return undefined;
        const match = table.find(request.method, path);
        if (match === null) throw unknown(path);
        return await match.route.compile()(Object.assign(context, { params: match.params }));
      }),
    )
    .use(answersPlugin(requests, (request) => unknown(requests.of(request).path), e2bReply))
    .use(controlPlugin(parts))
    .use(extrasPlugin(parts))
    .use(processPlugin(parts))
    .use(filesPlugin(parts))
    .use(templatesPlugin(parts));
  table = new RouteTable(app.routes as unknown as readonly RunnableRoute[]);
  return app;
}
