import type { ErrorDetails } from "../../domain/errors.ts";
import { json, type Reply } from "../reply.ts";
import { jsonSpec } from "../route.ts";
import { POLL_SECONDS } from "../wire-fields.ts";
import { CONTREE_ERRORS, ContreeError } from "./errors.ts";

/** Descriptions of answers that only some routes have. */
export const TOO_EARLY = {
  425: jsonSpec("the instance has not begun; nothing was done", ContreeError, {
    "Retry-After": "recommended time until the next attempt, in seconds",
  }),
};
export const GONE = { 410: jsonSpec("the instance has ended", ContreeError) };

/** The answer to a request for an instance that has not begun: nothing was done, and it can be sent again. */
export function tooEarly(details: ErrorDetails): Reply {
  return refusal(425, "the instance has not begun", details, { "retry-after": String(POLL_SECONDS) });
}

/** The answer to input for an instance that has ended. */
export function gone(details: ErrorDetails): Reply {
  return refusal(410, "the instance has ended", details);
}

function refusal(
  status: 410 | 425,
  message: string,
  details: ErrorDetails,
  headers: Record<string, string> = {},
): Reply {
  return json(status, CONTREE_ERRORS.body({ error: "conflict", message, details }, status), headers);
}
