import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Api, errorOf } from "../../support/api/api.ts";

const UNKNOWN_UUID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

describe("unknown routes and methods", () => {
  // spec: errors.shape, version.base
  test("an unknown route is 404 in the error shape, and 401 below /v1 without a token", async () => {
    for (const path of [
      "/v1/nothing",
      "/v1/images/x/y",
      "/v1",
      "/v1/",
      "/v1/images/",
      "/v1/operations/a/b",
      "/v1//images",
    ]) {
      errorOf(await api.call("GET", path), "not_found");
      errorOf(await api.call("GET", path, { token: null }), "unauthorized");
    }
    errorOf(await api.call("GET", "/nothing", { token: null }), "not_found");
    errorOf(await api.call("GET", "/images", { token: null }), "not_found");
  });

  test("a wrong method is 405 with Allow", async () => {
    for (const [path, allow] of [
      ["/v1/images", "GET, HEAD"],
      ["/v1/images/import", "POST"],
      ["/v1/files", "GET, HEAD, POST"],
      [`/v1/operations/${UNKNOWN_UUID}`, "DELETE, GET, HEAD"],
      [`/v1/images/${UNKNOWN_UUID}/tag`, "DELETE, PATCH"],
      ["/v1/inspect/", "GET, HEAD"],
      [`/v1/inspect/${UNKNOWN_UUID}/`, "GET, HEAD"],
    ] as const) {
      for (const method of ["PUT", "OPTIONS", "POST", "GET", "DELETE", "PATCH"]) {
        if (allow.includes(method)) continue;
        const answer = await api.call(method, path);
        errorOf(answer, "method_not_allowed");
        expect(answer.headers.get("allow")).toBe(allow);
      }
    }
    expect((await api.call("HEAD", "/v1/images/import")).status).toBe(405);
  });
});
