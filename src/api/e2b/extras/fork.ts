import { type Static, Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import type { Forked } from "../../../service/e2b/fork.ts";
import { authorize } from "../../auth.ts";
import { json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { liveSandbox } from "../control/life.ts";
import { optional, seconds } from "../control/schema.ts";
import { sandboxOf } from "../control/wire.ts";
import { E2bError, e2bStatusOf } from "../errors.ts";
import { wireId } from "../ids.ts";
import type { E2bParts } from "../options.ts";

const COUNT_MAX = 100;
const COUNT_ERROR = `count must be an integer from 1 to ${COUNT_MAX}`;
/** Life of forks whose request names none, in `seconds`. */
const FORK_SECONDS = 15;

const Fork = Type.Object({
  count: optional(Type.Integer({ minimum: 1, maximum: COUNT_MAX, error: COUNT_ERROR })),
  timeout: optional(seconds("timeout")),
});
type Fork = Static<typeof Fork>;

export function forkRoutes(parts: E2bParts) {
  const { access, service } = parts;
  return new Elysia().use(access).post(
    "/sandboxes/:sandboxID/fork",
    async ({ request, principal, params, body }) => {
      authorize(principal, "instances:exec");
      const { id } = liveSandbox(parts, principal, params.sandboxID).sandbox;
      const forks = await service.e2b.fork(principal, id, { ...forkOf(body), signal: request.signal });
      const answers = await Promise.all(forks.map((fork) => wireOf(parts, fork)));
      return respond(json(201, answers), request) as never;
    },
    { takes: { scope: "instances:spawn", waitsForGuest: true, mayBeEmpty: true }, body: checked(Fork) },
  );
}

/** @throws E2bError 400 */
function forkOf({ count, timeout }: Fork) {
  const timeoutSeconds = timeout ?? FORK_SECONDS;
  if (timeoutSeconds <= 0) throw new E2bError(400, "timeout must be greater than 0");
  return { count: count ?? 1, timeoutSeconds, env: (id: string) => ({ E2B_SANDBOX_ID: wireId(id) }) };
}

async function wireOf(parts: E2bParts, fork: Forked) {
  if ("recorded" in fork) return { sandbox: await sandboxOf(parts, fork.recorded) };
  const { status: code, message } = e2bStatusOf(fork.error);
  return { error: { code, message } };
}
