import { ApiError, type ErrorCode } from "../domain/errors.ts";
import type { LogFields } from "../log.ts";
import type { Principal, ServiceParts } from "./parts.ts";

/**
 * What use cases change, by noun: whatever alters what is stored, or what runs, on behalf of a principal. Opening something
 * through which the caller alters what runs (a connection, an attachment) is one change, and none of its bytes is. The
 * service's own bookkeeping (the last use of a session, the work of an operation) is none.
 */
export const CHANGES = {
  image: ["import", "delete", "tag", "untag"],
  file: ["upload"],
  instance: ["spawn", "checkpoint", "extend", "connect"],
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
  "key rotate": "an operator changed the key that signs tokens",
  "space collect": "space was collected for an operator",
};

type Nouns = typeof CHANGES;
type What = {
  readonly [Noun in keyof Nouns]: { readonly noun: Noun; readonly verb: Nouns[Noun][number] };
}[keyof Nouns];

/** A change that is about to be made. */
export type Change<T> = What & {
  /** of the object that is changed, or of the operation that changes it; a function where the change makes it */
  readonly id: string | ((value: T) => string);
  /** what else a log line says; no secrets */
  readonly details?: (value: T) => LogFields;
};

declare const changed: unique symbol;

/** The result of a use case that changes something. Only `change` and `unchanged` make one, so that none bypasses them. */
export type Changed<T> = T & { readonly [changed]: true };

/**
 * Makes a change for a principal, and tells of it: who did what to which object, with which outcome. Every use case that
 * changes something returns what this returns.
 * @throws what `work` throws
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
  const tell = (id: string | null, outcome: "done" | ErrorCode, details?: LogFields): void => {
    const line = outcome === "done" ? LINES[name] : undefined;
    if (line !== undefined) log.info(line, { ...actor, ...details });
    else log.debug("a change", { ...actor, noun, verb, id, outcome, ...details });
  };
  const done = (value: T): Changed<T> => {
    tell(typeof what.id === "string" ? what.id : what.id(value), "done", what.details?.(value));
    return unchanged(value);
  };
  const failed = (error: unknown): never => {
    tell(typeof what.id === "string" ? what.id : null, error instanceof ApiError ? error.code : "internal_error");
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

/** The result of a use case that had nothing to change: the object was already as the caller wants it. */
export function unchanged<T>(value: T): Changed<T> {
  return value as Changed<T>;
}
