import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { UNKNOWN_UUID } from "../support/api/samples.ts";
import { Contree, contreeError } from "../support/contree/contree.ts";

const LONG_LISTING_COUNT = 300;

interface Row {
  readonly uuid: string;
  readonly tag: string | null;
  readonly created_at: string;
  readonly operation_uuid: string | null;
}

let contree: Contree;
let imported = "";
/** made by a run on `imported` */
let derived = "";
let foreignToken = "";

beforeAll(async () => {
  contree = await Contree.start({ tag: "base" });
  imported = contree.image;
  const { result } = await contree.appliance.run(imported, "echo x > /x");
  derived = (result as unknown as { image: string }).image;
  foreignToken = await contree.appliance.createToken("another-account");
});
afterAll(() => contree[Symbol.asyncDispose]());

const list = async (query = ""): Promise<Row[]> => (await contree.call("GET", `/images${query}`)).json.images;
const rows = async (query = "") => (await list(query)).map(({ uuid, tag }) => [uuid, tag]);
const setTag = async (image: string, tag: string): Promise<Row> => {
  const answer = await contree.call("PATCH", `/images/${image}/tag`, { json: { tag } });
  expect(answer.status).toBe(200);
  return answer.json;
};
const removeTags = (image: string, query = "") => contree.call("DELETE", `/images/${image}/tag${query}`);

/** Leaves `base` on the import, and no other tag. */
async function reset(): Promise<void> {
  await removeTags(derived);
  await removeTags(imported);
  await setTag(imported, "base");
}

describe("GET /images", () => {
  test("has the operation that made each image, newest first", async () => {
    const images = await list();
    expect(images.map(({ uuid }) => uuid)).toEqual([derived, imported]);
    for (const { operation_uuid, uuid } of images) {
      const operation = (await (await contree.appliance.fetch(`/operations/${operation_uuid}`)).json()) as {
        result: { image: string };
      };
      expect(operation.result.image).toBe(uuid);
    }
  });

  test("tagged in each form, tag, uuid and kind", async () => {
    await reset();
    for (const flag of ["tagged", "tagged=", "tagged=1", "tagged=true"])
      expect(await rows(`?${flag}`)).toEqual([[imported, "base"]]);
    for (const flag of ["tagged=0", "tagged=false"]) expect(await rows(`?${flag}`)).toHaveLength(2);
    expect(await rows(`?uuid=${derived}`)).toEqual([[derived, null]]);
    expect(await rows(`?uuid=${UNKNOWN_UUID}`)).toEqual([]);
    expect(await rows("?kind=0")).toEqual([[derived, null]]);
    expect(await rows("?kind=1")).toEqual([[imported, "base"]]);
    expect(await rows("?tag=ba")).toEqual([[imported, "base"]]);
    expect(await rows("?tag=ase")).toEqual([]);
    for (const query of ["tagged=2", "uuid=x", "kind=2", "kind=run", "limit=0", "limit=1001", "offset=-1"]) {
      contreeError(await contree.call("GET", `/images?${query}`), 400, "validation_error");
    }
  });

  test("the tag that equals the prefix comes first", async () => {
    await reset();
    await setTag(imported, "tool");
    await setTag(derived, "tool:2");
    expect(await rows("?tag=tool")).toEqual([
      [imported, "tool"],
      [derived, "tool:2"],
    ]);
    expect(await rows("?tag=tool&limit=1&offset=1")).toEqual([[derived, "tool:2"]]);
    // Slash and colon are sent literally, and encoded.
    await setTag(derived, "host.example:5000/a/b:1");
    for (const tag of ["host.example:5000/a/b:1", "host.example%3A5000%2Fa%2Fb%3A1"]) {
      expect(await rows(`?tag=${tag}`)).toEqual([[derived, "host.example:5000/a/b:1"]]);
    }
  });

  test("bounds of time in every form", async () => {
    await reset();
    const [newest, oldest] = await list();
    const at = Date.parse(newest?.created_at ?? "");
    const between = new Date(at).toISOString();
    const seconds = Math.floor(at / 1000);
    const local = (ms: number) => new Date(ms).toISOString().slice(0, -1);
    for (const since of ["600s", "10m", "1h", "1d", "1w", `${seconds - 3600}`, local(at - 3_600_000)]) {
      expect(await list(`?since=${since}`)).toHaveLength(2);
    }
    for (const until of ["600s", "10m", "1h", `${seconds - 3600}`, "0"])
      expect(await list(`?until=${until}`)).toEqual([]);
    for (const since of [between, between.replace("Z", "+00:00"), between.replace("Z", "%2B00:00")]) {
      expect(await list(`?since=${since}`)).toEqual([newest as Row]);
    }
    const offset = new Date(at + 7_200_000).toISOString().replace("Z", " 02:00").replaceAll(" ", "+");
    expect(await list(`?since=${offset}`)).toEqual([newest as Row]);
    expect((await list(`?until=${oldest?.created_at}`)).map(({ uuid }) => uuid)).toEqual([imported]);
    for (const wrong of ["", "x", "1y", "-5", "1.5", "2026-13-01", "9".repeat(12), "9".repeat(30), "NaN"]) {
      contreeError(await contree.call("GET", `/images?since=${wrong}`), 400, "validation_error");
    }
  });

  test("a long listing is sent in chunks, a short one with its length", async () => {
    await reset();
    expect((await contree.call("GET", "/images")).headers.get("content-length")).not.toBeNull();
    const names = Array.from({ length: LONG_LISTING_COUNT }, (_, index) => `${"long/name".repeat(12)}:${index}`);
    for (const name of names) await setTag(derived, name);
    const answer = await contree.call("GET", "/images?tag=long&limit=1000");
    expect(answer.bytes.length).toBeGreaterThan(65_536);
    expect(answer.headers.get("content-length")).toBeNull();
    expect(answer.json.images.map(({ tag }: Row) => tag).sort()).toEqual(names.sort());
    const pages = await Promise.all([0, 1, 2, 3].map((page) => list(`?tag=long&limit=100&offset=${page * 100}`)));
    expect(pages.flat()).toEqual(answer.json.images);
  });

  test("shows nothing of another account", async () => {
    expect((await contree.call("GET", "/images", { token: foreignToken })).json).toEqual({ images: [] });
  });
});

describe("PATCH /images/{uuid}/tag", () => {
  test("adds a tag, answers with it, and keeps the others", async () => {
    await reset();
    for (const tag of ["second", "base", "third"]) {
      expect(await setTag(imported, tag)).toMatchObject({ uuid: imported, tag });
    }
    const tags = (await list(`?uuid=${imported}`)).map(({ tag }) => tag);
    expect(tags.sort()).toEqual(["base", "second", "third"]);
    for (const tag of tags) {
      expect((await contree.call("GET", `/inspect/?tag=${tag}`)).headers.get("location")).toBe(`${imported}/`);
    }
  });

  test("moves a tag from another image", async () => {
    await reset();
    await setTag(derived, "base");
    expect(await rows("?tagged")).toEqual([[derived, "base"]]);
  });

  test("the specified interface shows the tag that was set last", async () => {
    await reset();
    await setTag(imported, "last");
    const image = (await (await contree.appliance.fetch(`/images/${imported}`)).json()) as { tag: string };
    expect(image.tag).toBe("last");
  });

  test("refuses malformed tags, and accepts 256 characters", async () => {
    for (const tag of ["", "-a", "a b", "a//b", "a:", ".a", "a..b", "ä", "a".repeat(257), 1, null, undefined]) {
      contreeError(await contree.call("PATCH", `/images/${imported}/tag`, { json: { tag } }), 400, "validation_error");
    }
    const long = "a".repeat(256);
    expect((await setTag(derived, long)).tag).toBe(long);
    expect((await contree.call("GET", `/inspect/?tag=${long}`)).status).toBe(302);
    expect(await rows(`?tag=${long}`)).toEqual([[derived, long]]);
  });

  test("an unknown image is 404, and so is another account's", async () => {
    for (const [image, token] of [
      [UNKNOWN_UUID, contree.appliance.token],
      [imported, foreignToken],
    ] as const) {
      const answer = await contree.call("PATCH", `/images/${image}/tag`, { json: { tag: "x" }, token });
      contreeError(answer, 404, "not_found");
      contreeError(await contree.call("DELETE", `/images/${image}/tag`, { token }), 404, "not_found");
    }
  });
});

describe("DELETE /images/{uuid}/tag", () => {
  test("removes the named tag only, and answers with the image", async () => {
    await reset();
    await setTag(imported, "extra");
    const answer = await removeTags(imported, "?tag=extra");
    expect([answer.status, answer.json.uuid, answer.json.tag]).toEqual([200, imported, "base"]);
    expect(await rows("?tagged")).toEqual([[imported, "base"]]);
  });

  test("a tag that is not its own changes nothing", async () => {
    await reset();
    await setTag(derived, "others");
    for (const tag of ["others", "unknown"]) {
      expect((await removeTags(imported, `?tag=${tag}`)).status).toBe(200);
    }
    expect((await rows("?tagged")).length).toBe(2);
  });

  test("without a name it removes all, and an empty name removes none", async () => {
    await reset();
    await setTag(imported, "extra");
    contreeError(await removeTags(imported, "?tag="), 400, "validation_error");
    expect((await rows("?tagged")).length).toBe(2);
    expect((await removeTags(imported)).json.tag).toBeNull();
    expect(await rows("?tagged")).toEqual([]);
    expect((await removeTags(imported)).status).toBe(200);
  });
});

describe("GET /inspect/{uuid}/", () => {
  test("is the image, with and without the slash, and HEAD has its status", async () => {
    await reset();
    for (const path of [`/inspect/${imported}/`, `/inspect/${imported}`, `/inspect/${imported.toUpperCase()}/`]) {
      const answer = await contree.call("GET", path);
      expect(answer.json).toEqual((await list(`?uuid=${imported}`))[0]);
      expect((await contree.call("HEAD", path)).status).toBe(200);
    }
    expect((await contree.call("GET", `/inspect/${derived}/`)).json.tag).toBeNull();
  });

  test("an unknown image is 404, another account's too, and a malformed uuid 400", async () => {
    contreeError(await contree.call("GET", `/inspect/${UNKNOWN_UUID}/`), 404, "not_found");
    contreeError(await contree.call("GET", `/inspect/${imported}/`, { token: foreignToken }), 404, "not_found");
    contreeError(await contree.call("GET", "/inspect/x/"), 400, "validation_error");
  });
});
