import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { connect } from "node:net";
import { Api, errorOf } from "../../support/api/api.ts";

const ANSWER_MS_MAX = 10_000;
const UUID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";

/** Routes that accept a body. */
const TAKING = [
  ["POST", "/v1/images/import", "application/json"],
  ["POST", "/v1/images/load", "application/json"],
  ["POST", "/v1/instances", "application/json"],
  ["PATCH", `/v1/images/${UUID}/tag`, "application/json"],
  ["POST", "/v1/files", "application/octet-stream"],
] as const;

let api: Api;
let other = "";
beforeAll(async () => {
  api = await Api.start();
  other = await api.issue("alice", ["operations:read"]);
});
afterAll(() => api[Symbol.asyncDispose]());

/** Sends a part of a request, and returns the answer that comes before the rest. */
async function answerTo(part: string): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const socket = connect(Number(new URL(api.url).port), "127.0.0.1", () => socket.write(part));
  socket.setTimeout(ANSWER_MS_MAX, () => socket.destroy(new Error("no answer before the rest of the body")));
  socket.once("data", (chunk) => resolve(String(chunk)));
  socket.on("error", reject);
  const answer = await promise;
  socket.destroy();
  return answer;
}

describe.each(TAKING)("%s %s from a caller without the scope", (method, path, type) => {
  const head = (token: string | null) =>
    [
      `${method} ${path} HTTP/1.1`,
      "Host: localhost",
      `Content-Type: ${type}`,
      ...(token === null ? [] : [`Authorization: Bearer ${token}`]),
    ].join("\r\n");

  test("the rest of a body is not awaited", async () => {
    for (const length of ["Content-Length: 1000000", "Transfer-Encoding: chunked"]) {
      const begun = length.startsWith("T") ? '5\r\n{"tag\r\n' : '{"tag';
      expect(await answerTo(`${head(other)}\r\n${length}\r\n\r\n${begun}`)).toStartWith("HTTP/1.1 403 ");
      expect(await answerTo(`${head(null)}\r\n${length}\r\n\r\n${begun}`)).toStartWith("HTTP/1.1 401 ");
    }
  });

  test("a body that is not JSON, or too long, is not examined", async () => {
    const headers = { "content-type": type };
    for (const body of ["{bad", "\xff", "[]", " ".repeat(2_000_000)]) {
      errorOf(await api.call(method, path, { token: other, body, headers }), "forbidden");
      errorOf(await api.call(method, path, { token: null, body, headers }), "unauthorized");
    }
  });

  test("parameters of the path and the query are not examined", async () => {
    const bad = `${path.replace(UUID, "no-uuid")}?limit=x&path=%zz`;
    errorOf(await api.call(method, bad, { token: other, body: "{bad" }), "forbidden");
  });
});

test("parameters of a route without a body are not examined either", async () => {
  for (const path of ["/v1/images?limit=x", "/v1/inspect/no-uuid/list?path=%zz", `/v1/inspect/${UUID}/download`]) {
    errorOf(await api.call("GET", path, { token: other }), "forbidden");
    errorOf(await api.call("GET", path, { token: null }), "unauthorized");
  }
});

test("an authorised caller gets errors of the path first, then of the query, then of the body", async () => {
  const call = (path: string) => api.call("PATCH", path, { body: "{bad" });
  expect(errorOf(await call("/v1/images/no-uuid/tag"), "validation_error").message).toBe("uuid must be a UUID");
  expect(errorOf(await call(`/v1/images/${UUID}/tag`), "validation_error").message).toBe("the body must be valid JSON");
});
