import type { Static } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { ApiError } from "../../../domain/errors.ts";
import { parseUuidOrDigits, type SandboxId } from "../../../domain/ids.ts";
import type { ListedRecorded } from "../../../service/e2b/listing.ts";
import type { Principal } from "../../../service/parts.ts";
import type { Sandbox } from "../../../service/sandboxes/sandboxes.ts";
import { authorize } from "../../auth.ts";
import { empty, json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { E2bError } from "../errors.ts";
import type { E2bParts } from "../options.ts";
import { Connect, Pause, Refresh, Resume, Timeout } from "./schema.ts";
import { detailOf, sandboxOf } from "./wire.ts";

/** Lives of sandboxes whose requests name none, in `seconds`. */
const CONNECT_SECONDS = 300;
const RESUME_SECONDS = 15;
const REFRESH_SECONDS = 15;
/** Longest wait for a capture, in `milliseconds`: it is done then, or it has failed. */
const CAPTURE_MS_MAX = 600_000;

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
  const id = parseUuidOrDigits<SandboxId>(text);
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
  const connect = async (context: Context & { readonly body: Static<typeof Connect> }) => {
    const { request, principal, params, body } = context;
    authorize(principal, "instances:exec");
    const timeoutSeconds = positive(body.timeout ?? CONNECT_SECONDS);
    const { id } = liveSandbox(parts, principal, params.sandboxID).sandbox;
    const memory = body.memory === false ? body.memory : undefined;
    const connected = await e2b.connect(principal, id, { timeoutSeconds, memory, signal: request.signal });
    return respond(json(connected.isResumed ? 201 : 200, await sandboxOf(parts, connected)), request) as never;
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
        const id = parseUuidOrDigits<SandboxId>(params.sandboxID);
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
        const { id } = liveSandbox(parts, principal, params.sandboxID).sandbox;
        await e2b.settled(principal, id, context.request.signal);
        e2b.update(principal, id, { pausedFilesOnly: body.memory === false });
        await e2b.pause(principal, id, { memory: body.memory ?? true });
        return await paused(parts, context, id);
      },
      { takes, body: checked(Pause) },
    )
    .post(
      "/sandboxes/:sandboxID/resume",
      async (context) => {
        const { request, principal, params, body } = context;
        authorize(principal, "instances:exec");
        const timeoutSeconds = positive(body.timeout ?? RESUME_SECONDS);
        const { sandbox } = liveSandbox(parts, principal, params.sandboxID);
        const { id } = sandbox;
        if (!isPaused(sandbox)) throw new E2bError(409, `sandbox "${params.sandboxID}" is running already`);
        const resumed = await e2b.connect(principal, id, { timeoutSeconds, signal: request.signal });
        if (body.autoPause != null) {
          await sandboxes.change(principal, id, { onTimeout: body.autoPause ? "pause" : "end" });
        }
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

/** The answer when the files of a sandbox are safe. */
async function paused(parts: E2bParts, { request, principal, params }: Context, id: SandboxId): Promise<never> {
  const wait = { goal: "settled", waitMs: CAPTURE_MS_MAX, signal: request.signal } as const;
  const { state, error } = await parts.service.sandboxes.wait(principal, id, wait);
  if (state === "ended") throw noSandbox(params.sandboxID);
  if (error !== null) throw new ApiError(error.error, error.message, error.details);
  return respond(empty(204), request) as never;
}
