import { expect, test } from "bun:test";
import { errorReply } from "../../../src/api/errors.ts";
import { ApiError } from "../../../src/domain/errors.ts";

test("the error of a full queue has a Retry-After", () => {
  const reply = errorReply(new ApiError("too_many_requests", "1000 operations of this account are waiting already"));
  expect(reply.status).toBe(429);
  expect(reply.headers["retry-after"]).toBe("5");
});

test("an error with a pause of its own determines Retry-After", () => {
  const reply = errorReply(new ApiError("unavailable", "starting", { retry_after_seconds: 1.2 }));
  expect(reply.status).toBe(503);
  expect(reply.headers["retry-after"]).toBe("2");
});

test("other errors have no Retry-After", () => {
  expect(errorReply(new ApiError("not_found", "no")).headers["retry-after"]).toBeUndefined();
});
