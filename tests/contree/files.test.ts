import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { UNKNOWN_UUID } from "../support/api/samples.ts";
import { Contree, contreeError } from "../support/contree/contree.ts";

const UNKNOWN_SHA256 = "0".repeat(64);

let contree: Contree;
let foreignToken = "";

beforeAll(async () => {
  contree = await Contree.start();
  foreignToken = await contree.appliance.createToken("another-account");
});
afterAll(() => contree[Symbol.asyncDispose]());

const upload = async (content: string | ReadableStream<Uint8Array>) => {
  const headers = { "content-type": "application/octet-stream" };
  const answer = await contree.call("POST", "/files", { body: content, headers });
  expect(answer.status).toBe(201);
  return answer.json as { uuid: string; sha256: string; size: number };
};
const list = async (query = "") => (await contree.call("GET", `/files${query}`)).json.files;
const sha256Of = (text: string): string => new Bun.CryptoHasher("sha256").update(text).digest("hex");

describe("POST /files", () => {
  test("answers with the size; the same content has the same uuid", async () => {
    const first = await upload("content");
    expect(first).toEqual({ uuid: first.uuid, sha256: sha256Of("content"), size: 7 });
    expect(await upload("content")).toEqual(first);
  });

  test("accepts chunks without a length, and an empty body", async () => {
    expect(await upload(new Blob(["chun", "ked"]).stream())).toMatchObject({ sha256: sha256Of("chunked"), size: 7 });
    expect(await upload("")).toMatchObject({ sha256: sha256Of(""), size: 0 });
  });
});

describe("GET /files", () => {
  test("lists by the last upload, newest first, and a repeated upload comes first", async () => {
    await upload("one");
    await upload("two");
    const before = await list("?limit=1");
    expect(before[0].sha256).toBe(sha256Of("two"));
    await upload("one");
    const [first, second] = await list();
    expect([first.sha256, second.sha256]).toEqual([sha256Of("one"), sha256Of("two")]);
    expect(Date.parse(first.updated_at)).toBeGreaterThan(Date.parse(first.created_at));
    expect(first.size).toBe(3);
  });

  test("pages do not overlap, and one past the end is empty", async () => {
    const all = await list();
    const pages = await Promise.all([0, 1, 2].map((offset) => list(`?limit=1&offset=${offset}`)));
    expect(pages.flat()).toEqual(all.slice(0, 3));
    expect(await list("?offset=1000000")).toEqual([]);
    for (const query of ["limit=0", "limit=1001", "offset=-1", "limit=x"]) {
      contreeError(await contree.call("GET", `/files?${query}`), 400, "validation_error");
    }
  });

  test("bounds of time are about the last upload", async () => {
    const last = (await list("?limit=1"))[0];
    expect((await list(`?since=${last.updated_at}`)).map(({ uuid }: { uuid: string }) => uuid)).toEqual([last.uuid]);
    expect((await list(`?until=${last.updated_at}`))[0].uuid).toBe(last.uuid);
    expect(await list("?until=1h")).toEqual([]);
  });

  test("shows nothing of another account", async () => {
    expect((await contree.call("GET", "/files", { token: foreignToken })).json).toEqual({ files: [] });
  });
});

describe("one file, by query and by path", () => {
  test("GET has the whole file, HEAD its status", async () => {
    const { uuid, sha256 } = await upload("known");
    const whole = (await list("?limit=1"))[0];
    expect(whole).toMatchObject({ uuid, sha256, size: 5 });
    for (const path of [`?uuid=${uuid}`, `?sha256=${sha256}`, `/${sha256}`, `/${sha256.toUpperCase()}`]) {
      expect((await contree.call("GET", `/files${path}`)).json).toEqual(whole);
      expect((await contree.call("HEAD", `/files${path}`)).status).toBe(200);
    }
  });

  test("an unknown file, or another account's, is 404", async () => {
    const { uuid, sha256 } = await upload("hidden");
    for (const path of [`?uuid=${UNKNOWN_UUID}`, `?sha256=${UNKNOWN_SHA256}`, `/${UNKNOWN_SHA256}`]) {
      contreeError(await contree.call("GET", `/files${path}`), 404, "not_found");
      expect((await contree.call("HEAD", `/files${path}`)).status).toBe(404);
    }
    for (const path of [`?uuid=${uuid}`, `?sha256=${sha256}`, `/${sha256}`]) {
      contreeError(await contree.call("GET", `/files${path}`, { token: foreignToken }), 404, "not_found");
    }
  });

  test("a malformed id or hash is 400", async () => {
    for (const path of ["?uuid=x", "?sha256=x", "?sha256=", "/x", `/${UNKNOWN_SHA256}0`]) {
      contreeError(await contree.call("GET", `/files${path}`), 400, "validation_error");
    }
  });
});
