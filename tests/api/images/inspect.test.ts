import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Api, errorOf } from "../../support/api/api.ts";
import { type LayerFixture, MTIME_SECONDS } from "../../support/api/layers.ts";

const MTIME = new Date(MTIME_SECONDS * 1000).toISOString();
const LARGE_BYTES = 3_000_000;
const large = Buffer.alloc(LARGE_BYTES, "0123456789abcdef");
const raw = Buffer.from([0x62, 0xff, 0x0a]);

const BASE: readonly LayerFixture[] = [
  { path: "bin", type: "d" },
  { path: "bin/tool", type: "f", content: "#!/bin/sh\n", mode: 0o4755 },
  { path: "docs", type: "d", mode: 0o1777 },
  { path: "docs/page.html", type: "f", content: "<p>ü</p>", mtimeNanoseconds: 123_456_789 },
  { path: "docs/data.json", type: "f", content: "{}" },
  { path: "docs/noextension", type: "f", content: "plain" },
  { path: "docs/empty.txt", type: "f", content: "" },
  { path: "docs/odd", type: "d" },
  { path: Buffer.concat([Buffer.from("docs/odd/"), raw]), type: "f", content: "odd" },
  { path: "docs/odd/a\nb\\c", type: "f", content: "" },
  { path: "docs/odd/link", type: "l", target: raw },
  { path: "large.bin", type: "f", content: large },
  { path: "holes", type: "f", parts: [{ at: 4096, bytes: Buffer.from("data") }], size: 12_288 },
  {
    path: "pieces.bin",
    type: "f",
    parts: [
      { at: 0, bytes: large.subarray(0, 1_048_576) },
      { at: 1_048_576, bytes: large.subarray(1_048_576, 2_097_152) },
    ],
    size: 2_097_152,
  },
  {
    path: "gaps.bin",
    type: "f",
    parts: [
      { at: 4096, bytes: large.subarray(0, 1_500_000) },
      { at: 2_097_152, bytes: large.subarray(0, 1_000_000) },
    ],
    size: 4_000_000,
  },
  { path: "link", type: "l", target: "docs/page.html" },
  { path: "absolute", type: "l", target: "/docs" },
  { path: "escape", type: "l", target: "../../../../etc/passwd" },
  { path: "dangling", type: "l", target: "nowhere" },
  { path: "loop", type: "l", target: "loop" },
  // Each leads a look-up through a directory five hundred times, and then to the next one.
  ...Array.from({ length: 40 }, (_, index): LayerFixture => {
    return { path: `long${index}`, type: "l", target: `${"docs/../".repeat(500)}long${index + 1}` };
  }),
  { path: "long40", type: "f", content: "" },
  { path: "pipe", type: "p" },
];
const TOP: readonly LayerFixture[] = [
  { path: "docs", type: "d", mode: 0o755 },
  { path: "docs/data.json", type: "w" },
  { path: "docs/new.txt", type: "f", content: "new", uid: 1000 },
];

let api: Api;
let base = "";
let image = "";
beforeAll(async () => {
  api = await Api.start();
  base = await api.addImage([BASE]);
  image = await api.addImage([BASE, TOP], { tag: "team/app:1" });
});
afterAll(() => api[Symbol.asyncDispose]());

const list = (path: string, query = "") => api.call("GET", `/v1/inspect/${image}/list?path=${path}${query}`);
const download = (path: string, headers: Record<string, string> = {}, query = "") =>
  api.call("GET", `/v1/inspect/${image}/download?path=${path}${query}`, { headers });
const exists = async (path: string) => (await api.call("HEAD", `/v1/inspect/${image}/?path=${path}`)).status;

describe('"GET /inspect/?tag={tagName}"', () => {
  // spec: inspect.tag
  test('"302 Found, redirect to /inspect/{imageUUID}/", with and without the slash', async () => {
    for (const path of ["/v1/inspect/", "/v1/inspect"]) {
      const answer = await api.call("GET", `${path}?tag=team/app:1`);
      expect(answer.status).toBe(302);
      expect(answer.headers.get("location")).toBe(`/v1/inspect/${image}/`);
    }
    const followed = await fetch(`${api.url}/v1/inspect/?tag=team%2Fapp%3A1`, {
      headers: { authorization: `Bearer ${api.token}` },
    });
    expect(await followed.json()).toMatchObject({ uuid: image });
  });

  test("a missing or malformed tag is 400; an unknown one is 404", async () => {
    for (const query of ["", "?tag=", "?tag=-x", "?tag=a%20b", `?tag=${"a".repeat(129)}`, "?tag=a&tag=b"]) {
      errorOf(await api.call("GET", `/v1/inspect/${query}`), "validation_error");
    }
    errorOf(await api.call("GET", "/v1/inspect/?tag=team"), "not_found");
  });
});

// spec: inspect.metadata, metadata.fields
test('"GET /inspect/{imageUUID}/: 200 OK, image metadata object", with and without the slash', async () => {
  for (const path of [`/v1/inspect/${image}/`, `/v1/inspect/${image}`]) {
    expect((await api.call("GET", path)).json).toEqual({
      uuid: image,
      tag: "team/app:1",
      created_at: expect.any(String),
    });
  }
  expect((await api.call("GET", `/v1/inspect/${base}/`)).json.tag).toBeUndefined();
});

describe('"GET /inspect/{imageUUID}/list"', () => {
  // spec: inspect.list, listing.fields, item.fields
  test("the listing object, with the items of all layers, by name", async () => {
    const { json } = await list("/docs");
    expect(json.path).toBe("/docs");
    expect(json.items.map(({ name }: { name: string }) => name)).toEqual([
      "empty.txt",
      "new.txt",
      "noextension",
      "odd",
      "page.html",
    ]);
    expect(json.items[1]).toEqual({
      name: "new.txt",
      size: 3,
      mode: "0644",
      type: "file",
      is_regular: true,
      is_dir: false,
      is_symlink: false,
      uid: 1000,
      gid: 0,
      modified_at: MTIME,
    });
    expect(json.items[4].modified_at).toBe(MTIME.replace(".000Z", ".123Z"));
  });

  // spec: item.fields
  test("every kind of entry", async () => {
    const { json } = await list("/");
    const items = Object.fromEntries(json.items.map((item: { name: string }) => [item.name, item]));
    expect(items["link"]).toMatchObject({
      type: "symlink",
      is_symlink: true,
      is_regular: false,
      symlink_to: "docs/page.html",
    });
    expect(items["bin"]).toMatchObject({ type: "directory", is_dir: true, is_regular: false, mode: "0755" });
    expect(items["pipe"]).toMatchObject({ type: "fifo", is_regular: false });
    expect((await list("/bin")).json.items[0].mode).toBe("4755");
  });

  test("names that are not UTF-8 are returned as bytes, which lead to the file", async () => {
    const { json } = await list("/docs/odd");
    const item = json.items.find(({ name }: { name: string }) => name.startsWith("b"));
    expect(item.name).toBe("b\ufffd\n");
    expect(item.name_base64).toBe(raw.toString("base64"));
    const link = json.items.find(({ name }: { name: string }) => name === "link");
    expect(link).toMatchObject({ symlink_to: "b\ufffd\n", symlink_to_base64: raw.toString("base64") });
    expect(link.name_base64).toBeUndefined();
    expect((await download("/docs/odd/b%FF%0A")).text).toBe("odd");
    expect(await exists("/docs/odd/b%ff%0a")).toBe(200);
    expect(await exists("/docs/odd/b%fe%0a")).toBe(404);
  });

  // spec: inspect.list.text
  test('"plain text when text is true": one line an entry, control characters escaped', async () => {
    const answer = await list("/docs", "&text=true");
    expect(answer.headers.get("content-type")).toBe("text/plain; charset=utf-8");
    expect(answer.text.split("\n")).toContain(`-rw-r--r-- 1 1000 0 3 ${MTIME} new.txt`);
    const odd = await list("/docs/odd", "&text=true");
    expect(odd.text).toContain(` a\\012b\\\\c\n`);
    expect(odd.text).toContain(` b\\377\\012\n`);
    const root = await list("/", "&text=true");
    expect(root.text).toContain(`l`.concat(`rw-r--r-- 1 0 0 14 ${MTIME} link -> docs/page.html\n`));
    expect(root.text).toContain(`prw-r--r-- 1 0 0 0 ${MTIME} pipe\n`);
    expect((await list("/bin", "&text=true")).text).toStartWith("-rwsr-xr-x ");
    expect((await list("/bin", "&text=false")).json.path).toBe("/bin");
  });

  test("symlinks are followed within the image, also those that point outside", async () => {
    expect((await list("/absolute")).json.items).toHaveLength(5);
    expect((await list("/absolute/odd")).json.items).toHaveLength(3);
    errorOf(await list("/escape"), "not_found");
  });

  // spec: inspect.list, errors.422
  test("a file is 422, a missing directory 404, a loop 422, no path 400", async () => {
    errorOf(await list("/large.bin"), "invalid_path");
    errorOf(await list("/nowhere"), "not_found");
    errorOf(await list("/docs/data.json"), "not_found");
    for (const path of ["/loop", "/long0"]) errorOf(await list(path), "invalid_path");
    errorOf(await api.call("GET", `/v1/inspect/${image}/list`), "validation_error");
    errorOf(await list("/", "&text=1"), "validation_error");
  });

  test("an object in each line when the request prefers lines, and an end that says there are no more", async () => {
    const lines = async (accept: string) => {
      const path = `/v1/inspect/${image}/list?path=/docs`;
      const { headers, text } = await api.call("GET", path, { headers: { accept } });
      if (headers.get("content-type") !== "application/x-ndjson") return null;
      return text
        .trimEnd()
        .split("\n")
        .map((line) => JSON.parse(line));
    };
    const { items } = (await list("/docs")).json;
    expect(await lines("application/x-ndjson")).toEqual([...items, { type: "end", path: "/docs" }]);
    expect(await lines("application/json;q=0.5, application/x-ndjson")).toHaveLength(items.length + 1);
    for (const accept of ["*/*", "application/json", "application/x-ndjson;q=0.5, application/json"]) {
      expect(await lines(accept)).toBeNull();
    }
  });

  test("20,000 entries are streamed completely", async () => {
    const many = Array.from(
      { length: 20_000 },
      (_, index): LayerFixture => ({ path: `entry-${index}`, type: "f", content: "" }),
    );
    const id = await api.addImage([many]);
    const { json } = await api.call("GET", `/v1/inspect/${id}/list?path=/`);
    expect(new Set(json.items.map(({ name }: { name: string }) => name)).size).toBe(20_000);
    const text = await api.call("GET", `/v1/inspect/${id}/list?path=/&text=true`);
    expect(text.text.split("\n")).toHaveLength(20_001);
  });
});

describe('"GET /inspect/{imageUUID}/download"', () => {
  // spec: inspect.download
  test.each([
    ["/docs/page.html", "text/html; charset=utf-8", "<p>ü</p>"],
    ["/link", "text/html; charset=utf-8", "<p>ü</p>"],
    ["/docs/new.txt", "text/plain; charset=utf-8", "new"],
    ["/docs/noextension", "application/octet-stream", "plain"],
    ["/docs/empty.txt", "text/plain; charset=utf-8", ""],
    ["//docs/./new.txt", "text/plain; charset=utf-8", "new"],
    ["/absolute/new.txt", "text/plain; charset=utf-8", "new"],
  ])("%s has the content type %s", async (path, type, content) => {
    const answer = await download(path);
    expect(answer.status).toBe(200);
    expect(answer.headers.get("content-type")).toBe(type);
    expect(answer.headers.get("content-length")).toBe(String(Buffer.byteLength(content)));
    expect(answer.text).toBe(content);
  });

  // spec: inspect.download.text
  test('"text … force text/plain content type"', async () => {
    expect((await download("/docs/page.html", {}, "&text=true")).headers.get("content-type")).toBe(
      "text/plain; charset=utf-8",
    );
    expect((await download("/docs/page.html", {}, "&text=false")).headers.get("content-type")).toStartWith("text/html");
  });

  test("a parent image is untouched by its child", async () => {
    expect((await api.call("GET", `/v1/inspect/${base}/download?path=/docs/data.json`)).json).toEqual({});
    errorOf(await download("/docs/data.json"), "not_found");
  });

  test("large files and holes, byte for byte", async () => {
    expect(Buffer.from((await download("/large.bin")).bytes).equals(large)).toBe(true);
    const expected = Buffer.alloc(12_288);
    expected.write("data", 4096);
    expect(Buffer.from((await download("/holes")).bytes).equals(expected)).toBe(true);
  });

  test("fragmented and sparse large files, whole and in part", async () => {
    expect(Buffer.from((await download("/pieces.bin")).bytes).equals(large.subarray(0, 2_097_152))).toBe(true);
    const gaps = Buffer.alloc(4_000_000);
    large.copy(gaps, 4096, 0, 1_500_000);
    large.copy(gaps, 2_097_152, 0, 1_000_000);
    expect(Buffer.from((await download("/gaps.bin")).bytes).equals(gaps)).toBe(true);
    for (const [start, end] of [
      [1, 3_999_999],
      [4095, 1_200_000],
      [1_400_000, 3_200_000],
      [5000, 1_200_000],
      [2_900_000, 4_000_000],
    ] as const) {
      const answer = await download("/gaps.bin", { range: `bytes=${start}-${end - 1}` });
      expect(answer.status).toBe(206);
      expect(Buffer.from(answer.bytes).equals(gaps.subarray(start, end))).toBe(true);
    }
    expect((await download("/large.bin")).headers.get("content-length")).toBe(String(LARGE_BYTES));
    expect((await api.call("HEAD", `/v1/inspect/${image}/download?path=/gaps.bin`)).headers.get("content-length")).toBe(
      "4000000",
    );
  });

  test("clients that leave early do not disturb the others", async () => {
    for (const path of ["large.bin", "gaps.bin"]) {
      for (let round = 0; round < 20; round++) {
        const leaving = new AbortController();
        const response = await fetch(`${api.url}/v1/inspect/${image}/download?path=/${path}`, {
          headers: { authorization: `Bearer ${api.token}` },
          signal: leaving.signal,
        });
        await response.body?.getReader().read();
        leaving.abort();
      }
      expect((await download(`/${path}`)).status).toBe(200);
    }
  });

  test.each([
    ["bytes=0-0", 0, 1],
    ["bytes=5-2999999", 5, LARGE_BYTES],
    ["bytes=2999990-", 2_999_990, LARGE_BYTES],
    ["bytes=-10", LARGE_BYTES - 10, LARGE_BYTES],
    ["bytes=262140-262150", 262_140, 262_151],
    ["bytes=0-9999999", 0, LARGE_BYTES],
  ])("Range %s", async (range, start, end) => {
    const answer = await download("/large.bin", { range });
    expect(answer.status).toBe(206);
    expect(answer.headers.get("content-range")).toBe(`bytes ${start}-${end - 1}/${LARGE_BYTES}`);
    expect(Buffer.from(answer.bytes).equals(large.subarray(start, end))).toBe(true);
  });

  test("a range outside is 416 in our shape with Content-Range; a malformed one is ignored", async () => {
    const answer = await download("/large.bin", { range: `bytes=${LARGE_BYTES}-` });
    errorOf(answer, "range_not_satisfiable");
    expect(answer.headers.get("content-range")).toBe(`bytes */${LARGE_BYTES}`);
    errorOf(await download("/docs/empty.txt", { range: "bytes=0-" }), "range_not_satisfiable");
    for (const range of ["bytes=2-1", "lines=0-1", "bytes=0-1,5-6"]) {
      expect((await download("/docs/new.txt", { range })).status).toBe(200);
    }
  });

  test("the ETag is strong: If-None-Match avoids the body, If-Range resumes", async () => {
    const first = await download("/docs/new.txt");
    const etag = first.headers.get("etag") ?? "";
    expect(etag).toMatch(/^"[^"]+"$/);
    const same = await download("/docs/new.txt", { "if-none-match": etag });
    expect(same.status).toBe(304);
    expect(same.bytes).toHaveLength(0);
    expect((await download("/docs/new.txt", { "if-none-match": '"other"' })).status).toBe(200);
    expect((await download("/docs/new.txt", { range: "bytes=1-", "if-range": etag })).text).toBe("ew");
    expect((await download("/docs/new.txt", { range: "bytes=1-", "if-range": '"other"' })).text).toBe("new");
    expect((await download("/docs/page.html")).headers.get("etag")).not.toBe(etag);
    expect(first.headers.get("last-modified")).toBe(new Date(MTIME_SECONDS * 1000).toUTCString());
  });

  test("HEAD has every header and no body", async () => {
    const answer = await api.call("HEAD", `/v1/inspect/${image}/download?path=/large.bin`);
    expect(answer.status).toBe(200);
    expect(answer.headers.get("content-length")).toBe(String(LARGE_BYTES));
    expect(answer.headers.get("accept-ranges")).toBe("bytes");
    expect(answer.headers.get("etag")).not.toBeNull();
    const missing = await api.call("HEAD", `/v1/inspect/${image}/download?path=/nowhere`);
    expect(missing.status).toBe(404);
  });

  // spec: inspect.download, errors.422
  test("anything but a regular file is 422, a missing file 404", async () => {
    for (const path of ["/docs", "/", "/pipe", "/loop", "/long0", "/absolute"])
      errorOf(await download(path), "invalid_path");
    for (const path of ["/nowhere", "/dangling", "/escape", "/large.bin/x"]) errorOf(await download(path), "not_found");
  });

  test("a downloaded HTML page cannot run as part of this site", async () => {
    const { headers } = await download("/docs/page.html");
    expect(headers.get("content-security-policy")).toContain("sandbox");
    expect(headers.get("x-content-type-options")).toBe("nosniff");
  });
});

describe('"HEAD /inspect/{imageUUID}/?path={path}: 200 OK if the path exists, otherwise 404 Not Found"', () => {
  // spec: inspect.exists, errors.404
  test.each([
    ["/", 200],
    ["/docs", 200],
    ["/docs/", 200],
    ["/docs/new.txt", 200],
    ["/link", 200],
    ["/pipe", 200],
    ["/docs/data.json", 404],
    ["/nowhere", 404],
    ["/dangling", 404],
    ["/escape", 404],
    ["/loop", 422],
    ["/long0", 422],
  ])("%s: %d", async (path, status) => {
    expect(await exists(path)).toBe(status);
  });

  test("without a path it asks for the image, with and without the slash", async () => {
    for (const path of [`/v1/inspect/${image}/`, `/v1/inspect/${image}`]) {
      expect((await api.call("HEAD", path)).status).toBe(200);
      expect((await api.call("HEAD", `${path}?path=/docs`)).status).toBe(200);
    }
    expect((await api.call("HEAD", `/v1/inspect/${Bun.randomUUIDv7()}/`)).status).toBe(404);
  });
});
