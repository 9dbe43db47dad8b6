import { type SchemaOptions, Type } from "@sinclair/typebox";
import { ApiError } from "../domain/errors.ts";
import { signalNumber } from "../domain/signals.ts";
import { LIMIT_DEFAULT, LIMIT_MAX } from "../domain/tree/listing.ts";

/* Fields that several surfaces have, and their rules. */

/** Largest body of a request for an instance, in `bytes`: 10 MiB of input in base64 or with many escapes, and all arguments. */
export const SPAWN_BODY_BYTES_MAX = 33_554_432;
/** Largest body of a request for an additional process, in `bytes`: all arguments with many escapes. */
export const PROCESS_BODY_BYTES_MAX = 16_777_216;

/** Schema of a text that is one of `values`. The type is given explicitly, because TypeBox infers none from a mapped array. */
export function oneOf<const Values extends readonly string[]>(values: Values, options: SchemaOptions = {}) {
  const literals = values.map((value) => Type.Literal(value));
  return Type.Unsafe<Values[number]>(Type.Union(literals, options));
}

/** Interval at which a client should poll an operation that has not ended, in `seconds`. */
export const POLL_SECONDS = 1;

/** Any key. TypeBox's pattern for string keys does not match line ends, and would leave such entries unvalidated. */
export const ANY_KEY = Type.String({ pattern: "^[\\s\\S]*$" });

/** Largest user or group id: the number above it means "no change" in system calls. */
export const OWNER_MAX = 0xffff_fffe;

export const HOSTNAME_PATTERN = "^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$";

/** Number of results of a listing. */
export const Limit = Type.Integer({
  minimum: 1,
  maximum: LIMIT_MAX,
  default: LIMIT_DEFAULT,
  description: "number of results",
  error: `limit must be an integer from 1 to ${LIMIT_MAX}`,
});

/** Results of a listing to skip. */
export const Offset = Type.Integer({
  minimum: 0,
  maximum: Number.MAX_SAFE_INTEGER,
  default: 0,
  description: "results to skip; a page past the end is empty",
  error: "offset must be an integer of at least 0",
});

/** The last event that a client has seen. */
export const SinceEvent = Type.Integer({
  minimum: -1,
  maximum: Number.MAX_SAFE_INTEGER,
  description: "only events with greater ids",
  error: "since must be the id of an event, or -1",
});

/** The process whose events are requested. */
export const OfProcess = Type.Integer({
  minimum: 0,
  maximum: Number.MAX_SAFE_INTEGER,
  description: "only events of that process, and the completion",
  error: "spid must be the number of a process",
});

/** The signal of a request that names none. */
export const SIGNAL_DEFAULT = "KILL";

/** Query of a signal. */
export const SignalQuery = Type.Object({
  signal: Type.Optional(
    Type.String({ default: SIGNAL_DEFAULT, description: "name or number of the signal, such as TERM, SIGTERM or 15" }),
  ),
});

/** The number of a signal. @throws ApiError `validation_error` */
export function requireSignal(text: string): number {
  const number = signalNumber(text);
  if (number !== null) return number;
  const message = "signal must be the name of a signal, such as TERM, or a number from 1 to 64";
  throw new ApiError("validation_error", message, { field: "signal" });
}
