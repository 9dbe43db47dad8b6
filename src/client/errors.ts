import type { Operation } from "./types.ts";

/** The error body of an answer. */
interface Failure {
  readonly error: string;
  readonly message: string;
  readonly details?: Readonly<Record<string, unknown>>;
}

/** The appliance, or something in front of it, refused a request. */
export class ResponseError extends Error {
  override readonly name = "ResponseError";
  /** HTTP status */
  readonly status: number;
  /** error value of the interface, such as `not_found`; `no error object` if the answer has none */
  readonly code: string;
  /** recommended pause before another attempt, in `seconds`; null if the answer has none */
  readonly retryAfterSeconds: number | null;
  /** facts about the error; empty if the answer has none */
  readonly details: Readonly<Record<string, unknown>>;

  constructor(response: Pick<Response, "status" | "headers">, { error, message, details = {} }: Failure, hint = "") {
    super(`${message} (${error})${hint}`);
    this.status = response.status;
    this.code = error;
    this.details = details;
    const seconds = Number(response.headers.get("retry-after") ?? Number.NaN);
    this.retryAfterSeconds = Number.isFinite(seconds) ? seconds : null;
  }
}

/** Nothing answered a request; `cause` is the failure of `fetch`. */
export class UnreachableError extends Error {
  override readonly name = "UnreachableError";
}

/** An answer that does not look like one of an appliance. */
export class AnswerError extends Error {
  override readonly name = "AnswerError";
}

/** An operation ended without success. */
export class OperationError extends Error {
  override readonly name = "OperationError";
  /** FAILED or CANCELLED */
  readonly operation: Operation;

  constructor(operation: Operation) {
    const { error, message } = operation.error ?? { error: "no error object", message: "it failed" };
    const { id, status } = operation;
    super(status === "CANCELLED" ? `operation ${id} was cancelled` : `${message} (${error}, operation ${id})`);
    this.operation = operation;
  }
}
