/** The drive: images and paused sandboxes over WebDAV. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readdir, readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ImageId } from "../../../src/domain/ids.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { Api } from "../../support/api/api.ts";
import type { LayerFixture } from "../../support/api/layers.ts";

const RAW = Buffer.concat([Buffer.from("dir/"), Buffer.from([0x62, 0xff])]);
const TREE: readonly LayerFixture[] = [
  { path: "dir", type: "d" },
  { path: "dir/file.txt", type: "f", content: "hello", mode: 0o644 },
  { path: "dir/run", type: "f", content: "#!", mode: 0o755 },
  { path: "dir/a b&<c>#?%41", type: "f", content: "odd" },
  { path: RAW, type: "f", content: "raw" },
  { path: "dir/here", type: "l", target: "." },
  { path: "dir/up", type: "l", target: "/" },
  { path: "dir/nowhere", type: "l", target: "missing" },
  { path: "dir/circle", type: "l", target: "circle" },
  { path: "dir/fifo", type: "p" },
  { path: "empty", type: "d" },
  { path: "link", type: "l", target: "dir" },
  { path: "name", type: "l", target: "dir/file.txt" },
];

let api: Api;
let image: ImageId;
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([TREE]);
  for (const tag of ["library/tree:1", "plain"]) {
    expect((await api.call("PATCH", `/contree/v1/images/${image}/tag`, { json: { tag } })).status).toBe(200);
  }
});
afterAll(() => api[Symbol.asyncDispose]());

interface Asked {
  readonly method?: string;
  readonly depth?: string;
  readonly headers?: Record<string, string>;
  readonly authorization?: string | null;
}

async function ask(path: string, { method = "PROPFIND", depth = "1", headers = {}, authorization }: Asked = {}) {
  const own = `Basic ${Buffer.from(`any:${api.token}`).toString("base64")}`;
  const authorized = authorization === null ? {} : { authorization: authorization ?? own };
  const init = { method, headers: { depth, ...authorized, ...headers }, redirect: "manual" } as const;
  const response = await fetch(`${api.parts.url}/dav${path}`, init);
  return { status: response.status, headers: response.headers, text: await response.text() };
}

/** The members of a collection, and itself: their addresses, and `/` or the size. */
async function listed(path: string): Promise<string[]> {
  const { status, text } = await ask(path);
  expect([status, text]).toEqual([207, expect.stringContaining("</D:multistatus>")]);
  return [...text.matchAll(/<D:href>([^<]*)<\/D:href>.*?<\/D:response>/gs)].map(([response, href]) => {
    const size = /<D:getcontentlength>(\d+)</.exec(response)?.[1];
    expect(response.includes("<D:collection/>")).toBe(size === undefined);
    expect(href?.endsWith("/")).toBe(size === undefined);
    return size === undefined ? (href ?? "") : `${href} ${size}`;
  });
}

test("rclone copies an image, with the names and contents of its files", async () => {
  await using directory = await scratchDirectory(tmpdir(), "coppice-drive-");
  const environment = { ...process.env, RCLONE_CONFIG: join(directory.path, "none") };
  const secret = await Bun.$`rclone obscure ${api.token}`.env(environment).text();
  const options = ["--webdav-url", `${api.parts.url}/dav`, "--webdav-user", "any", "--webdav-pass", secret.trim()];
  const copy = join(directory.path, "copy");
  const copied = Bun.$`rclone copy ${options} :webdav:images/${image}/dir ${copy}`.env(environment).quiet().nothrow();
  const { exitCode, stderr } = await copied;
  expect([
    exitCode,
    stderr
      .toString()
      .replace(/.*NOTICE.*/g, "")
      .trim(),
  ]).toEqual([0, ""]);
  const names = (await readdir(copy, { encoding: "buffer" })).map((name) => name.toString("latin1"));
  expect(names.sort()).toEqual(["a b&<c>#?%41", "b\xff", "file.txt", "run"]);
  expect(await readFile(join(copy, "file.txt"), "utf8")).toBe("hello");
  const before = await Bun.$`rclone lsl ${options} :webdav:tags`.env(environment).quiet().text();
  expect(before).toContain("library%2Ftree:1/link/run");
});

describe("the drive", () => {
  test("has a directory for each way to name an image", async () => {
    for (const root of ["", "/"])
      expect(await listed(root)).toEqual(["/dav/", "/dav/images/", "/dav/sandboxes/", "/dav/tags/"]);
    expect(await listed("/images")).toEqual(["/dav/images/", `/dav/images/${image}/`]);
    expect((await listed("/tags/")).sort()).toEqual([
      "/dav/tags/",
      "/dav/tags/library%252Ftree%3A1/",
      "/dav/tags/plain/",
    ]);
    expect(await listed("/sandboxes/")).toEqual(["/dav/sandboxes/"]);
  });

  test.each([() => `/images/${image}`, () => "/tags/library%252Ftree%3A1", () => "/tags/plain"])(
    "lists directories: links are what they lead to, and what has no end or no content is left out",
    async (volume) => {
      const base = `/dav${volume()}`;
      const root = [`${base}/`, `${base}/dir/`, `${base}/empty/`, `${base}/link/`, `${base}/name 5`];
      expect(await listed(volume())).toEqual(root);
      const names = ["a%20b%26%3Cc%3E%23%3F%2541 3", "b%FF 3", "file.txt 5", "run 2"];
      expect(await listed(`${volume()}/dir/`)).toEqual([`${base}/dir/`, ...names.map((name) => `${base}/dir/${name}`)]);
      expect(await listed(`${volume()}/link`)).toEqual([
        `${base}/link/`,
        ...names.map((name) => `${base}/link/${name}`),
      ]);
      expect(await listed(`${volume()}/empty`)).toEqual([`${base}/empty/`]);
      expect(await listed(`${volume()}/name`)).toEqual([`${base}/name 5`]);
    },
  );

  test("describes files as GET answers them, with ranges, validators and the bit of programs", async () => {
    for (const path of ["dir/file.txt", "name", "dir/a%20b%26%3Cc%3E%23%3F%2541", "dir/b%FF", "dir/run"]) {
      const address = `/images/${image}/${path}`;
      const { text } = await ask(address, { depth: "0" });
      const got = await ask(address, { method: "GET" });
      const head = await ask(address, { method: "HEAD" });
      expect([got.status, head.status, head.text]).toEqual([200, 200, ""]);
      const property = (name: string) => new RegExp(`<[AD]:${name}[^>]*>([^<]*)<`).exec(text)?.[1];
      expect(property("getcontentlength")).toBe(String(Buffer.byteLength(got.text)));
      expect(property("getcontentlength")).toBe(head.headers.get("content-length") ?? "");
      for (const [name, field] of [
        ["getetag", "etag"],
        ["getlastmodified", "last-modified"],
        ["getcontenttype", "content-type"],
      ] as const) {
        expect(property(name)).toBe(got.headers.get(field) ?? "");
      }
      expect(property("executable")).toBe(path === "dir/run" ? "T" : "F");
      const headers = { "if-none-match": got.headers.get("etag") ?? "" };
      expect((await ask(address, { method: "GET", headers })).status).toBe(304);
    }
    const part = await ask(`/images/${image}/name`, { method: "GET", headers: { range: "bytes=1-3" } });
    expect([part.status, part.text, part.headers.get("content-range")]).toEqual([206, "ell", "bytes 1-3/5"]);
    expect((await ask(`/images/${image}/name`, { method: "GET", headers: { range: "bytes=9-" } })).status).toBe(416);
  });

  test("is only read, one level at a time, and says what it can", async () => {
    const options = await ask("/", { method: "OPTIONS" });
    expect([options.status, options.headers.get("dav")]).toEqual([204, "1"]);
    expect(options.headers.get("allow")).toBe("GET, HEAD, OPTIONS, PROPFIND");
    for (const method of ["PUT", "DELETE", "MKCOL", "MOVE", "COPY", "LOCK", "PROPPATCH", "POST"]) {
      const { status, headers } = await ask(`/images/${image}/new`, { method });
      expect([method, status, headers.get("allow")]).toEqual([method, 405, "GET, HEAD, OPTIONS, PROPFIND"]);
    }
    for (const [depth, status] of [
      ["infinity", 403],
      ["2", 400],
    ] as const) {
      expect((await ask("/", { depth })).status).toBe(status);
    }
    expect((await ask("/", { depth: "infinity" })).text).toContain("propfind-finite-depth");
    for (const path of ["/", "/images/", `/images/${image}`, `/images/${image}/dir/`]) {
      expect((await ask(path, { method: "GET" })).status).toBe(405);
    }
  });

  test("has nothing else, and nothing of others", async () => {
    const other = "00000000-0000-4000-8000-000000000000";
    for (const path of [
      ...["/nothing", "/images/x", `/images/${other}`, `/images/${image}/missing`, `/images/${image}/dir/circle/x`],
      ...["/tags/other", "/tags/library/tree:1", "/sandboxes/none", `/images/${image}/dir/nowhere`],
      ...["/constructor", "/sandboxes/%00"],
    ]) {
      const { status } = await ask(path);
      expect([path, [404, 422].includes(status)]).toEqual([path, true]);
    }
    expect((await ask(`/images/${image}/dir/fifo`)).status).toBe(404);
    expect((await ask(`/images/${image}/dir/fifo`, { method: "GET" })).status).toBe(422);
    const stranger = await api.issue("mallory", ["*"]);
    const authorization = `Bearer ${stranger}`;
    expect((await ask(`/images/${image}`, { authorization })).status).toBe(404);
    expect((await ask("/images", { authorization })).text).not.toContain(image);
    expect((await ask("/tags/plain/name", { method: "GET", authorization })).status).toBe(404);
  });

  test("takes a token as the password, and its scopes decide", async () => {
    const basic = (text: string) => `Basic ${Buffer.from(text).toString("base64")}`;
    for (const authorization of [null, basic("any:wrong"), basic(api.token), basic(":"), "Basic !", "Bearer wrong"]) {
      const { status, headers } = await ask("/", { authorization });
      expect([authorization, status]).toEqual([authorization, 401]);
      expect(headers.get("www-authenticate")).toBe('Basic realm="coppice", charset="UTF-8"');
    }
    // Nowhere else.
    const elsewhere = await fetch(`${api.parts.url}/v1/images`, {
      headers: { authorization: basic(`any:${api.token}`) },
    });
    expect([elsewhere.status, elsewhere.headers.get("www-authenticate")]).toEqual([401, 'Bearer realm="coppice"']);
    const reader = await api.issue("alice", ["operations:read"]);
    expect((await ask("/", { authorization: basic(`:${reader}`) })).status).toBe(207);
    for (const path of ["/images", "/tags", "/sandboxes", `/images/${image}`]) {
      expect((await ask(path, { authorization: basic(`:${reader}`) })).status).toBe(403);
    }
    const instances = await api.issue("alice", ["instances:read"]);
    expect((await ask("/sandboxes", { authorization: basic(`:${instances}`) })).status).toBe(207);
    expect((await ask("/sandboxes/any", { authorization: basic(`:${instances}`) })).status).toBe(403);
  });
});
