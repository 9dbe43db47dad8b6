import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { connect } from "node:net";
import { Api, errorOf, LIMITS } from "../../support/api/api.ts";
import { until } from "../../support/waiting.ts";

const sha256 = (bytes: string | Uint8Array) => createHash("sha256").update(bytes).digest("hex");

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

const upload = (
  body: string | Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>,
  headers?: Record<string, string>,
  token = api.token,
) => api.call("POST", "/v1/files", { body, token, ...(headers === undefined ? {} : { headers }) });

describe('"POST /files uploads a file … the body is the raw bytes"', () => {
  // spec: files.upload, file.fields
  test('"201 Created, body {uuid: string, sha256: string}"', async () => {
    const bytes = Uint8Array.from({ length: 256 }, (_, index) => index);
    const answer = await upload(bytes, { "content-type": "application/octet-stream" });
    expect(answer.status).toBe(201);
    expect(answer.json).toEqual({ uuid: expect.stringMatching(/^[0-9a-f-]{36}$/), sha256: sha256(bytes) });
  });

  test("an empty file is a file", async () => {
    expect((await api.call("POST", "/v1/files")).json.sha256).toBe(sha256(""));
    expect((await upload("")).json.sha256).toBe(sha256(""));
  });

  test.each([
    "application/json",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "nonsense",
  ])("the bytes are stored as they are, whatever %s says", async (contentType) => {
    expect((await upload('{"a":', { "content-type": contentType })).json.sha256).toBe(sha256('{"a":'));
  });

  test("the same content has the same uuid for one account, and another one for another", async () => {
    const [first, second, foreign] = [
      await upload("same"),
      await upload("same"),
      await upload("same", {}, api.foreignToken),
    ];
    expect(second.json).toEqual(first.json);
    expect(foreign.json.sha256).toBe(first.json.sha256);
    expect(foreign.json.uuid).not.toBe(first.json.uuid);
  });

  test("a stream without a length", async () => {
    const content = Buffer.alloc(700_000, "abc");
    expect((await upload(new Blob([content]).stream())).json.sha256).toBe(sha256(content));
  });

  test("the limit is exact, and 413 in our shape with and without a length", async () => {
    const limit = LIMITS.fileBytesMax;
    expect((await upload(new Uint8Array(limit))).status).toBe(201);
    expect(errorOf(await upload(new Uint8Array(limit + 1)), "payload_too_large").details).toEqual({
      limit_bytes: limit,
    });
    errorOf(await upload(new Blob([new Uint8Array(limit + 1)]).stream()), "payload_too_large");
    expect(await api.garbage()).toEqual([]);
  });

  test("an aborted upload leaves nothing behind", async () => {
    const socket = connect(Number(new URL(api.url).port), "127.0.0.1");
    socket.write(
      `POST /v1/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${api.token}\r\nContent-Length: 1000\r\n\r\nabc`,
    );
    await until("the upload is under way", async () => (await api.garbage()).length === 1);
    socket.destroy();
    await until("nothing of it is left", async () => (await api.garbage()).length === 0);
  });
});

describe('"HEAD /files?uuid=", "GET /files?sha256="', () => {
  // spec: files.head, files.lookup, file.fields
  test("both methods take both parameters, and a uuid in any case", async () => {
    const { uuid, sha256: hash } = (await upload("look me up")).json;
    for (const query of [
      `uuid=${uuid}`,
      `uuid=${uuid.toUpperCase()}`,
      `sha256=${hash}`,
      `uuid=${uuid}&sha256=${hash}`,
    ]) {
      const answer = await api.call("GET", `/v1/files?${query}`);
      expect(answer.json).toEqual({ uuid, sha256: hash, size_bytes: 10, created_at: expect.any(String) });
      expect((await api.call("HEAD", `/v1/files?${query}`)).status).toBe(200);
    }
  });

  // spec: files.head, files.lookup, errors.404
  test('"otherwise 404 Not Found"', async () => {
    const { uuid } = (await upload("one")).json;
    const other = sha256("never uploaded");
    for (const query of [`uuid=${Bun.randomUUIDv7()}`, `sha256=${other}`, `uuid=${uuid}&sha256=${other}`]) {
      expect((await api.call("HEAD", `/v1/files?${query}`)).status).toBe(404);
      errorOf(await api.call("GET", `/v1/files?${query}`), "not_found");
    }
  });

  test("no parameter, or a malformed one, is 400", async () => {
    for (const query of [
      "",
      "?uuid=",
      "?uuid=x",
      "?sha256=",
      `?sha256=${"A".repeat(64)}`,
      `?sha256=${"a".repeat(63)}`,
      "?name=x",
    ]) {
      errorOf(await api.call("GET", `/v1/files${query}`), "validation_error");
      expect((await api.call("HEAD", `/v1/files${query}`)).status).toBe(400);
    }
  });

  test("another account's file is not found, by uuid or by hash", async () => {
    const { uuid, sha256: hash } = (await upload("mine")).json;
    for (const query of [`uuid=${uuid}`, `sha256=${hash}`]) {
      errorOf(await api.call("GET", `/v1/files?${query}`, { token: api.foreignToken }), "not_found");
    }
  });
});
