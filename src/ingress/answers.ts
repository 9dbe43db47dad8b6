import { ApiError, type ErrorCode } from "../domain/errors.ts";
import { type Fields, headBytes, membersOf, type RequestHead } from "./http/head.ts";
import type { Answer, Upstream } from "./upstream.ts";

const REASONS: Readonly<Record<number, string>> = {
  204: "No Content",
  303: "See Other",
  400: "Bad Request",
  401: "Unauthorized",
  403: "Forbidden",
  404: "Not Found",
  405: "Method Not Allowed",
  408: "Request Timeout",
  410: "Gone",
  417: "Expectation Failed",
  429: "Too Many Requests",
  431: "Request Header Fields Too Large",
  500: "Internal Server Error",
  501: "Not Implemented",
  502: "Bad Gateway",
  503: "Service Unavailable",
  504: "Gateway Timeout",
  505: "HTTP Version Not Supported",
};

/** Codes of the API for answers without an error of it. */
const CODES: Readonly<Record<number, ErrorCode>> = {
  401: "unauthorized",
  403: "forbidden",
  404: "not_found",
  405: "method_not_allowed",
  410: "not_found",
  429: "too_many_requests",
  500: "internal_error",
  502: "unavailable",
  503: "unavailable",
  504: "unavailable",
};

export function answer(status: number, message: string, details: Readonly<Record<string, unknown>> = {}): Answer {
  return { status, body: { error: CODES[status] ?? "validation_error", message, details } };
}

/** The answer to a request that failed with `error`; anything but an ApiError is an error of the appliance. */
export function answerOf(error: unknown): Answer {
  if (!(error instanceof ApiError)) return answer(500, "internal error");
  if (error.details["port"] !== undefined) {
    const isClosed = error.details["reason"] === "refused";
    return answer(502, isClosed ? "port is not open" : error.message, error.details);
  }
  const status = STATUS[error.code] ?? 502;
  const { retry_after_seconds: seconds = status === 429 ? 1 : undefined } = error.details;
  const fields: Fields = typeof seconds === "number" ? [["Retry-After", String(seconds)]] : [];
  return { status, body: error.body(), fields };
}

/** A conflict is a state of the sandbox, which passes without a change of the request. */
const STATUS: { readonly [Code in ErrorCode]?: number } = {
  unauthorized: 401,
  forbidden: 403,
  not_found: 404,
  conflict: 503,
  not_resumable: 503,
  too_many_requests: 429,
  unavailable: 503,
  insufficient_storage: 503,
  internal_error: 500,
};

/** Nothing in an answer can be run, framed or kept. */
const SAFE: Fields = [
  ["Cache-Control", "no-store"],
  ["Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"],
  ["Referrer-Policy", "no-referrer"],
  ["X-Content-Type-Options", "nosniff"],
];

/** The part of an upstream that shapes the answers of the listener itself. */
export type AnswerStyle = Pick<Upstream, "errorJson" | "fields">;

export interface AnswerOptions {
  /** of the request; null: it cannot be read */
  readonly head: RequestHead | null;
  /** whether the connection is closed after it */
  readonly closes: boolean;
  readonly upstream: AnswerStyle;
}

/** The bytes of an answer: HTML when the request accepts that, otherwise JSON. */
export function answerBytes(
  { status, body, fields = [] }: Answer,
  { head, closes, upstream }: AnswerOptions,
): Uint8Array {
  const isHtml = head !== null && membersOf(head.fields, "accept").some((type) => /^text\/html(?:;|$)/.test(type));
  const reason = REASONS[status] ?? "";
  const start = `HTTP/1.1 ${status} ${reason}`;
  const last: Fields = [
    ...SAFE,
    ...(upstream.fields ?? []),
    ...fields,
    ...(closes ? [["Connection", "close"] as const] : []),
  ];
  if (body === null) return headBytes(start, last);
  const json = () => `${JSON.stringify(upstream.errorJson?.(body, status) ?? body)}\n`;
  const content = Buffer.from(isHtml ? page(`${status} ${reason}`, body.message) : json());
  const headOf = headBytes(start, [
    ["Content-Type", isHtml ? "text/html; charset=utf-8" : "application/json"],
    ["Content-Length", String(content.byteLength)],
    ...last,
  ]);
  return head?.method === "HEAD" ? headOf : Buffer.concat([headOf, content]);
}

function page(title: string, message: string): string {
  const style =
    "body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1em;color-scheme:light dark}";
  return [
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
    `<title>${title}</title><style>${style}</style>`,
    `<h1>${title}</h1><p>${escaped(message)}</p><p><small>Coppice</small></p></html>`,
    "",
  ].join("\n");
}

function escaped(text: string): string {
  return text.replaceAll(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
