import { describe, expect, test } from "bun:test";
import { CONTREE_ERRORS } from "../../../src/api/contree/errors.ts";
import { errorReply } from "../../../src/api/errors.ts";
import { ApiError, ERROR_CODES } from "../../../src/domain/errors.ts";

test("the error of a full queue has a Retry-After", () => {
  const reply = errorReply(new ApiError("too_many_requests", "1000 operations of this account are waiting already"));
  expect(reply.status).toBe(429);
  expect(reply.headers["retry-after"]).toBe("5");
});

test("an error with a pause determines Retry-After", () => {
  const reply = errorReply(new ApiError("unavailable", "starting", { retry_after_seconds: 1.2 }));
  expect(reply.status).toBe(503);
  expect(reply.headers["retry-after"]).toBe("2");
});

test("other errors have no Retry-After", () => {
  expect(errorReply(new ApiError("not_found", "no")).headers["retry-after"]).toBeUndefined();
});

describe("errors for ConTree clients", () => {
  test("have a text, the status, the code and the details", () => {
    const reply = errorReply(new ApiError("not_found", "no such image", { uuid: "u" }), CONTREE_ERRORS);
    const body = { error: "no such image", status: 404, code: "not_found", details: { uuid: "u" } };
    expect([reply.status, JSON.parse(String(reply.body))]).toEqual([404, body]);
  });

  test("only temporary errors have a status that these clients wait for", () => {
    const waiting = ERROR_CODES.filter((code) => {
      const { status } = errorReply(new ApiError(code, "x"), CONTREE_ERRORS);
      return status >= 500 || [410, 425, 429].includes(status);
    });
    expect(waiting).toEqual(["too_many_requests", "internal_error", "unavailable"]);
    expect(errorReply(Object.assign(new Error("full"), { code: "ENOSPC" }), CONTREE_ERRORS).status).toBe(409);
  });

  test("say how long to wait", () => {
    const busy = new ApiError("too_many_requests", "busy", { retry_after_seconds: 1 });
    expect(errorReply(busy, CONTREE_ERRORS).headers["retry-after"]).toBe("1");
  });

  test("do not reveal unexpected failures", () => {
    const { body } = errorReply(new Error("secret"), CONTREE_ERRORS);
    expect(String(body)).not.toContain("secret");
  });
});
