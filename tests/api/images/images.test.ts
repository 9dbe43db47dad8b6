import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { isoTime } from "../../../src/domain/ids.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";

const FILES = [[{ path: "f", type: "f", content: "x" }]] as const;
const REFERENCE = "registry.example.net:5000/team/app:1.2";

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

describe('"GET /images lists images"', () => {
  const ids: string[] = [];
  const base = Date.UTC(2026, 10, 1);
  beforeAll(async () => {
    for (const [index, tag] of ["app/1", "app/2", "apple", undefined, "z"].entries()) {
      ids.push(await api.addImage(FILES, { at: base + index * 1000, ...(tag === undefined ? {} : { tag }) }));
    }
    await api.addImage(FILES, { account: "bob", tag: "app/1" });
  });
  const list = async (query: string) => {
    const answer = await api.call("GET", `/v1/images${query}`);
    return (answer.json as { uuid: string }[]).map(({ uuid }) => ids.indexOf(uuid));
  };

  // spec: images.list, image.fields
  test("newest first, with uuid, tag and created_at; other accounts' images are not in it", async () => {
    const { json } = await api.call("GET", "/v1/images");
    expect(json).toEqual(
      [4, 3, 2, 1, 0].map((index) => ({
        uuid: ids[index],
        ...(index === 3 ? {} : { tag: ["app/1", "app/2", "apple", "", "z"][index] }),
        created_at: isoTime(base + index * 1000),
      })),
    );
  });

  // spec: images.list.limit, images.list.offset, images.list.tagged, images.list.tag, images.list.since
  // spec: images.list.until
  test.each([
    ["?limit=2", [4, 3]],
    ["?limit=2&offset=3", [1, 0]],
    ["?offset=5", []],
    ["?tagged=true", [4, 2, 1, 0]],
    ["?tagged=false", [3]],
    ["?tag=app", [2, 1, 0]],
    ["?tag=app/", [1, 0]],
    ["?tag=app/1", [0]],
    ["?tag=%25", []],
    ["?tag=_pp", []],
    ["?tag=APP", []],
    ["?tag=é", []],
    ["?tag=", [4, 2, 1, 0]],
    ["?tag=app&tagged=false", []],
    ["?tag=app&limit=1&offset=1", [1]],
    ["?since=2026-11-01T00:00:02Z", [4, 3, 2]],
    ["?until=2026-11-01T00:00:02Z", [2, 1, 0]],
    ["?since=2026-11-01T00:00:01Z&until=2026-11-01T00:00:02Z", [2, 1]],
    ["?since=2026-11-01T02:00:03%2B02:00", [4, 3]],
    ["?since=2026-11-01T02:00:03+02:00", [4, 3]],
    ["?until=2026-10-31T19:00:00.999-05:00", [0]],
    ["?since=0s", []],
    ["?since=2026-11-01T00:00:03Z&until=2026-11-01T00:00:01Z", []],
    ["?unknown=1&limit=1", [4]],
  ])("%s", async (query, expected) => {
    expect(await list(query)).toEqual(expected);
  });

  // spec: images.list.since, images.list.until
  test("relative bounds count back from now", async () => {
    const hours = Math.ceil((Date.now() - base - 2500) / 3_600_000);
    expect(await list(`?since=${hours + 1}h`)).toEqual([4, 3, 2, 1, 0]);
    expect(await list(`?until=${hours + 1}h`)).toEqual([]);
  });
});

describe('"PATCH /images/{imageUUID}/tag sets the tag", "DELETE … removes the tag"', () => {
  let [first, second, foreign]: [string, string, string] = ["", "", ""];
  beforeEach(async () => {
    [first, second] = [await api.addImage(FILES), await api.addImage(FILES)];
    foreign = await api.addImage(FILES, { account: "bob", tag: "shared" });
  });
  const set = (id: string, tag: string, token = api.token) =>
    api.call("PATCH", `/v1/images/${id}/tag`, { json: { tag }, token });
  const tagOf = async (id: string, token = api.token) =>
    (await api.call("GET", `/v1/inspect/${id}/`, { token })).json.tag;

  // spec: images.tag.set
  test("200, the updated Image object", async () => {
    const answer = await set(first, "one");
    expect(answer.status).toBe(200);
    expect(answer.json).toMatchObject({ uuid: first, tag: "one" });
  });

  // spec: images.tag.move
  test('"assigning a tag that already exists moves it to this image"', async () => {
    await set(first, "moving");
    expect((await set(second, "moving")).json.tag).toBe("moving");
    expect(await tagOf(first)).toBeUndefined();
    expect(await tagOf(second)).toBe("moving");
  });

  // spec: images.tag.set
  test("a second tag replaces the first", async () => {
    await set(first, "old");
    await set(first, "new");
    expect(await tagOf(first)).toBe("new");
    errorOf(await api.call("GET", "/v1/inspect/?tag=old"), "not_found");
  });

  test("setting the same tag again changes nothing", async () => {
    await set(first, "same");
    expect((await set(first, "same")).json.tag).toBe("same");
  });

  // spec: images.tag.move
  test("tags are unique per account, not among accounts", async () => {
    await set(first, "shared");
    expect(await tagOf(foreign, api.foreignToken)).toBe("shared");
    expect((await api.call("GET", "/v1/inspect/?tag=shared")).headers.get("location")).toBe(`/v1/inspect/${first}/`);
  });

  // spec: images.tag.remove, image.fields
  test('DELETE: "200 OK, the Image object with the tag removed", also twice', async () => {
    await set(first, "gone");
    for (let round = 0; round < 2; round++) {
      const answer = await api.call("DELETE", `/v1/images/${first}/tag`);
      expect(answer.status).toBe(200);
      expect(answer.json).toEqual({ uuid: first, created_at: expect.any(String) });
    }
  });

  test.each(["a", "A9._:/-", "0", "x".repeat(128), "registry:5000/a/b"])("tag %s is allowed", async (tag) => {
    expect((await set(first, tag)).status).toBe(200);
  });

  test.each(["", "-a", ".a", "/a", "a b", "ä", "a\n", "x".repeat(129), "a@b", "a,b"])(
    "tag %j is refused",
    async (tag) => {
      expect(errorOf(await set(first, tag), "validation_error").message).toStartWith("tag must be 1 to 128 characters");
    },
  );
});

describe('"POST /images/import imports an OCI image filesystem from a registry"', () => {
  const submit = (json: unknown) => api.call("POST", "/v1/images/import", { json });
  const last = () => api.operations.imports.at(-1);

  // spec: images.import, operation.fields
  heldTest('"202 Accepted with a Location header that points to the operation (kind image_import)"', async () => {
    const answer = await submit({ registry: REFERENCE });
    expect(answer.status).toBe(202);
    const location = answer.headers.get("location") ?? "";
    expect(location).toBe(`/v1/operations/${answer.json.uuid}`);
    const operation = await api.call("GET", location);
    expect(operation.json).toEqual({
      id: answer.json.uuid,
      status: "PENDING",
      kind: "image_import",
      created_at: expect.any(String),
    });
    expect(operation.headers.get("retry-after")).toBe("1");
  });

  // spec: images.import.registry, images.import.credentials, images.import.tag, images.import.timeout
  heldTest("every field reaches the import; by default there are no credentials, no tag, and 300 s", async () => {
    await submit({ registry: REFERENCE });
    expect(last()).toEqual({
      source: { kind: "registry", reference: expect.stringContaining(REFERENCE) },
      credentials: null,
      tag: null,
      ...{ timeoutSeconds: 300, reuse: false, keepTags: false },
    });
    const credentials = { username: "user", password: "canary-password" };
    await submit({ registry: REFERENCE, credentials, tag: "base", timeout: 3600 });
    expect(last()).toMatchObject({ credentials, tag: "base", timeoutSeconds: 3600 });
  });

  // spec: images.import.credentials
  test("the password is in no answer and not in the database", async () => {
    const { json } = await submit({
      registry: REFERENCE,
      credentials: { username: "user", password: "canary-password" },
    });
    for (const path of [`/v1/operations/${json.uuid}`, "/v1/operations"]) {
      expect((await api.call("GET", path)).text).not.toContain("canary-password");
    }
    const database = await Bun.file(api.parts.layout.database).bytes();
    const log = await Bun.file(`${api.parts.layout.database}-wal`).bytes();
    expect(Buffer.concat([database, log]).includes("canary-password")).toBe(false);
  });

  heldTest("a digest, and the implied transport", async () => {
    const digest = `sha256:${"a".repeat(64)}`;
    await submit({ registry: `registry.example.net/app@${digest}` });
    expect(last()?.source).toMatchObject({ reference: expect.stringContaining(digest) });
    expect((await submit({ registry: `docker://${REFERENCE}` })).status).toBe(202);
  });

  test.each([
    "busybox",
    "library/busybox:1",
    "oci:/etc",
    "dir:/etc",
    "docker-daemon:a:b",
    "http://registry.example.net/a",
    "u:p@registry.example.net/a",
    "registry.example.net/A",
    "registry.example.net/a:",
    "registry.example.net/../a",
    "a b",
    "-x/y",
  ])("%s is refused", async (registry) => {
    expect(errorOf(await submit({ registry }), "validation_error").message.length).toBeGreaterThan(10);
  });
});

test("an operator's public address is in Location headers, a default registry fills references", async () => {
  await using other = await Api.start({
    publicUrl: "https://coppice.example.net/base",
    defaultRegistry: "registry.example.net",
  });
  const answer = await other.call("POST", "/v1/images/import", { json: { registry: "busybox:1" } });
  expect(answer.headers.get("location")).toBe(`https://coppice.example.net/base/v1/operations/${answer.json.uuid}`);
  const body = { registry: { url: "busybox:1" } };
  const below = await other.call("POST", "/contree/v1/images/import", { json: body });
  const address = `https://coppice.example.net/base/contree/v1/operations/${below.json.uuid}`;
  expect(below.headers.get("location")).toBe(address);
  const source = { reference: expect.stringContaining("registry.example.net/") };
  expect(other.operations.imports[0]?.source).toMatchObject(source);
  const id = await other.addImage(FILES, { tag: "t" });
  const redirect = await other.call("GET", "/v1/inspect?tag=t");
  expect(redirect.headers.get("location")).toBe(`https://coppice.example.net/base/v1/inspect/${id}/`);
});
