import { AnswerError, ResponseError, UnreachableError } from "../../client/errors.ts";

/** A failure, in the form that the page shows. */
export class Problem extends Error {
  override readonly name = "Problem";
  /** HTTP status; 0 where there was no answer */
  readonly status: number;
  /** error value of the interface, such as `not_found`; `unreachable` where there was no answer */
  readonly code: string;
  /** details that the appliance reported */
  readonly details: Readonly<Record<string, unknown>>;
  /** recommended pause before another try, in `seconds` */
  readonly retryAfterSeconds: number | null;

  constructor(
    message: string,
    { status = 0, code = "internal", details = {}, retryAfterSeconds = null, cause }: Facts,
  ) {
    super(message, { cause });
    this.status = status;
    this.code = code;
    this.details = details;
    this.retryAfterSeconds = retryAfterSeconds;
  }

  /** True if the same request may succeed later: the appliance did not answer, or is starting or stopping. */
  get isPassing(): boolean {
    return this.code === "unreachable" || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

interface Facts {
  readonly status?: number;
  readonly code?: string;
  readonly details?: Readonly<Record<string, unknown>>;
  readonly retryAfterSeconds?: number | null;
  readonly cause?: unknown;
}

/** Converts any thrown value into a problem. */
export function problemOf(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof ResponseError) {
    const { status, code, details, retryAfterSeconds } = error;
    // The message of the client ends in the code, for terminals.
    const message = error.message.replace(` (${code})`, "");
    return new Problem(message, { status, code, details, retryAfterSeconds, cause: error });
  }
  if (error instanceof UnreachableError) {
    return new Problem("The appliance does not answer.", { code: "unreachable", cause: error });
  }
  if (error instanceof AnswerError) return new Problem(error.message, { code: "no_answer", cause: error });
  if (error instanceof DOMException && error.name === "TimeoutError") {
    return new Problem("The appliance took too long to answer.", { code: "unreachable", cause: error });
  }
  const message = error instanceof Error ? error.message : String(error);
  return new Problem(message, { code: "page", cause: error });
}

/** True for the error of work that was aborted on purpose; it is not shown. */
export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}
