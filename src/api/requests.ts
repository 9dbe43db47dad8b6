import { ApiError } from "../domain/errors.ts";
import type { Scope } from "../domain/scope.ts";
import type { Principal } from "../service/parts.ts";
import { authorize } from "./auth.ts";
import { pathOf } from "./elysia-gaps.ts";
import { isInternal } from "./errors.ts";
import type { ApiOptions } from "./options.ts";

const OPERATION_OF_LOCATION = /\/operations\/([0-9a-f-]{36})$/;
/** Label of requests that no route answers. */
const NO_ROUTE = "none";
/** Methods that have a label of their own in the metrics. */
const METHODS: readonly string[] = ["GET", "HEAD", "POST", "PATCH", "DELETE"];

/** What is known of a request from its first moment on. */
export interface RequestState {
  readonly id: string;
  /** as the client spelled it, without the query */
  readonly path: string;
  readonly startedAt: number;
  principal: Principal | null;
  /** room that its body takes until it is answered */
  held: DisposableStack | null;
  isAnswered: boolean;
}

/** How an answer came to be. */
export interface Outcome {
  /** pattern of the route that answers; paths as they come would be labels without end */
  readonly route: string | undefined;
  readonly cause?: unknown;
}

/** Follows requests from their first moment to their answer, which is logged and counted. */
export class Requests {
  readonly #options: Pick<ApiOptions, "metrics" | "log">;
  readonly #states = new WeakMap<Request, RequestState>();

  constructor(options: Pick<ApiOptions, "metrics" | "log">) {
    this.#options = options;
  }

  of(request: Request): RequestState {
    const known = this.#states.get(request);
    if (known !== undefined) return known;
    const state: RequestState = {
      id: Bun.randomUUIDv7(),
      path: pathOf(request.url),
      startedAt: performance.now(),
      principal: null,
      held: null,
      isAnswered: false,
    };
    this.#states.set(request, state);
    return state;
  }

  /** The caller, once it is known to be allowed. @throws ApiError `unauthorized`, `forbidden` */
  allowed(request: Request, scope: Scope): Principal {
    const principal = this.principal(request);
    authorize(principal, scope);
    return principal;
  }

  /** The caller. @throws ApiError `unauthorized` */
  principal(request: Request): Principal {
    const { principal } = this.of(request);
    if (principal === null) throw new ApiError("unauthorized", "missing or invalid bearer token");
    return principal;
  }

  /** Disposes of `room` when the request is answered. */
  hold(request: Request, room: Disposable): void {
    const state = this.of(request);
    state.held ??= new DisposableStack();
    state.held.use(room);
  }

  /** Gives the answer its id and tells the log and the metrics of it. */
  answer(request: Request, response: Response, outcome: Outcome): Response {
    const state = this.of(request);
    state.isAnswered = true;
    state.held?.dispose();
    response.headers.set("x-request-id", state.id);
    this.#log(request, response, state, outcome.cause);
    this.#count(request, response, state, outcome.route ?? NO_ROUTE);
    return response;
  }

  #count(request: Request, { status }: Response, state: RequestState, route: string): void {
    const { metrics } = this.#options;
    const labels = { method: METHODS.includes(request.method) ? request.method : "other", route };
    metrics.requests.add({ ...labels, status: String(status) });
    metrics.requestSeconds.observe(labels, (performance.now() - state.startedAt) / 1000);
  }

  #log(request: Request, { status, headers }: Response, state: RequestState, cause?: unknown): void {
    const { log } = this.#options;
    const fields = {
      request: state.id,
      method: request.method,
      path: state.path,
      status,
      account: state.principal?.accountId,
      duration_ms: Math.round(performance.now() - state.startedAt),
    };
    if (cause !== undefined && isInternal(cause) && !request.signal.aborted) {
      log.error("request failed", { ...fields, cause });
    } else {
      log.debug("request", fields);
    }
    // What ties the two ids together, for those who search the log.
    const operation = status < 300 ? OPERATION_OF_LOCATION.exec(headers.get("location") ?? "")?.[1] : undefined;
    if (operation !== undefined) log.info("operation accepted", { operation, request: state.id });
  }
}
