import { afterEach, beforeEach, expect, test } from "bun:test";
import { answerOf, Client } from "../../../src/client/client.ts";
import { AnswerError, ResponseError, UnreachableError } from "../../../src/client/errors.ts";
import { downloadFile, imageIdOf, listDirectory } from "../../../src/client/transfers.ts";
import { errorReply, ScriptedAppliance } from "../../support/cli/cli.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { freePort } from "../../support/free-port.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";

let appliance: ScriptedAppliance;
let client: Client;
beforeEach(() => {
  appliance = new ScriptedAppliance();
  client = new Client({ url: appliance.environment["COPPICE_URL"] ?? "", token: "t" });
});
afterEach(() => appliance[Symbol.asyncDispose]());

test("a text that looks like a date, a number or a boolean stays a text", async () => {
  const tags = ["2026-11-20T10:30:00.000Z", "11/20/2026", "12", "true", "null", "{}", ""];
  appliance.answer = () =>
    Response.json(tags.map((tag) => ({ uuid: ID, tag, created_at: "2026-11-20T10:30:00.000Z" })));
  const images = await answerOf(client.v1.images.get());
  expect(images.map(({ tag }) => tag ?? "absent")).toEqual(tags);
  expect(images[0]?.created_at).toBe("2026-11-20T10:30:00.000Z");
});

test("requests carry the token, the query and JSON, without undefined fields", async () => {
  appliance.answer = () => Response.json({ uuid: ID }, { status: 201 });
  await answerOf(client.v1.instances.post({ image: "tag:x", command: "true", shell: true }));
  await answerOf(client.v1.images.get({ query: { since: "2026-11-20T10:30:00+02:00", tagged: false } }));
  expect(appliance.bodies("POST", "/instances")).toEqual([{ image: "tag:x", command: "true", shell: true }]);
  expect(appliance.seen.map(({ authorization }) => authorization)).toEqual(["Bearer t", "Bearer t"]);
  expect(appliance.seen[1]?.path).toBe("/images?since=2026-11-20T10%3A30%3A00%2B02%3A00&tagged=false");
});

test("an error of the appliance is thrown with its code, message and Retry-After", async () => {
  appliance.answer = () => {
    const body = { error: "too_many_requests", message: "later", details: {} };
    return Response.json(body, { status: 429, headers: { "retry-after": "7" } });
  };
  const error = await answerOf(client.v1.operations({ id: ID }).get()).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(ResponseError);
  expect(error).toMatchObject({ status: 429, code: "too_many_requests", retryAfterSeconds: 7 });
  expect((error as Error).message).toBe("later (too_many_requests)");
});

test.each([
  ["a page of a proxy", () => new Response("<html>welcome", { headers: { "content-type": "text/html" } })],
  ["a redirection", () => new Response(null, { status: 302, headers: { location: "http://127.0.0.1:1/" } })],
  ["half of a JSON text", () => new Response('{"id":', { headers: { "content-type": "application/json" } })],
])("%s is not taken for an answer", async (_, answer) => {
  appliance.answer = answer;
  expect(await failureOf(answerOf(client.v1.operations({ id: ID }).get()))).toBeInstanceOf(AnswerError);
});

test("an unreachable appliance, an abort and a refused token have errors of their own", async () => {
  const unreachable = new Client({ url: `http://127.0.0.1:${await freePort()}`, token: null });
  expect(await failureOf(answerOf(unreachable.v1.images.get()))).toBeInstanceOf(UnreachableError);
  const reason = new Error("enough");
  const options = { fetch: { signal: AbortSignal.abort(reason) } };
  expect(await failureOf(answerOf(client.v1.images.get(options)))).toBe(reason);
  appliance.answer = () => errorReply(401, "unauthorized", "no token");
  const { url, token } = { url: appliance.environment["COPPICE_URL"] ?? "", token: "t" };
  const hinting = new Client({ url, token, tokenHint: "; ask for one" });
  expect(await throwing(answerOf(hinting.v1.images.get()))).toThrow("no token (unauthorized); ask for one");
});

test("paths of files are sent as bytes, and the slash at the end of a path stays", async () => {
  appliance.answer = ({ path }) => {
    if (path.startsWith("/inspect/?")) {
      return new Response(null, { status: 302, headers: { location: `/v1/inspect/${ID}/` } });
    }
    return Response.json({ path: "/", items: [] });
  };
  expect(await imageIdOf(client, "tag:a/b")).toBe(ID);
  expect(await listDirectory(client, { image: ID, path: "/é" })).toEqual([]);
  await (await downloadFile(client, { image: ID, path: new Uint8Array([0x2f, 0xff]) })).arrayBuffer();
  expect(appliance.seen.map(({ path }) => path)).toEqual([
    "/inspect/?tag=a%2Fb",
    `/inspect/${ID}/list?path=%2f%c3%a9`,
    `/inspect/${ID}/download?path=%2f%ff`,
  ]);
});
