import { afterAll, beforeAll, expect, test } from "bun:test";
import { Contree, contreeError } from "../support/contree/contree.ts";

let contree: Contree;

beforeAll(async () => {
  contree = await Contree.start();
});
afterAll(() => contree[Symbol.asyncDispose]());

test("an unknown path is 404, and 401 without a token", async () => {
  for (const path of ["/nothing", "", "/", "/images/import/x"]) {
    expect(contreeError(await contree.call("GET", path), 404, "not_found")).toBe("no such route");
    contreeError(await contree.call("GET", path, { token: null }), 401, "unauthorized");
  }
});

test("a method that a path does not have is 405 with Allow", async () => {
  const answer = await contree.call("PUT", "/whoami");
  contreeError(answer, 405, "method_not_allowed");
  expect(answer.headers.get("allow")).toBe("GET, HEAD");
});

test("HEAD has the status of GET and no body", async () => {
  expect((await contree.call("HEAD", "/whoami")).status).toBe(200);
  expect((await contree.call("HEAD", "/nothing")).status).toBe(404);
  expect((await contree.call("HEAD", "/whoami", { token: null })).status).toBe(401);
});

test("the specified interface keeps its own form of errors", async () => {
  const answer = await contree.appliance.fetch("/nothing");
  expect(answer.status).toBe(404);
  expect(await answer.json()).toEqual({ error: "not_found", message: "no such route", details: {} });
});
