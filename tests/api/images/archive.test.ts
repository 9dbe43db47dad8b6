import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { lstat, mkdtemp, readdir, readFile, readlink, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gunzipSync } from "node:zlib";
import { Api, errorOf } from "../../support/api/api.ts";
import { type LayerFixture, MTIME_SECONDS } from "../../support/api/layers.ts";
import { listLayers } from "../../support/images/layer-files.ts";
import { until } from "../../support/waiting.ts";

const LONG = "n".repeat(200);
const RAW = Buffer.from([0x62, 0xff, 0x0a]);
const LONG_RAW = Buffer.concat([RAW, Buffer.from("x".repeat(150))]);
const BIG_HOLE_BYTES = 9_663_676_416;
const binary = Buffer.from([0, 1, 0xff, 0x0a, 0x3d]);

/** An access control list in the kernel's format: its version, and tag, permissions and id of each entry. */
function acl(...entries: readonly (readonly [tag: number, permissions: number, id?: number])[]): Buffer {
  const bytes = Buffer.alloc(4 + 8 * entries.length);
  bytes.writeUInt32LE(2);
  for (const [index, [tag, permissions, id]] of entries.entries()) {
    bytes.writeUInt16LE(tag, 4 + 8 * index);
    bytes.writeUInt16LE(permissions, 6 + 8 * index);
    bytes.writeUInt32LE(id ?? 0xffff_ffff, 8 + 8 * index);
  }
  return bytes;
}
const ACL = acl([1, 6], [2, 7, 1000], [4, 4], [8, 1, 4_000_000_000], [16, 7], [32, 0]);
const DEFAULT_ACL = acl([1, 7], [2, 5, 12], [4, 5], [16, 5], [32, 0]);

const BASE: readonly LayerFixture[] = [
  { path: "t", type: "d", mode: 0o1777, uid: 70_000, gid: 4_000_000_000, mtimeNanoseconds: 1 },
  { path: "t/setuid", type: "f", content: "#!", mode: 0o6755, uid: 1000, gid: 1001, mtimeNanoseconds: 123_456_789 },
  { path: "t/old", type: "f", content: "old", mtimeSeconds: -2, mtimeNanoseconds: 500_000_000 },
  { path: "t/empty", type: "f", content: "", mode: 0 },
  { path: "t/one", type: "f", content: "linked", nlink: 3 },
  { path: "t/sub", type: "d", mode: 0o700 },
  { path: "t/sub/two", type: "f", linkOf: "t/one" },
  { path: "t/three", type: "f", linkOf: "t/one" },
  { path: "t/link", type: "l", target: "sub/two" },
  { path: "t/long-link", type: "l", target: `/${LONG}/${LONG}` },
  { path: `t/${LONG}`, type: "d" },
  { path: `t/${LONG}/${LONG}`, type: "f", content: "deep" },
  { path: Buffer.concat([Buffer.from("t/"), RAW]), type: "f", content: "raw" },
  { path: Buffer.concat([Buffer.from("t/"), LONG_RAW]), type: "f", content: "long raw" },
  { path: "t/ünïcode", type: "f", content: "ü" },
  { path: "t/fifo", type: "p", mode: 0o600 },
  { path: "t/socket", type: "s" },
  { path: "t/null", type: "c", rdev: [1, 3], mode: 0o666 },
  {
    path: "t/attributes",
    type: "f",
    content: "x",
    xattrs: [
      ["user.text", "value"],
      ["user.binary", binary],
      ["user.a=b%", "odd key"],
      ["trusted.other", ""],
    ],
  },
  { path: "t/sub/attributes", type: "d", xattrs: [["user.on-directory", "yes"]] },
  {
    path: "t/sub/acl",
    type: "d",
    mode: 0o670,
    xattrs: [
      ["system.posix_acl_access", ACL],
      ["system.posix_acl_default", DEFAULT_ACL],
    ],
  },
  { path: "t/sub/no-acl", type: "f", xattrs: [["system.posix_acl_access", "no list at all"]] },
  {
    path: "t/sparse",
    type: "f",
    parts: [
      { at: 1_048_576, bytes: Buffer.from("first") },
      { at: 3_145_728 + 4096, bytes: Buffer.alloc(8192, "s") },
    ],
    size: 10_000_001,
  },
  { path: "t/hole", type: "f", parts: [], size: BIG_HOLE_BYTES },
  { path: "t/tail", type: "f", parts: [{ at: 65_536, bytes: Buffer.from("tail") }], size: 65_540 },
  { path: "t/large", type: "f", content: Buffer.alloc(1_000_001, "0123456789") },
  { path: "t/hidden", type: "f", content: "below" },
];
const TOP: readonly LayerFixture[] = [
  { path: "t", type: "d", mode: 0o1777, uid: 70_000, gid: 4_000_000_000 },
  { path: "t/hidden", type: "w" },
  { path: "t/new", type: "f", content: "above" },
];

let api: Api;
let image = "";
let directory = "";
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([BASE, TOP]);
  directory = await mkdtemp(join(tmpdir(), "coppice-archive-"));
});
afterAll(async () => {
  await api[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

const archive = (path: string, headers: Record<string, string> = { "accept-encoding": "identity" }) =>
  api.call("GET", `/v1/inspect/${image}/archive?path=${path}`, { headers });

async function tar(args: readonly string[], stdin: Uint8Array, env: Record<string, string> = {}): Promise<string> {
  const child = Bun.spawn(["tar", ...args], {
    env: { PATH: process.env["PATH"] ?? "", LC_ALL: "C", ...env },
    stdin,
    stdout: "pipe",
    stderr: "pipe",
    timeout: 60_000,
  });
  const [out, errors] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text()]);
  // It warns of the standard's own keyword for names that are not UTF-8, and of times before 1970.
  if ((await child.exited) !== 0) throw new Error(`tar: ${errors}`);
  return out;
}

/** Extracts with every attribute into a new directory. */
async function extract(bytes: Uint8Array, ...more: readonly string[]): Promise<string> {
  const target = await mkdtemp(join(directory, "out-"));
  const keep = ["--xattrs", "--xattrs-include=*", "--numeric-owner", "--same-owner", "-p", ...more];
  await tar(["-x", "-C", target, ...keep], bytes);
  return target;
}

async function xattrOf(path: string, name: string): Promise<Buffer> {
  const child = Bun.spawn(["getfattr", "--only-values", "--absolute-names", "-n", name, path], {
    stdout: "pipe",
    stderr: "pipe",
  });
  return Buffer.from(await new Response(child.stdout).arrayBuffer());
}

describe('"GET /inspect/{uuid}/archive?path=" extracted by GNU tar', () => {
  let out = "";
  beforeAll(async () => {
    const answer = await archive("/t");
    expect(answer.status).toBe(200);
    expect(answer.headers.get("content-type")).toBe("application/x-tar");
    expect(answer.headers.get("content-disposition")).toBe('attachment; filename="t.tar"');
    expect(answer.headers.get("content-encoding")).toBeNull();
    out = await extract(answer.bytes);
  }, 60_000);
  const at = (name: string) => join(out, name);

  test("has every name, merged over the layers, and no socket", async () => {
    const names = (await readdir(out, { encoding: "buffer" })).map((name) => name.toString("latin1")).sort();
    const expected = ["attributes", "empty", "fifo", "hole", "large", "link", "long-link", "new", "null", "old", "one"];
    expected.push(
      "setuid",
      "sparse",
      "sub",
      "tail",
      "three",
      LONG,
      RAW.toString("latin1"),
      LONG_RAW.toString("latin1"),
    );
    expected.push(Buffer.from("ünïcode").toString("latin1"));
    expect(names).toEqual(expected.sort());
    const long = Buffer.concat([Buffer.from(`${out}/`), LONG_RAW]);
    expect(await readFile(long, "utf8")).toBe("long raw");
    expect(await readFile(at(`${LONG}/${LONG}`), "utf8")).toBe("deep");
    expect(await readFile(at("new"), "utf8")).toBe("above");
  });

  test("has modes, owners and times to the nanosecond", async () => {
    const setuid = await lstat(at("setuid"), { bigint: true });
    expect([setuid.mode & 0o7777n, setuid.uid, setuid.gid]).toEqual([0o6755n, 1000n, 1001n]);
    expect(setuid.mtimeNs).toBe(BigInt(MTIME_SECONDS) * 1_000_000_000n + 123_456_789n);
    const root = await lstat(out, { bigint: true });
    expect([root.mode & 0o7777n, root.uid, root.gid]).toEqual([0o1777n, 70_000n, 4_000_000_000n]);
    expect((await lstat(at("old"), { bigint: true })).mtimeNs).toBe(-1_500_000_000n);
    expect((await lstat(at("empty"))).mode & 0o7777).toBe(0);
    expect((await lstat(at("sub"))).mode & 0o7777).toBe(0o700);
  });

  test("has hard links within the layer, and unchanged symlinks", async () => {
    const inodes = await Promise.all(["one", "sub/two", "three"].map(async (name) => (await lstat(at(name))).ino));
    expect(new Set(inodes).size).toBe(1);
    expect(await readFile(at("three"), "utf8")).toBe("linked");
    expect(await readlink(at("link"))).toBe("sub/two");
    expect(await readlink(at("long-link"))).toBe(`/${LONG}/${LONG}`);
  });

  test("has devices, fifos and extended attributes", async () => {
    expect((await lstat(at("fifo"))).isFIFO()).toBe(true);
    const device = await lstat(at("null"));
    expect([device.isCharacterDevice(), device.rdev]).toEqual([true, 0x103]);
    expect((await xattrOf(at("attributes"), "user.text")).toString()).toBe("value");
    expect(await xattrOf(at("attributes"), "user.binary")).toEqual(binary);
    expect((await xattrOf(at("attributes"), "user.a=b%")).toString()).toBe("odd key");
    expect((await xattrOf(at("sub/attributes"), "user.on-directory")).toString()).toBe("yes");
  });

  test("has the holes of the image", async () => {
    const sparse = await readFile(at("sparse"));
    const expected = Buffer.alloc(10_000_001);
    expected.write("first", 1_048_576);
    expected.fill("s", 3_145_728 + 4096, 3_145_728 + 4096 + 8192);
    expect(sparse.equals(expected)).toBe(true);
    expect((await lstat(at("sparse"))).blocks * 512).toBeLessThan(65_536);
    const hole = await lstat(at("hole"));
    expect([hole.size, hole.blocks]).toEqual([BIG_HOLE_BYTES, 0]);
    expect((await readFile(at("tail"))).subarray(65_536).toString()).toBe("tail");
    expect((await readFile(at("large"))).equals(Buffer.alloc(1_000_001, "0123456789"))).toBe(true);
  });
});

describe("an archive", () => {
  for (const how of [["--xattrs-include=*"], ["--acls"]]) {
    test(`has access control lists for tar ${how}`, async () => {
      const out = await extract((await archive("/t/sub")).bytes, ...how);
      expect(await xattrOf(join(out, "acl"), "system.posix_acl_access")).toEqual(ACL);
      expect(await xattrOf(join(out, "acl"), "system.posix_acl_default")).toEqual(DEFAULT_ACL);
      expect((await lstat(join(out, "acl"))).mode & 0o777).toBe(0o670);
    });
  }

  test("of one file contains this file alone, under the requested name", async () => {
    const out = await extract((await archive("/t/link")).bytes);
    expect(await readdir(out)).toEqual(["link"]);
    expect(await readFile(join(out, "link"), "utf8")).toBe("linked");
  });

  test("of the root contains everything", async () => {
    const listing = await tar(["-t"], (await archive("/")).bytes);
    expect(listing).toStartWith("./\n./t/\n");
  });

  test("is compressed only for clients that accept it", async () => {
    const plain = (await archive("/t/sub")).bytes;
    const url = `${api.url}/v1/inspect/${image}/archive?path=/t/sub`;
    const ask = (encoding: string) =>
      fetch(url, {
        headers: { authorization: `Bearer ${api.token}`, "accept-encoding": encoding },
        decompress: false,
      });
    for (const encoding of ["gzip", "br, gzip;q=0.5", "*", "x-gzip"]) {
      const response = await ask(encoding);
      expect([encoding, response.headers.get("content-encoding")]).toEqual([encoding, "gzip"]);
      expect(gunzipSync(await response.bytes()).equals(plain)).toBe(true);
      expect(response.headers.get("vary")).toBe("accept-encoding");
    }
    for (const encoding of ["gzip;q=0", "br", "identity", "*;q=0", "gzip;q=0, *"]) {
      const response = await ask(encoding);
      expect([encoding, response.headers.get("content-encoding")]).toEqual([encoding, null]);
      expect(Buffer.from(await response.bytes()).equals(plain)).toBe(true);
    }
  });

  test("has the same bytes every time", async () => {
    expect((await archive("/t/sub")).bytes).toEqual((await archive("/t/sub")).bytes);
  });

  test("answers HEAD without reading, and wrong paths as every inspection does", async () => {
    const head = await api.call("HEAD", `/v1/inspect/${image}/archive?path=/t`);
    expect([head.status, head.bytes.length]).toEqual([200, 0]);
    errorOf(await archive("/nowhere"), "not_found");
    errorOf(await archive("relative"), "invalid_path");
    errorOf(await api.call("GET", `/v1/inspect/${image}/archive`), "validation_error");
  });

  describe("of an image that is deleted meanwhile", () => {
    const noise = randomBytes(8_000_000);
    const headers = () => ({ authorization: `Bearer ${api.token}`, "accept-encoding": "identity" });
    const address = (id: string) => `${api.url}/v1/inspect/${id}/archive?path=/`;
    const layers = async () => (await listLayers(api.parts.layout)).size;
    const added = () => api.addImage([[1, 2, 3, 4].map((name) => ({ path: `f${name}`, type: "f", content: noise }))]);
    const remove = async (id: string) => (await api.call("DELETE", `/v1/images/${id}`)).status;

    test("is complete, and a later pass removes the layer", async () => {
      const before = await layers();
      const id = await added();
      const response = await fetch(address(id), { headers: headers() });
      const reader = (response.body as ReadableStream<Uint8Array>).getReader();
      const first = await reader.read();
      expect(await remove(id)).toBe(204);
      expect(await layers()).toBe(before + 1);
      const chunks = [Buffer.from(first.value ?? [])];
      for (let step = await reader.read(); !step.done; step = await reader.read()) chunks.push(Buffer.from(step.value));
      const out = await extract(Buffer.concat(chunks));
      for (const name of ["f1", "f2", "f3", "f4"]) expect((await readFile(join(out, name))).equals(noise)).toBe(true);
      await until("its layer is removed", async () => (await layers()) === before);
    });

    test("holds no layer without a reader: after HEAD, and after the client has left", async () => {
      const before = await layers();
      const asked = await added();
      expect((await fetch(address(asked), { method: "HEAD", headers: headers() })).status).toBe(200);
      expect(await remove(asked)).toBe(204);
      await until("its layer is removed", async () => (await layers()) === before);
      const left = await added();
      const leaving = new AbortController();
      const response = await fetch(address(left), { headers: headers(), signal: leaving.signal });
      await response.body?.getReader().read();
      leaving.abort();
      expect(await remove(left)).toBe(204);
      await until("its layer is removed", async () => (await layers()) === before);
    });
  });
});
