import { afterAll, beforeAll, describe, expect } from "bun:test";
import type { OperationId } from "../../../src/domain/ids.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";

let api: Api;
let image = "";
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

const spawn = async () =>
  (await api.call("POST", "/v1/instances", { json: { image: "tag:base", command: "true" } })).json.uuid as OperationId;
const ask = (id: string, json: object = {}, token = api.token) =>
  api.call("POST", `/v1/instances/${id}/checkpoint`, { json, token });

describe("POST /instances/{uuid}/checkpoint", () => {
  heldTest("202, a Location, and an operation of its own with its result", async () => {
    const instance = await spawn();
    api.operations.start(instance);
    const answer = await ask(instance, { tag: "half-way", timeout: 7 });
    expect(answer.status).toBe(202);
    expect(answer.headers.get("location")).toBe(`/v1/operations/${answer.json.uuid}`);
    expect(api.operations.checkpoints.at(-1)).toEqual({
      instanceId: instance,
      imageId: image as never,
      tag: "half-way",
      timeoutSeconds: 7,
    });
    const id = answer.json.uuid as OperationId;
    api.operations.start(id);
    const result = { image, tag: "half-way", size_bytes: 4096, pause_ms: 3.2 };
    api.operations.succeed(id, result);
    const { json } = await api.call("GET", `/v1/operations/${id}`);
    expect(json).toMatchObject({ kind: "checkpoint", status: "SUCCESS", result });
    const listed = await api.call("GET", "/v1/operations?kind=checkpoint");
    expect(listed.json.map((operation: { id: string }) => operation.id)).toEqual([id]);
  });

  heldTest("needs no field, and has 300 s by default", async () => {
    const instance = await spawn();
    api.operations.start(instance);
    expect((await ask(instance)).status).toBe(202);
    expect(api.operations.checkpoints.at(-1)).toMatchObject({ tag: null, timeoutSeconds: 300 });
  });

  heldTest("refuses wrong fields, other accounts, unknown instances, and those that have ended", async () => {
    const instance = await spawn();
    api.operations.start(instance);
    for (const [field, json] of [
      ["tag", { tag: "" }],
      ["tag", { tag: "a b" }],
      ["timeout", { timeout: 0 }],
      ["timeout", { timeout: 3601 }],
      ["timeout", { timeout: "5" }],
    ] as const) {
      expect(errorOf(await ask(instance, json), "validation_error").details["field"]).toBe(field);
    }
    errorOf(await ask(instance, {}, api.foreignToken), "not_found");
    errorOf(await ask(crypto.randomUUID()), "not_found");
    errorOf(await ask(instance, {}, await api.issue("alice", ["instances:spawn", "instances:read"])), "forbidden");
    const checkpoint = (await ask(instance)).json.uuid as string;
    errorOf(await ask(checkpoint), "not_found");
    api.operations.fail(instance, { error: "unavailable", message: "gone", details: {} });
    expect(errorOf(await ask(instance), "conflict").details["status"]).toBe("FAILED");
  });
});
