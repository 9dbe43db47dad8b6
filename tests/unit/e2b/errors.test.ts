import { expect, test } from "bun:test";
import { E2bError, e2bGone, e2bStatusOf, portClosed, e2bReply as replyAt } from "../../../src/api/e2b/errors.ts";
import { ApiError, ERROR_CODES } from "../../../src/domain/errors.ts";

const STATUSES: Readonly<Record<string, number>> = {
  validation_error: 400,
  unauthorized: 401,
  forbidden: 403,
  not_found: 404,
  method_not_allowed: 405,
  conflict: 409,
  not_resumable: 409,
  payload_too_large: 413,
  range_not_satisfiable: 416,
  invalid_path: 400,
  too_many_requests: 429,
  internal_error: 500,
  unavailable: 503,
  insufficient_storage: 507,
};

const e2bReply = (error: unknown) => replyAt(error, "/sandboxes");

test.each([...ERROR_CODES])("%s has its status in the body, too", (code) => {
  const error = new ApiError(code, "why", { uuid: "not for clients" });
  const { status, body } = e2bReply(error);
  expect([status, JSON.parse(String(body))]).toEqual([STATUSES[code] ?? 0, { code: STATUSES[code], message: "why" }]);
  expect(e2bStatusOf(error)).toEqual({ status, message: "why" });
});

test("an error that passes says when to ask again, in whole seconds", () => {
  const retryAfter = (error: unknown) => e2bReply(error).headers["retry-after"];
  expect(retryAfter(new ApiError("too_many_requests", "busy", { retry_after_seconds: 1.2 }))).toBe("2");
  expect(retryAfter(new E2bError(429, "busy"))).toMatch(/^\d+$/);
  expect(retryAfter(new E2bError(422, "no"))).toBeUndefined();
});

test.each([400, 401, 404, 409, 418, 422, 429, 431, 502, 504])(
  "a chosen status of %d is kept, with further keys",
  (status) => {
    const reply = e2bReply(new E2bError(status, "why", { extra: 1 }));
    expect([reply.status, JSON.parse(String(reply.body))]).toEqual([
      status,
      { code: status, message: "why", extra: 1 },
    ]);
  },
);

test("an unexpected error has no text of its own, and a full disk is one", () => {
  const { status, body } = e2bReply(new Error("secret"));
  expect([status, String(body)]).toEqual([500, expect.not.stringContaining("secret")]);
  expect(e2bStatusOf(new Error("secret"))).toEqual({ status: 500, message: "internal error" });
  expect(e2bStatusOf(Object.assign(new Error("x"), { code: "ENOSPC" })).status).toBe(507);
});

test("the errors of a sandbox without a machine and of a closed port have the words that clients know", () => {
  const id = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
  const sandboxId = "0197a1d05a5e700080003c6e0b8a9c15";
  expect(JSON.parse(String(e2bReply(e2bGone(id)).body))).toEqual({
    code: 502,
    message: "The sandbox was not found",
    sandboxId,
  });
  const message = "The sandbox is running but port is not open";
  expect(JSON.parse(String(e2bReply(portClosed(id, 80)).body))).toEqual({ code: 502, message, sandboxId, port: 80 });
});
