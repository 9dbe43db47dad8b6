import { describe, expect, test } from "bun:test";
import { AnswerError, ResponseError, UnreachableError } from "../../../src/client/errors.ts";
import { mayDo } from "../../../src/web/data/grants.ts";
import { isAbort, Problem, problemOf } from "../../../src/web/data/problem.ts";

const response = (status: number, headers: Record<string, string> = {}) => ({ status, headers: new Headers(headers) });

describe("a problem", () => {
  test("has the message of the appliance, without the code at its end", () => {
    const facts = { error: "not_found", message: "no such image", details: { image: "x" } };
    const problem = problemOf(new ResponseError(response(404), facts));
    expect(problem).toMatchObject({
      message: "no such image",
      status: 404,
      code: "not_found",
      details: { image: "x" },
    });
    expect(problem.isPassing).toBe(false);
  });

  test("is temporary when the appliance is unreachable, restarts, or is behind a proxy that reports so", () => {
    expect(problemOf(new UnreachableError("refused")).isPassing).toBe(true);
    expect(problemOf(new DOMException("late", "TimeoutError")).isPassing).toBe(true);
    const stopping = new ResponseError(response(503, { "retry-after": "2" }), {
      error: "unavailable",
      message: "stopping",
    });
    expect(problemOf(stopping)).toMatchObject({ isPassing: true, retryAfterSeconds: 2 });
    expect(problemOf(new ResponseError(response(507), { error: "no_space", message: "full" })).isPassing).toBe(false);
  });

  test("has the same fields for every kind of error", () => {
    const problem = new Problem("it is in use", { status: 409 });
    expect(problemOf(problem)).toBe(problem);
    expect(problemOf(new AnswerError("no JSON")).message).toBe("no JSON");
    expect(problemOf(new TypeError("x is undefined"))).toMatchObject({ code: "page", status: 0, isPassing: false });
    expect(problemOf("thrown text").message).toBe("thrown text");
  });

  test("is not made of a request that was aborted on purpose", () => {
    expect(isAbort(AbortSignal.abort().reason)).toBe(true);
    expect(isAbort(new DOMException("late", "TimeoutError"))).toBe(false);
    expect(isAbort(new Error("AbortError"))).toBe(false);
  });
});

test("a star grants every scope except the operator's, which is granted only by its name", () => {
  expect(mayDo(["*"], "images:delete")).toBe(true);
  expect(mayDo(["*"], "operator")).toBe(false);
  expect(mayDo(["*", "operator"], "operator")).toBe(true);
  expect(mayDo(["operator"], "images:read")).toBe(false);
  expect(mayDo(["images:read"], "images:read")).toBe(true);
});
