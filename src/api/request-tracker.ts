import { ApiError } from "../domain/errors.ts";
import type { Scope } from "../domain/scope.ts";
import type { Principal } from "../service/parts.ts";
import { authorize } from "./auth.ts";
import { pathOf } from "./elysia-gaps.ts";
import { isInternal } from "./errors.ts";
import type { ApiOptions } from "./options.ts";

const OPERATION_OF_LOCATION = /\/operations\/([0-9a-f-]{36})$/;
/** Label of requests that no route matches. */
const NO_ROUTE = "none";
/** Methods that have a label of their own in the metrics. */
const METHODS: readonly string[] = ["GET", "HEAD", "POST", "PATCH", "DELETE"];

/** The state of a request, from its arrival to its response. */
export interface RequestState {
  readonly id: string;
  /** path as the client spelled it, without the query and without secrets, which must not be in the log */
  path: string;
  readonly startedAt: number;
  principal: Principal | null;
  /** whether the credential of the principal is still valid; never rejects; null: the request has none */
  isAllowed: (() => Promise<boolean>) | null;
  /** changes the headers of the answer, also those of an error; null: they stay unchanged */
  finish: ((headers: Headers) => void) | null;
  /** memory for its body; disposed when the request is answered */
  held: DisposableStack | null;
  isAnswered: boolean;
}

/** The route of a response and the cause of a failure. */
export interface Outcome {
  /** pattern of the route; the paths themselves would give an unbounded number of labels */
  readonly route: string | undefined;
  readonly cause?: unknown;
}

/** Tracks requests from their arrival to their response, which it logs and counts. */
export class RequestTracker {
  readonly #options: Pick<ApiOptions, "metrics" | "log">;
  readonly #states = new WeakMap<Request, RequestState>();

  constructor(options: Pick<ApiOptions, "metrics" | "log">) {
    this.#options = options;
  }

  /** The state of a request; the first call creates it. */
  of(request: Request): RequestState {
    const previous = this.#states.get(request);
    if (previous !== undefined) return previous;
    const state: RequestState = {
      id: Bun.randomUUIDv7(),
      path: pathOf(request.url),
      startedAt: performance.now(),
      principal: null,
      isAllowed: null,
      finish: null,
      held: null,
      isAnswered: false,
    };
    this.#states.set(request, state);
    return state;
  }

  /** The principal, if its token allows `scope`. @throws ApiError `unauthorized`, `forbidden` */
  allowed(request: Request, scope: Scope): Principal {
    const principal = this.principal(request);
    authorize(principal, scope);
    return principal;
  }

  /** The principal. @throws ApiError `unauthorized` */
  principal(request: Request): Principal {
    const { principal } = this.of(request);
    if (principal === null) throw new ApiError("unauthorized", "missing or invalid bearer token");
    return principal;
  }

  /** Whether the credential of the principal is still valid. Never rejects: one that cannot be checked counts as valid. */
  async isAllowed(request: Request): Promise<boolean> {
    return (await this.of(request).isAllowed?.()) ?? false;
  }

  /** Disposes of `room` when the request is answered. */
  hold(request: Request, room: Disposable): void {
    const state = this.of(request);
    state.held ??= new DisposableStack();
    state.held.use(room);
  }

  /** Takes over the room of the body, for work that continues after the answer has begun. */
  takeOver(request: Request): Disposable {
    const state = this.of(request);
    const { held } = state;
    state.held = null;
    return held ?? new DisposableStack();
  }

  /** Adds the request's id to the response, logs and counts it. */
  answer(request: Request, response: Response, outcome: Outcome): Response {
    const state = this.of(request);
    state.isAnswered = true;
    state.held?.dispose();
    response.headers.set("x-request-id", state.id);
    state.finish?.(response.headers);
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
    // This line connects the ids of the request and the operation for a reader of the log.
    const operation = status < 300 ? OPERATION_OF_LOCATION.exec(headers.get("location") ?? "")?.[1] : undefined;
    if (operation !== undefined) log.info("operation accepted", { operation, request: state.id });
  }
}
