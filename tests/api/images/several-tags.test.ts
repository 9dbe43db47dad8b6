import { afterAll, beforeAll, expect, test } from "bun:test";
import { setTag } from "../../../src/db/images/tags.ts";
import type { ImageId } from "../../../src/domain/ids.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { alice } from "../../support/database.ts";

let api: Api;
let image: ImageId;
let now = 1;
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([[]], { tag: "one" });
  add(image, "two");
});
afterAll(() => api[Symbol.asyncDispose]());

/** Another surface adds a tag. */
const add = (id: ImageId, name: string) =>
  expect(setTag(api.parts.db, alice, id, { name, change: "added", now: Date.now() + now++ })).not.toBeNull();
const tagOf = async (id: string) => (await api.call("GET", `/v1/images/${id}`)).json.tag;
const listed = async (query: string) =>
  (await api.call("GET", `/v1/images?${query}`)).json.map(({ uuid, tag }: { uuid: string; tag?: string }) => [
    uuid,
    tag,
  ]);

test("the interface shows the tag that was set last, once, and lists and filters by it alone", async () => {
  expect(await tagOf(image)).toBe("two");
  expect(await listed("")).toEqual([[image, "two"]]);
  expect(await listed("tagged=true")).toEqual([[image, "two"]]);
  expect(await listed("tag=t")).toEqual([[image, "two"]]);
  expect(await listed("tag=one")).toEqual([]);
  expect(await listed("tag=two&perTag=true&per_tag=true")).toEqual([[image, "two"]]);
  const lineage = await api.call("GET", `/v1/images/${image}/lineage`);
  expect(lineage.json.map(({ tag }: { tag: string }) => tag)).toEqual(["two"]);
});

test("every tag names its image", async () => {
  for (const tag of ["one", "two"]) {
    const answer = await api.call("GET", `/v1/inspect?tag=${tag}`);
    expect([tag, answer.status]).toEqual([tag, 302]);
  }
  const run = { image: "tag:one", command: "true" };
  expect((await api.call("POST", "/v1/instances", { json: run })).status).toBe(201);
});

test("a longer tag than may be set here is shown, and names its image", async () => {
  const other = await api.addImage([[]]);
  const long = `a${"/b".repeat(127)}c`;
  add(other, long);
  expect(await tagOf(other)).toBe(long);
  expect((await api.call("POST", "/v1/instances", { json: { image: `tag:${long}`, command: "true" } })).status).toBe(
    201,
  );
  const longer = { image: `tag:${"x".repeat(257)}`, command: "true" };
  errorOf(await api.call("POST", "/v1/instances", { json: longer }), "validation_error");
});

test("PATCH replaces the visible tag, and DELETE removes all tags", async () => {
  const patched = await api.call("PATCH", `/v1/images/${image}/tag`, { json: { tag: "three" } });
  expect(patched.json).toMatchObject({ uuid: image, tag: "three" });
  const resolve = (tag: string) => api.call("GET", `/v1/inspect?tag=${tag}`);
  expect([(await resolve("two")).status, (await resolve("one")).status]).toEqual([404, 302]);
  const removed = await api.call("DELETE", `/v1/images/${image}/tag`);
  expect(removed.json).toEqual({ uuid: image, created_at: expect.any(String) });
  expect([(await resolve("three")).status, (await resolve("one")).status]).toEqual([404, 404]);
  expect(await listed("tagged=false")).toContainEqual([image, undefined]);
});

test("an image of another account gets no tag, and its tags name nothing here", async () => {
  const theirs = await api.addImage([[]], { account: "bob", tag: "theirs" });
  expect(setTag(api.parts.db, alice, theirs, { name: "mine", change: "added", now: 1 })).toBeNull();
  errorOf(await api.call("GET", "/v1/inspect?tag=theirs"), "not_found");
});
