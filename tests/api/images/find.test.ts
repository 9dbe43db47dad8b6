import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Api, errorOf } from "../../support/api/api.ts";
import type { LayerFixture } from "../../support/api/layers.ts";

const RAW = Buffer.from([0x62, 0xff]);

const BASE: readonly LayerFixture[] = [
  { path: "etc", type: "d" },
  { path: "etc/app.conf", type: "f", content: "abc" },
  { path: "etc/conf.d", type: "d" },
  { path: "etc/conf.d/more.conf", type: "f", content: "" },
  { path: "etc/link", type: "l", target: "app.conf" },
  { path: Buffer.concat([Buffer.from("etc/"), RAW]), type: "f", content: "raw" },
  { path: "srv", type: "d" },
  { path: "srv/other.conf", type: "f", content: "x" },
  { path: "srv/gone.conf", type: "f", content: "x" },
];
const TOP: readonly LayerFixture[] = [
  { path: "srv", type: "d" },
  { path: "srv/gone.conf", type: "w" },
];

let api: Api;
let image = "";
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([BASE, TOP]);
});
afterAll(() => api[Symbol.asyncDispose]());

const find = (query: Record<string, string>, token?: string) =>
  api.call("GET", `/v1/inspect/${image}/find?${new URLSearchParams(query)}`, token === undefined ? {} : { token });
const paths = ({ json }: { json: { items: { path: string }[] } }) => json.items.map(({ path }) => path);

describe('"GET /inspect/{uuid}/find"', () => {
  test("returns the entries whose names match, with type and size", async () => {
    const answer = await find({ glob: "*.conf" });
    expect(answer.json).toEqual({
      items: [
        { path: "/etc/app.conf", type: "file", size: 3 },
        { path: "/etc/conf.d/more.conf", type: "file", size: 0 },
        { path: "/srv/other.conf", type: "file", size: 1 },
      ],
      truncated: false,
    });
    expect(paths(await find({ glob: "conf.d" }))).toEqual(["/etc/conf.d"]);
    expect(paths(await find({ glob: "none" }))).toEqual([]);
  });

  test("compares a glob with a slash with the path below the directory", async () => {
    expect(paths(await find({ glob: "etc/*.conf" }))).toEqual(["/etc/app.conf"]);
    expect(paths(await find({ glob: "conf.d/*", path: "/etc" }))).toEqual(["/etc/conf.d/more.conf"]);
    expect(paths(await find({ glob: "*.conf", path: "/srv" }))).toEqual(["/srv/other.conf"]);
  });

  test("has the bytes of a name that is not UTF-8", async () => {
    const { json } = await find({ glob: "b?" });
    expect(json.items).toHaveLength(1);
    expect(Buffer.from(json.items[0].path_base64, "base64")).toEqual(Buffer.concat([Buffer.from("/etc/"), RAW]));
  });

  test("stops at its limit, and says so", async () => {
    const { json } = await find({ glob: "*.conf", limit: "2" });
    expect(paths({ json })).toEqual(["/etc/app.conf", "/etc/conf.d/more.conf"]);
    expect(json.truncated).toBe(true);
  });

  test("refuses invalid searches", async () => {
    errorOf(await find({}), "validation_error");
    errorOf(await find({ glob: "x".repeat(1001) }), "validation_error");
    errorOf(await find({ glob: "*", path: "etc" }), "invalid_path");
    errorOf(await find({ glob: "*", path: "/none" }), "not_found");
    errorOf(await find({ glob: "*" }, api.foreignToken), "not_found");
  });
});
