import { afterAll, beforeAll, expect, test } from "bun:test";
import { send } from "../support/api/api.ts";
import { Appliance } from "../support/appliance/appliance.ts";
import { CONTREE, Contree, contreeError } from "../support/contree/contree.ts";

const FILE_BYTES_MAX = 1_048_576;

let contree: Contree;

beforeAll(async () => {
  contree = await Contree.start({ tables: `[limits]\nfile_bytes_max = ${FILE_BYTES_MAX}` });
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

test("a body with too many variables, or more names than there may be, is 400", async () => {
  const variables = (count: number) =>
    Object.fromEntries(Array.from({ length: count }, (_, index) => [`V${index}`, ""]));
  for (const count of [4097, 16_385]) {
    const json = { image: "tag:none", command: "true", env: variables(count) };
    contreeError(await contree.call("POST", "/instances", { json }), 400, "validation_error");
  }
});

test("a file that is too large is 413, with and without a length", async () => {
  const bytes = new Uint8Array(FILE_BYTES_MAX + 1);
  for (const body of [bytes, new Blob([bytes]).stream()]) {
    contreeError(await contree.call("POST", "/files", { body }), 413, "payload_too_large");
  }
  expect((await contree.call("POST", "/files", { body: bytes.subarray(1) })).status).toBe(201);
});

test("a disk without room is 409, which no client repeats", async () => {
  await using full = await Appliance.start({ tables: "[limits]\ndisk_reserve_bytes = 1_000_000_000_000_000" });
  const options = { token: full.token, headers: { "content-type": "application/octet-stream" } };
  const answer = await send(`${full.url}${CONTREE}/files`, "POST", { ...options, body: "x" });
  contreeError(answer, 409, "insufficient_storage");
});

test("a content type without a body is ignored", async () => {
  const headers = { "content-type": "application/json" };
  expect((await contree.call("GET", "/images", { headers })).status).toBe(200);
  expect((await contree.call("DELETE", `/images/${contree.image}/tag?tag=x`, { headers })).status).toBe(200);
});

test("a body that is not JSON, not an object or too long", async () => {
  const tag = (body: string, headers: Record<string, string> = {}) =>
    contree.call("PATCH", `/images/${contree.image}/tag`, { body, headers });
  for (const body of ["", "{", "null", "[]", '"a"']) contreeError(await tag(body), 400, "validation_error");
  contreeError(await tag("a=b", { "content-type": "application/x-www-form-urlencoded" }), 400, "validation_error");
  contreeError(await tag(`{"tag":"a","more":"${"x".repeat(1_100_000)}"}`), 413, "payload_too_large");
  expect((await tag('{"tag":"a","more":{"a":[1]},"result":null}')).status).toBe(200);
});
