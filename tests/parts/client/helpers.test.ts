import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { Client } from "../../../src/client/client.ts";
import { OperationError } from "../../../src/client/errors.ts";
import { complete, waitForEnd } from "../../../src/client/operations.ts";
import { Run } from "../../../src/client/runs.ts";
import { uploadContent } from "../../../src/client/transfers.ts";
import { errorReply, ScriptedAppliance } from "../../support/cli/cli.ts";
import { failureOf } from "../../support/failures.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const HASH = new Bun.CryptoHasher("sha256").update("content").digest("hex");

let appliance: ScriptedAppliance;
let client: Client;
beforeEach(() => {
  appliance = new ScriptedAppliance();
  client = new Client({ url: appliance.environment["COPPICE_URL"] ?? "", token: "t" });
});
afterEach(() => appliance[Symbol.asyncDispose]());

const requests = (): string[] => appliance.seen.map(({ method, path }) => `${method} ${path}`);
const operation = (fields: object): Response =>
  Response.json({ id: ID, kind: "instance", created_at: "2026-11-20T10:30:00.000Z", ...fields });

describe("a content", () => {
  test("that is there is not sent", async () => {
    appliance.answer = () => Response.json({ uuid: ID, sha256: HASH });
    expect(await uploadContent(client, "content")).toBe(ID);
    expect(requests()).toEqual([`GET /files?sha256=${HASH}`]);
  });

  test.each([404, 403])("is sent when the answer is %d", async (status) => {
    appliance.answer = ({ method }) =>
      method === "GET" ? errorReply(status, "no", "no") : Response.json({ uuid: ID, sha256: HASH }, { status: 201 });
    expect(await uploadContent(client, new Blob(["con", "tent"]))).toBe(ID);
    expect(requests()).toEqual([`GET /files?sha256=${HASH}`, "POST /files"]);
    expect(appliance.seen[1]?.body.toString()).toBe("content");
  });
});

describe("a wait", () => {
  test("that is left by a time limit leaves the operation; one for a success of one's own cancels it", async () => {
    appliance.answer = async ({ method }) => {
      if (method === "DELETE") return operation({ status: "CANCELLED" });
      return await new Promise<Response>(() => undefined);
    };
    const late = { timeoutMs: 20 };
    expect(await failureOf(waitForEnd(client, ID, late))).toMatchObject({ name: "TimeoutError" });
    expect(requests().filter((request) => request.startsWith("DELETE"))).toEqual([]);
    expect(await failureOf(complete(client, ID, late))).toMatchObject({ name: "TimeoutError" });
    expect(requests().filter((request) => request.startsWith("DELETE"))).toEqual([`DELETE /operations/${ID}`]);
  });

  test("for a success reports why there is none", async () => {
    appliance.answer = () =>
      operation({ status: "FAILED", error: { error: "conflict", message: "it broke", details: {} } });
    const error = await complete(client, ID).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(OperationError);
    expect((error as Error).message).toBe(`it broke (conflict, operation ${ID})`);
  });
});

test("output is cut into lines wherever its pieces end", async () => {
  const events = [
    ["stdout", "a\nb"],
    ["stderr", "x"],
    ["stdout", "c\n\nlast"],
  ].map(([type, content], id) => ({ id, time: "", spid: 1, type, data: { content, encoding: "ascii" } }));
  const end = { id: 3, time: "", type: "completion", data: { status: "SUCCESS", duration_ms: 1 } };
  appliance.answer = () =>
    new Response([...events, end].map((event) => `id: ${event.id}\ndata: ${JSON.stringify(event)}\n\n`).join(""), {
      headers: { "content-type": "text/event-stream" },
    });
  const lines = await Array.fromAsync(new Run(client, ID).lines());
  expect(lines.map(({ stream, line }) => `${stream} ${line}`)).toEqual([
    "stdout a",
    "stdout bc",
    "stdout ",
    "stdout last",
    "stderr x",
  ]);
});
