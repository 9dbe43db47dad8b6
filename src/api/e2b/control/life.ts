import { Elysia } from "elysia";
import { ApiError } from "../../../domain/errors.ts";
import type { SandboxId } from "../../../domain/ids.ts";
import type { ListedRecorded } from "../../../service/e2b/listing.ts";
import type { Principal } from "../../../service/parts.ts";
import type { Sandbox } from "../../../service/sandboxes/sandboxes.ts";
import { authorize } from "../../auth.ts";
import { empty, json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { E2bError } from "../errors.ts";
import { idOfWire } from "../ids.ts";
import type { E2bParts } from "../options.ts";
import { Connect, Pause, Refresh, Resume, Timeout } from "./schema.ts";
import { detailOf, sandboxOf } from "./wire.ts";

/** Lives of sandboxes whose requests name none, in `seconds`. */
const CONNECT_SECONDS = 300;
const RESUME_SECONDS = 15;
const REFRESH_SECONDS = 15;
/** Longest wait for a capture, in `milliseconds`: it is done then, or it has failed. */
const CAPTURE_MS_MAX = 600_000;
/** Other requests for the sandbox that one request may meet. */
const ATTEMPTS_MAX = 10;

interface Context {
  readonly request: Request;
  readonly principal: Principal;
  readonly params: { readonly sandboxID: string };
}

/** The answer to a request that asks for a sandbox that is gone, or that never was one of the account. */
export function noSandbox(text: string): E2bError {
  return new E2bError(404, `sandbox "${text}" not found`);
}

/** A sandbox of the account that is not gone. @throws E2bError 404 */
export function liveSandbox(
  { service }: Pick<E2bParts, "service">,
  principal: Principal,
  text: string,
): ListedRecorded {
  const id = idOfWire<SandboxId>(text);
  const recorded = id === null ? null : service.e2b.find(id);
  if (recorded === null || recorded.sandbox.accountId !== principal.accountId) throw noSandbox(text);
  return recorded;
}

export function lifeRoutes(parts: E2bParts) {
  const { access, service } = parts;
  const { sandboxes, e2b } = service;
  const takes = { scope: "instances:spawn", waitsForGuest: true, mayBeEmpty: true } as const;
  const none = ({ request }: Context): never => respond(empty(204), request) as never;
  const deadline = (context: Context, seconds: number, onlyLater: boolean): never => {
    const { principal, params } = context;
    const { sandbox } = liveSandbox(parts, principal, params.sandboxID);
    if (isPaused(sandbox)) throw noSandbox(params.sandboxID);
    sandboxes.setDeadline(principal, sandbox.id, { seconds, onlyLater });
    return none(context);
  };
  const connect = async (context: Context & { readonly body: { readonly timeout?: number | null } }) => {
    const { request, principal, params, body } = context;
    authorize(principal, "instances:exec");
    const timeoutSeconds = positive(body.timeout ?? CONNECT_SECONDS);
    const { isResumed, ...recorded } = await connected(parts, context, { text: params.sandboxID, timeoutSeconds });
    return respond(json(isResumed ? 201 : 200, await sandboxOf(parts, recorded)), request) as never;
  };
  return new Elysia()
    .use(access)
    .get(
      "/sandboxes/:sandboxID",
      async ({ request, principal, params }) => {
        const detail = await detailOf(parts, principal, liveSandbox(parts, principal, params.sandboxID));
        return respond(json(200, detail), request) as never;
      },
      { reads: "instances:read" },
    )
    .delete(
      "/sandboxes/:sandboxID",
      async (context) => {
        const { principal, params } = context;
        const id = idOfWire<SandboxId>(params.sandboxID);
        const state = id === null ? "ended" : stateOf(parts, principal, id);
        if (id === null || state === "ended") throw noSandbox(params.sandboxID);
        await sandboxes.end(principal, id, { keep: false });
        return none(context);
      },
      { writes: "instances:spawn" },
    )
    .post("/sandboxes/:sandboxID/timeout", (context) => deadline(context, context.body.timeout, false), {
      takes,
      body: checked(Timeout),
    })
    .post(
      "/sandboxes/:sandboxID/refreshes",
      (context) => deadline(context, context.body.duration ?? REFRESH_SECONDS, true),
      { takes, body: checked(Refresh) },
    )
    .post("/sandboxes/:sandboxID/connect", connect, { takes, body: checked(Connect) })
    .post("/v2/sandboxes/:sandboxID/connect", connect, { takes, body: checked(Connect) })
    .post(
      "/sandboxes/:sandboxID/pause",
      async (context) => {
        const { principal, params, body } = context;
        const { id } = (await settled(parts, context)).sandbox;
        // Its state says that it is paused already, if it is.
        const { state } = liveSandbox(parts, principal, params.sandboxID).sandbox;
        if (state !== "paused") e2b.update(principal, id, { pausedFilesOnly: body.memory === false });
        await sandboxes.pause(principal, id);
        return await paused(parts, context, id);
      },
      { takes, body: checked(Pause) },
    )
    .post(
      "/sandboxes/:sandboxID/resume",
      async (context) => {
        const { request, principal, params, body } = context;
        authorize(principal, "instances:exec");
        const { sandbox } = await settled(parts, context);
        if (sandbox.state !== "paused") throw new E2bError(409, `sandbox "${params.sandboxID}" is running already`);
        if (body.autoPause != null) {
          await sandboxes.change(principal, sandbox.id, { onTimeout: body.autoPause ? "pause" : "end" });
        }
        const resumed = await resume(parts, principal, {
          id: sandbox.id,
          signal: request.signal,
          timeoutSeconds: positive(body.timeout ?? RESUME_SECONDS),
        });
        return respond(json(201, await sandboxOf(parts, resumed)), request) as never;
      },
      { takes, body: checked(Resume) },
    );
}

const isPaused = ({ state }: Sandbox): boolean => state === "pausing" || state === "paused";

/** @throws E2bError 400 */
function positive(seconds: number): number {
  if (seconds > 0) return seconds;
  throw new E2bError(400, "timeout must be greater than 0");
}

/** The state of a sandbox of the account; one that does not exist has ended. */
function stateOf({ service }: E2bParts, principal: Principal, id: SandboxId): Sandbox["state"] {
  try {
    return service.sandboxes.get(principal, id).state;
  } catch (error) {
    if (error instanceof ApiError && error.code === "not_found") return "ended";
    throw error;
  }
}

/** The sandbox of a request, once no capture and no start is under way. @throws E2bError 404; as `e2b.ready` */
async function settled(parts: E2bParts, { request, principal, params }: Context): Promise<ListedRecorded> {
  const { service } = parts;
  const { sandbox } = liveSandbox(parts, principal, params.sandboxID);
  const { id, state } = sandbox;
  if (state === "pausing") {
    await captured(parts, principal, id, request.signal);
  } else if (state !== "running" && state !== "paused") await service.e2b.ready(principal, id, request.signal);
  return liveSandbox(parts, principal, params.sandboxID);
}

/** The answer when the files of a sandbox are safe. */
async function paused(parts: E2bParts, { request, principal, params }: Context, id: SandboxId): Promise<never> {
  const { state, error } = await captured(parts, principal, id, request.signal);
  if (state === "ended") throw noSandbox(params.sandboxID);
  if (error !== null) throw new ApiError(error.error, error.message, error.details);
  return respond(empty(204), request) as never;
}

/** A sandbox whose capture is over. */
async function captured({ service }: E2bParts, principal: Principal, id: SandboxId, signal: AbortSignal) {
  return await service.sandboxes.wait(principal, id, { goal: "settled", waitMs: CAPTURE_MS_MAX, signal });
}

interface ResumeRequest {
  readonly id: SandboxId;
  readonly timeoutSeconds: number;
  readonly signal: AbortSignal;
}

interface ConnectRequest {
  /** the id of the sandbox, as the client spelled it */
  readonly text: string;
  readonly timeoutSeconds: number;
}

/** A sandbox that runs, with the deadline that a client asks for, or a later one; a paused one is resumed. */
async function connected(parts: E2bParts, context: Context, { text, timeoutSeconds }: ConnectRequest) {
  const { principal, request } = context;
  const { signal } = request;
  for (let attempt = 1; ; attempt++) {
    const { sandbox } = await settled(parts, context);
    const { id, state } = sandbox;
    try {
      if (state === "paused")
        return { ...(await resume(parts, principal, { id, timeoutSeconds, signal })), isResumed: true };
      parts.service.sandboxes.setDeadline(principal, id, { seconds: timeoutSeconds, onlyLater: true });
      return { ...liveSandbox(parts, principal, text), isResumed: false };
    } catch (error) {
      // Another request was faster; the state says what it did.
      if (!(error instanceof ApiError) || error.code !== "conflict" || attempt === ATTEMPTS_MAX) throw error;
    }
  }
}

/** Resumes a paused sandbox. One that cannot start stays paused: nothing of it is lost. */
async function resume(
  { service }: E2bParts,
  principal: Principal,
  { id, timeoutSeconds, signal }: ResumeRequest,
): Promise<ListedRecorded> {
  const { sandboxes, e2b } = service;
  await sandboxes.resume(principal, id, timeoutSeconds);
  try {
    const { record } = await e2b.ready(principal, id, signal);
    sandboxes.setDeadline(principal, id, { seconds: timeoutSeconds, onlyLater: false });
    e2b.update(principal, id, { pausedFilesOnly: !record.autoPauseMemory });
    return { sandbox: sandboxes.get(principal, id), record };
  } catch (error) {
    if (sandboxes.get(principal, id).state === "failed") {
      await sandboxes.rollback(principal, id, { image: "HEAD", keep: false });
    }
    throw error;
  }
}
