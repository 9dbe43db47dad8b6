/** The files of a running instance; its guest is this host, so that what a request does can be seen. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout } from "bun:test";
import { chmodSync, existsSync, mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Api, type CallOptions, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { type RunningFixture, runningInstance } from "../../support/api/running.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
let running: RunningFixture;
let root: string;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
  running = await runningInstance(api, "sleep 1000");
  root = running.root;
  mkdirSync(join(root, "etc"));
  writeFileSync(join(root, "etc/passwd"), "root:x:0:0::/root:/bin/sh\napp:x:1234:567::/home/app:/bin/sh\n");
  writeFileSync(join(root, "etc/group"), "root:x:0:\nstaff:x:567:\n");
  mkdirSync(join(root, "proc"));
});
afterAll(async () => {
  await running?.[Symbol.asyncDispose]();
  await api[Symbol.asyncDispose]();
});

/** Percent-encodes the bytes of a path. */
const encoded = (path: string | Uint8Array) =>
  Array.from(Buffer.from(path as string), (byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");
const at = (path: string | Uint8Array, view = "", more = "") =>
  `${running.path}/files${view}?path=${encoded(path)}${more}`;
const call = (method: string, path: string, options: CallOptions = {}) => api.call(method, path, options);
const put = (path: string, body: string, more = "", options: CallOptions = {}) =>
  call("PUT", at(path, "", more), { body, ...options });
const get = (path: string, options: CallOptions = {}) => call("GET", at(path), options);
const list = async (path: string, more = "") => {
  const { status, text } = await call("GET", at(path, "/list", more));
  return {
    status,
    lines:
      text === ""
        ? []
        : text
            .trimEnd()
            .split("\n")
            .map((line) => JSON.parse(line)),
  };
};

/** A directory of a test's own: its path in the guest, and on this host. */
function own(name: string): { readonly path: string; readonly here: string } {
  mkdirSync(join(root, name));
  return { path: `/${name}`, here: join(root, name) };
}

describe("a file", () => {
  heldTest("is written, described, read and removed", async () => {
    const path = "/a/b/file.txt";
    const written = await put(path, "content", "&mode=640");
    expect([written.status, written.json.entry]).toMatchObject([
      200,
      { path, name: "file.txt", type: "file", mode: "0640", size: 7, uid: 0, gid: 0, user: "root", group: "root" },
    ]);
    expect(readFileSync(join(root, path), "utf8")).toBe("content");
    expect((await call("GET", at(path, "/stat"))).json).toEqual(written.json.entry);
    const read = await get(path);
    expect([read.status, read.text, read.headers.get("content-length")]).toEqual([200, "content", "7"]);
    expect(read.headers.get("content-type")).toBe("text/plain; charset=utf-8");
    expect(read.headers.get("x-mode")).toBe("0640");
    expect(read.headers.get("content-security-policy")).toContain("sandbox");
    const etag = read.headers.get("etag") ?? "";
    expect((await get(path, { headers: { "if-none-match": etag } })).status).toBe(304);
    const head = await call("HEAD", at(path));
    expect([head.status, head.headers.get("content-length"), head.headers.get("etag")]).toEqual([200, "7", etag]);
    expect((await call("DELETE", at(path))).status).toBe(204);
    expect(existsSync(join(root, path))).toBe(false);
    errorOf(await get(path), "not_found");
  });

  heldTest("is read in ranges", async () => {
    const { path } = own("ranges");
    await put(`${path}/f`, "0123456789");
    const range = async (header: string) => {
      const { status, text, headers } = await get(`${path}/f`, { headers: { range: header } });
      return [status, text, headers.get("content-range")];
    };
    expect(await range("bytes=2-4")).toEqual([206, "234", "bytes 2-4/10"]);
    expect(await range("bytes=8-")).toEqual([206, "89", "bytes 8-9/10"]);
    expect(await range("bytes=-3")).toEqual([206, "789", "bytes 7-9/10"]);
    expect(await range("bytes=5-99")).toEqual([206, "56789", "bytes 5-9/10"]);
    expect((await range("bytes=1-2,4-5"))[0]).toBe(200);
    const beyond = await get(`${path}/f`, { headers: { range: "bytes=10-" } });
    expect([beyond.status, beyond.headers.get("content-range")]).toEqual([416, "bytes */10"]);
    const conditional = await get(`${path}/f`, { headers: { range: "bytes=1-2", "if-range": '"x"' } });
    expect([conditional.status, conditional.text]).toEqual([200, "0123456789"]);
    await put(`${path}/empty`, "");
    const empty = await get(`${path}/empty`, { headers: { range: "bytes=0-" } });
    expect([empty.status, empty.text]).toEqual([200, ""]);
  });

  heldTest("stays the same file when it is written, unless atomic", async () => {
    const { path, here } = own("same");
    const inode = () => statSync(join(here, "f"), { bigint: true }).ino;
    await put(`${path}/f`, "a long content");
    const before = inode();
    await put(`${path}/f`, "short");
    expect([inode(), readFileSync(join(here, "f"), "utf8")]).toEqual([before, "short"]);
    await put(`${path}/f`, " and more", "&append=true");
    expect([inode(), readFileSync(join(here, "f"), "utf8")]).toEqual([before, "short and more"]);
    symlinkSync("f", join(here, "link"));
    await put(`${path}/link`, "through a link");
    expect([inode(), readFileSync(join(here, "f"), "utf8")]).toEqual([before, "through a link"]);
    await put(`${path}/f`, "new", "&atomic=true");
    expect(inode()).not.toBe(before);
    const { lines } = await list(path);
    expect(lines.map(({ name }) => name).sort()).toEqual(["f", "link", "same", undefined]);
    errorOf(await put(`${path}/f`, "x", "", { headers: { "if-none-match": "*" } }), "conflict");
    errorOf(await put(`${path}/none/f`, "x", "&parents=false"), "not_found");
  });

  heldTest("has attributes and an owner", async () => {
    const { path, here } = own("attributes");
    const headers = { "x-attributes": JSON.stringify({ "user.origin": "ü" }) };
    const { entry } = (await put(`${path}/f`, "x", "&uid=1234&gid=567", { headers })).json;
    expect(entry).toMatchObject({ user: "app", group: "staff", attributes: { "user.origin": "ü" } });
    const change = (json: object) => call("PATCH", `${running.path}/files/attributes`, { json });
    const changed = await change({
      path: `${path}/f`,
      mode: "4755",
      attributes: { "user.b": "", "user.origin": null },
    });
    expect(changed.json).toMatchObject({ mode: "4755", attributes: { "user.b": "" } });
    expect(statSync(join(here, "f")).mode & 0o7777).toBe(0o4755);
    expect((await change({ path: `${path}/f`, uid: 0, gid: 5 })).json).toMatchObject({ uid: 0, gid: 5 });
    errorOf(await change({ path: `${path}/f`, uid: 0 }), "validation_error");
    errorOf(await change({ path: `${path}/f`, attributes: { "trusted.a": "b" } }), "validation_error");
    errorOf(await put(`${path}/f`, "x", "", { headers: { "x-attributes": "[1]" } }), "validation_error");
  });

  heldTest("can be named by any bytes", async () => {
    const { path } = own("bytes");
    const name = Buffer.concat([Buffer.from(`${path}/`), Buffer.from([0xff, 0x0a, 0x25, 0x41])]);
    const { entry } = (await call("PUT", at(name), { body: "bytes" })).json;
    expect(entry).toMatchObject({
      path: `${path}/\ufffd\n%A`,
      path_base64: name.toString("base64"),
      name_base64: name.subarray(path.length + 1).toString("base64"),
    });
    const json = { from_base64: name.toString("base64"), to: `${path}/plain` };
    expect((await call("POST", `${running.path}/files/move`, { json })).json.entry.path).toBe(`${path}/plain`);
    errorOf(await call("POST", `${running.path}/files/move`, { json: { to: "/x" } }), "validation_error");
    errorOf(await call("GET", `${running.path}/files?path=relative`), "invalid_path");
    errorOf(await call("GET", `${running.path}/files?path=/a/../b`), "invalid_path");
  });

  heldTest("is refused when it is none", async () => {
    const { path, here } = own("none");
    expect(Bun.spawnSync(["mkfifo", join(here, "fifo")]).exitCode).toBe(0);
    symlinkSync("loop", join(here, "loop"));
    errorOf(await get(path), "invalid_path");
    errorOf(await get(`${path}/fifo`), "invalid_path");
    errorOf(await get(`${path}/loop`), "invalid_path");
    errorOf(await put(`${path}/fifo`, "x"), "invalid_path");
    errorOf(await put(path, "x"), "invalid_path");
    expect((await call("HEAD", at(path))).status).toBe(422);
    errorOf(await call("DELETE", at("/none/missing")), "not_found");
    errorOf(await call("DELETE", at(path)), "conflict");
    expect((await call("DELETE", at(path, "", "&recursive=true"))).status).toBe(204);
    expect(existsSync(here)).toBe(false);
  });
});

describe("a directory", () => {
  heldTest("is made, once", async () => {
    const make = (json: object) => call("POST", `${running.path}/files/directory`, { json });
    const answer = await make({ path: "/made/below", mode: "0700" });
    expect([answer.status, answer.json]).toMatchObject([
      201,
      { created: true, entry: { type: "directory", mode: "0700" } },
    ]);
    expect((await make({ path: "/made/below" })).json.created).toBe(false);
    errorOf(await make({ path: "/absent/below", parents: false }), "not_found");
  });

  heldTest("is listed to a depth, with directories before their contents", async () => {
    const { path, here } = own("listed");
    mkdirSync(join(here, "d/e"), { recursive: true });
    for (const name of ["d/f", "d/e/g", "h"]) writeFileSync(join(here, name), name);
    symlinkSync("d", join(here, "link"));
    const names = async (more: string, from = path) => {
      const { lines } = await list(from, more);
      expect(lines.at(-1)).toEqual({ type: "end", truncated: false });
      return lines.slice(0, -1).map((entry) => entry.path.slice(from.length));
    };
    expect(await names("&depth=0")).toEqual([""]);
    expect((await names("")).sort()).toEqual(["", "/d", "/h", "/link"]);
    expect((await names("&depth=2")).sort()).toEqual(["", "/d", "/d/e", "/d/f", "/h", "/link"]);
    const all = await names("&depth=64");
    expect(all.indexOf("/d")).toBeLessThan(all.indexOf("/d/e/g"));
    expect((await names("&depth=2", `${path}/link`)).sort()).toEqual(["", "/e", "/e/g", "/f"]);
    const typeOfLink = async (more: string) =>
      (await list(path, more)).lines.find(({ name }) => name === "link") as Record<string, unknown>;
    expect(await typeOfLink("")).toMatchObject({ type: "symlink", symlink_to: "d" });
    expect(await typeOfLink("&follow=true")).toMatchObject({ type: "directory", symlink_to: `${path}/d` });
    const cut = await list(path, "&limit=2");
    expect([cut.lines.length, cut.lines.at(-1)]).toEqual([3, { type: "end", truncated: true }]);
    expect((await list(`${path}/h`)).lines.map(({ type }) => type)).toEqual(["file", "end"]);
    expect((await list(`${path}/none`)).status).toBe(404);
  });

  heldTest("moves, and replaces only when that is wanted", async () => {
    const { path, here } = own("moved");
    const move = (json: object) => call("POST", `${running.path}/files/move`, { json });
    mkdirSync(join(here, "d"));
    writeFileSync(join(here, "d/f"), "f");
    writeFileSync(join(here, "g"), "g");
    expect((await move({ from: `${path}/d`, to: `${path}/e` })).json.entry).toMatchObject({ path: `${path}/e` });
    errorOf(await move({ from: `${path}/e/f`, to: `${path}/g` }), "conflict");
    expect(readFileSync(join(here, "g"), "utf8")).toBe("g");
    expect((await move({ from: `${path}/e/f`, to: `${path}/g`, replace: true })).status).toBe(200);
    expect([readFileSync(join(here, "g"), "utf8"), existsSync(join(here, "e/f"))]).toEqual(["f", false]);
  });

  heldTest("has files that are joined", async () => {
    const { path, here } = own("joined");
    await Promise.all(["a", "b", "c"].map((name) => put(`${path}/${name}`, name.repeat(3))));
    const json = { from: ["b", "a", "b"].map((name) => `${path}/${name}`), to: `${path}/all`, mode: "0600" };
    const joined = await call("POST", `${running.path}/files/join`, { json });
    expect(joined.json.entry).toMatchObject({ size: 9, mode: "0600" });
    expect(readFileSync(join(here, "all"), "utf8")).toBe("bbbaaabbb");
  });
});

describe("the user of a request", () => {
  heldTest("has the permissions of that user, and owns what it makes", async () => {
    const { path, here } = own("users");
    chmodSync(here, 0o777);
    writeFileSync(join(here, "secret"), "secret", { mode: 0o600 });
    errorOf(await call("GET", at(`${path}/secret`, "", "&user=app")), "forbidden");
    errorOf(await put(`${path}/secret`, "x", "&user=1234"), "forbidden");
    expect((await put(`${path}/mine`, "x", "&user=app")).json.entry).toMatchObject({ user: "app", group: "staff" });
    expect((await put(`${path}/numbers`, "x", "&user=77:88")).json.entry).toMatchObject({ uid: 77, gid: 88 });
    const missing = await call("GET", at(`${path}/mine`, "", "&user=missing"));
    expect(errorOf(missing, "not_found").message).toContain("user missing");
    errorOf(await call("GET", at(`${path}/mine`, "", "&user=a:b:c")), "validation_error");
    errorOf(await put(`${path}/mine`, "x", "&user=app&uid=0&gid=0"), "forbidden");
  });
});
