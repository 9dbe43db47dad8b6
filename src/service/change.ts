import { ApiError, type ErrorCode } from "../domain/errors.ts";
import type { LogFields } from "../log.ts";
import type { Principal, ServiceParts } from "./parts.ts";

/**
 * The changes of use cases, by noun. A change alters stored objects or running instances on behalf of a principal. Opening a
 * connection or an attachment is one change; the bytes that pass through it are not changes. Neither is the service's own
 * bookkeeping, such as the last use of a session or the work of an operation, nor are requests from outside to ports.
 */
export const CHANGES = {
  image: ["import", "delete", "tag", "untag"],
  file: ["upload"],
  instance: ["spawn", "checkpoint", "fork", "change", "connect"],
  guest_file: ["write", "make", "remove", "move", "join", "change"],
  sandbox: ["open", "change", "deadline", "pause", "resume", "rollback", "checkpoint", "fork", "end", "link"],
  record: ["change", "connect", "fork", "open"],
  template: ["request", "build", "upload", "tag", "untag", "change", "snapshot", "delete"],
  process: ["start", "write", "signal", "attach", "resize"],
  operation: ["cancel"],
  token: ["create", "revoke"],
  key: ["rotate"],
  session: ["begin", "end"],
  space: ["collect"],
} as const;

/** Log lines of changes that take long, when they begin. */
const BEGINNINGS: { readonly [what: string]: string } = { "space collect": "an operator collects space" };
/** Log lines of rare changes; the others are logged for debugging. */
const LINES: { readonly [what: string]: string } = {
  "token create": "an operator made a token",
  "token revoke": "an operator revoked a token",
  "key rotate": "an operator rotated the key that signs tokens",
  "space collect": "space was collected for an operator",
};

type Nouns = typeof CHANGES;
type What = {
  readonly [Noun in keyof Nouns]: { readonly noun: Noun; readonly verb: Nouns[Noun][number] };
}[keyof Nouns];

/** A change that is about to be made. */
export type Change<T> = What & {
  /** id of the changed object, or of the operation that changes it; a function when the change makes the object */
  readonly id: string | ((value: T) => string);
  /** further fields of the log line, without secrets */
  readonly details?: (value: T) => LogFields;
};

declare const changed: unique symbol;

/** The result of a use case that changes something. Only `change` and `unchanged` make one, so no use case bypasses them. */
export type Changed<T> = T & { readonly [changed]: true };

/**
 * Makes a change for a principal, and logs it: principal, change, object and outcome. Every use case that changes something
 * returns the result of this function.
 * @throws as `work` does
 */
export function change<T>(
  parts: Pick<ServiceParts, "log">,
  principal: Principal,
  what: Change<T>,
  work: () => Promise<T>,
): Promise<Changed<T>>;
export function change<T>(
  parts: Pick<ServiceParts, "log">,
  principal: Principal,
  what: Change<T>,
  work: () => T,
): Changed<T>;
export function change<T>(
  { log }: Pick<ServiceParts, "log">,
  principal: Principal,
  what: Change<T>,
  work: () => T | Promise<T>,
): Changed<T> | Promise<Changed<T>> {
  const { noun, verb } = what;
  const name = `${noun} ${verb}`;
  const actor = { account: principal.accountId, token_id: principal.tokenId };
  const report = (id: string | null, outcome: "done" | ErrorCode, details?: LogFields): void => {
    const line = outcome === "done" ? LINES[name] : undefined;
    if (line !== undefined) log.info(line, { ...actor, ...details });
    else log.debug("a change", { ...actor, noun, verb, id, outcome, ...details });
  };
  const done = (value: T): Changed<T> => {
    report(typeof what.id === "string" ? what.id : what.id(value), "done", what.details?.(value));
    return unchanged(value);
  };
  const failed = (error: unknown): never => {
    report(typeof what.id === "string" ? what.id : null, error instanceof ApiError ? error.code : "internal_error");
    throw error;
  };
  const beginning = BEGINNINGS[name];
  if (beginning !== undefined) log.info(beginning, actor);
  try {
    const value = work();
    return value instanceof Promise ? value.then(done, failed) : done(value);
  } catch (error) {
    return failed(error);
  }
}

/** The result of a use case that had nothing to change, because the object already was in the requested state. */
export function unchanged<T>(value: T): Changed<T> {
  return value as Changed<T>;
}
