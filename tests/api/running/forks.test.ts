import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { OperationId } from "../../../src/domain/ids.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

const spawn = async () =>
  (await api.call("POST", "/v1/instances", { json: { image: "tag:base", command: "true" } })).json.uuid as OperationId;
const ask = (id: string, json: object = {}, token = api.token) =>
  api.call("POST", `/v1/instances/${id}/fork`, { json, token });

describe("POST /instances/{uuid}/fork", () => {
  test.each([
    [{ count: 0 }, "count"],
    [{ count: 17 }, "count"],
    [{ signal: "NOPE" }, "signal"],
    [{ timeout: 0 }, "timeout"],
    [{ timeout: 10_000_000 }, "timeout"],
    [{ stdin_open: 1 }, "stdin_open"],
  ])("400 for %j", async (json, field) => {
    const answer = await ask(await spawn(), json);
    expect(errorOf(answer, "validation_error").details).toMatchObject({ field });
  });

  test("404 for an instance of another account, and for none", async () => {
    errorOf(await ask(await spawn(), {}, api.foreignToken), "not_found");
    errorOf(await ask(Bun.randomUUIDv7()), "not_found");
  });

  test("403 without the scope of new instances", async () => {
    errorOf(await ask(await spawn(), {}, await api.issue("alice", ["instances:exec"])), "forbidden");
  });

  heldTest("409 before it runs, and after its end", async () => {
    const id = await spawn();
    errorOf(await ask(id), "conflict");
    api.operations.start(id);
    errorOf(await ask(id), "conflict");
  });
});
