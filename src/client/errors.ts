/** The appliance, or something in front of it, refused a request. */
export class ResponseError extends Error {
  override readonly name = "ResponseError";
  /** HTTP status */
  readonly status: number;
  /** error value of the interface, such as `not_found`; `no error object` where the answer has none */
  readonly code: string;
  /** recommended pause before another try, in `seconds`; null where the answer names none */
  readonly retryAfterSeconds: number | null;

  constructor(response: Pick<Response, "status" | "headers">, code: string, message: string, hint = "") {
    super(`${message} (${code})${hint}`);
    this.status = response.status;
    this.code = code;
    const seconds = Number(response.headers.get("retry-after") ?? Number.NaN);
    this.retryAfterSeconds = Number.isFinite(seconds) ? seconds : null;
  }
}

/** Nothing answered a request; `cause` is the failure of `fetch`. */
export class UnreachableError extends Error {
  override readonly name = "UnreachableError";
}

/** An answer is not one that an appliance gives. */
export class AnswerError extends Error {
  override readonly name = "AnswerError";
}
