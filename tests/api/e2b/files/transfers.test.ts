/** Files of a sandbox by HTTP, as clients of E2B read and write them, with a native agent whose root is that of this host. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { gunzipSync, gzipSync } from "node:zlib";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import { type E2bSandbox, E2bScene } from "../../../support/e2b/scene.ts";
import { until } from "../../../support/waiting.ts";

/** A user of the guest, who is not the default one. */
const ANN = { name: "ann", uid: 1234, gid: 567 };

const accounts = new Accounts();
let scene: E2bScene;
let sandbox: E2bSandbox;
let root: string;
/** A file of the guest, as this host sees it. */
const here = (path: string) => join(root, path);
const at = (name: string) => `/${name}`;
const query = (path: string, more: Readonly<Record<string, string>> = {}) =>
  `/files?${new URLSearchParams({ path, ...more })}`;
const raw = { "content-type": "application/octet-stream" };

beforeAll(async () => {
  scene = await E2bScene.start({}, { accounts });
  sandbox = await scene.open();
  root = sandbox.machine.root;
  mkdirSync(here("etc"));
  writeFileSync(here("etc/passwd"), "root:x:0:0::/root:/bin/sh\nann:x:1234:567::/home/ann:/bin/sh\n");
  for (const [path, device] of [
    ["proc", null],
    ["null", "3"],
  ] as const) {
    if (device === null) mkdirSync(here(path));
    else execFileSync("mknod", [here(path), "c", "1", device]);
  }
}, 120_000);
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

/** Sends a form, whose parts have other fields than a browser would give them. */
async function form(
  path: string,
  parts: readonly (readonly [head: string, content: string | Uint8Array])[],
  more = {},
) {
  const pieces = parts.flatMap(([head, content]) => [
    Buffer.from(`--edge\r\nContent-Disposition: form-data; ${head}\r\n\r\n`),
    Buffer.from(content),
    Buffer.from("\r\n"),
  ]);
  const body = Buffer.concat([...pieces, Buffer.from("--edge--\r\n")]);
  return await sandbox.envd("POST", path, {
    body,
    headers: { "content-type": "multipart/form-data; boundary=edge", ...more },
  });
}

describe("a download", () => {
  test("gives the bytes with their name and time", async () => {
    writeFileSync(here("a b.txt"), "some text");
    utimesSync(here("a b.txt"), 1_700_000_000, 1_700_000_000);
    const { status, text, headers } = await sandbox.envd("GET", query(at("a b.txt")));
    expect([status, text]).toEqual([200, "some text"]);
    expect(headers.get("content-disposition")).toBe('inline; filename="a b.txt"');
    expect(headers.get("last-modified")).toBe("Tue, 14 Nov 2023 22:13:20 GMT");
    expect(headers.get("vary")).toBe("Accept-Encoding");
    symlinkSync("a b.txt", here("link"));
    const linked = await sandbox.envd("GET", query(at("link")));
    expect([linked.text, linked.headers.get("content-disposition")]).toEqual(["some text", "inline; filename=link"]);
    writeFileSync(here("ü'"), "");
    const other = await sandbox.envd("GET", query(at("ü'")));
    expect([other.text, other.headers.get("content-disposition")]).toEqual(["", "inline; filename*=utf-8''%C3%BC%27"]);
  });

  test("may be compressed, unless a part of it is requested", async () => {
    const content = "0123456789".repeat(20_000);
    writeFileSync(here("large"), content);
    const get = async (headers: Readonly<Record<string, string>>) => {
      const response = await fetch(`${scene.url}${query(at("large"))}`, {
        headers: { ...sandbox.headers(), ...headers },
        decompress: false,
      } as RequestInit);
      const bytes = Buffer.from(await response.arrayBuffer());
      return { status: response.status, encoding: response.headers.get("content-encoding"), bytes, response };
    };
    const packed = await get({ "accept-encoding": "gzip, br" });
    expect([packed.status, packed.encoding]).toEqual([200, "gzip"]);
    expect(gunzipSync(packed.bytes).toString()).toBe(content);
    const part = await get({ "accept-encoding": "gzip", range: "bytes=10-12" });
    expect([part.status, part.encoding, part.bytes.toString()]).toEqual([206, null, "012"]);
    expect(part.response.headers.get("content-range")).toBe("bytes 10-12/200000");
    const plain = await get({ "accept-encoding": "identity" });
    expect([plain.status, plain.encoding, plain.bytes.byteLength]).toEqual([200, null, 200_000]);
    expect((await get({ "accept-encoding": "br, identity;q=0" })).status).toBe(406);
    expect((await get({ "accept-encoding": "gzip, identity;q=0", range: "bytes=0-1" })).status).toBe(406);
    expect((await get({ "accept-encoding": "identity", range: "bytes=999999-" })).status).toBe(416);
    const modified = plain.response.headers.get("last-modified") ?? "";
    expect((await get({ "if-modified-since": modified })).status).toBe(304);
  });

  test("reads files without a size to their end", async () => {
    execFileSync("mount", ["-t", "proc", "proc", here("proc")]);
    using _proc = { [Symbol.dispose]: () => void execFileSync("umount", [here("proc")]) };
    const { status, text } = await sandbox.envd("GET", query("/proc/sys/kernel/random/boot_id"));
    expect([status, text]).toEqual([200, readFileSync("/proc/sys/kernel/random/boot_id", "utf8")]);
  });

  test("of another thing than a file, or for an unknown user, is refused in the words that clients know", async () => {
    mkdirSync(here("directory"));
    const answers = [
      await sandbox.envd("GET", query(at("directory"))),
      await sandbox.envd("GET", query(at("none"))),
      await sandbox.envd("GET", query(at("none"), { username: "ghost" })),
      await sandbox.envd("GET", query("~ann/x")),
      await sandbox.envd("GET", query("/null")),
    ];
    expect(answers.map(({ status, json }) => [status, json])).toEqual([
      [400, { code: 400, message: `path '${at("directory")}' is a directory` }],
      [404, { code: 404, message: `path '${at("none")}' does not exist` }],
      [401, { code: 401, message: "invalid username: 'ghost'" }],
      [400, { code: 400, message: "cannot expand user-specific home dir" }],
      [400, { code: 400, message: expect.any(String) }],
    ]);
  });
});

describe("an upload of raw bytes", () => {
  test("makes a file with what is missing above, for the user", async () => {
    const path = at("up/x/file");
    const answer = await sandbox.envd("POST", query(path, { username: ANN.name }), { body: "content", headers: raw });
    expect([answer.status, answer.json]).toEqual([200, [{ path, name: "file", type: "file" }]]);
    expect(readFileSync(here(path), "utf8")).toBe("content");
    for (const [name, mode] of [
      ["up", 0o755],
      ["up/x", 0o755],
      ["up/x/file", 0o644],
    ] as const) {
      const status = statSync(here(name));
      expect([status.uid, status.gid, status.mode & 0o777]).toEqual([ANN.uid, ANN.gid, mode]);
    }
  });

  test("keeps an existing file, and gives it to the user", async () => {
    writeFileSync(here("kept"), "a longer content");
    const before = statSync(here("kept"));
    const { status } = await sandbox.envd("POST", query(at("kept"), { username: ANN.name }), {
      body: "new",
      headers: raw,
    });
    const after = statSync(here("kept"));
    expect([status, readFileSync(here("kept"), "utf8"), after.ino, after.uid]).toEqual([
      200,
      "new",
      before.ino,
      ANN.uid,
    ]);
  });

  test("may be compressed and without a length, and is expanded as it is written", async () => {
    const content = Buffer.alloc(8 << 20, "some bytes ");
    const packed = gzipSync(content);
    const body = new ReadableStream({
      start(controller) {
        for (let offset = 0; offset < packed.byteLength; offset += 1000)
          controller.enqueue(packed.subarray(offset, offset + 1000));
        controller.close();
      },
    });
    const headers = { ...raw, "content-encoding": "gzip" };
    expect((await sandbox.envd("POST", query(at("packed")), { body, headers })).status).toBe(200);
    expect(readFileSync(here("packed")).equals(content)).toBeTrue();
    for (const wrong of [packed.subarray(0, 500), Buffer.from("no gzip")]) {
      const answer = await sandbox.envd("POST", query(at("wrong")), { body: wrong, headers });
      expect([answer.status, answer.json.message]).toEqual([400, expect.stringContaining("not valid gzip")]);
    }
    const other = { ...raw, "content-encoding": "br" };
    expect((await sandbox.envd("POST", query(at("wrong")), { body: "x", headers: other })).status).toBe(400);
  });

  test("that expands beyond the disk of the sandbox ends there", async () => {
    const { resources } = scene.api.parts.service.e2b.find(sandbox.uuid)?.sandbox ?? {};
    const zeros = gzipSync(Buffer.alloc(64 << 20));
    const count = Math.ceil((resources?.diskBytes ?? 0) / (64 << 20)) + 1;
    // Members of gzip may follow each other.
    const body = Buffer.concat(Array.from({ length: count }, () => zeros));
    const headers = { ...raw, "content-encoding": "gzip" };
    const answer = await sandbox.envd("POST", query(at("bomb")), { body, headers });
    expect([answer.status, answer.json.message]).toEqual([507, "not enough disk space available"]);
  });

  test("needs a path that can be a file", async () => {
    mkdirSync(here("taken"));
    writeFileSync(here("flat"), "");
    const refusals = [
      await sandbox.envd("POST", "/files", { body: "x", headers: raw }),
      await sandbox.envd("POST", query(at("taken")), { body: "x", headers: raw }),
      await sandbox.envd("POST", query(at("flat/below")), { body: "x", headers: raw }),
      await sandbox.envd("POST", query(at("other")), { body: "x", headers: { "content-type": "text/plain" } }),
    ];
    expect(refusals.map(({ status, json }) => [status, json.code])).toEqual(refusals.map(() => [400, 400]));
    expect(existsSync(here("other"))).toBeFalse();
  });
});

describe("metadata", () => {
  test("are attributes, and those of the last upload alone", async () => {
    const upload = async (headers: Readonly<Record<string, string>>) =>
      await sandbox.envd("POST", query(at("noted")), { body: "x", headers: { ...raw, ...headers } });
    const first = await upload({ "X-Metadata-Author": "ann", "x-metadata-purpose": "a test" });
    expect(first.json[0].metadata).toEqual({ author: "ann", purpose: "a test" });
    execFileSync("setfattr", ["-n", "user.other", "-v", "stays", here("noted")]);
    expect((await upload({ "x-metadata-author": "bob" })).json[0].metadata).toEqual({ author: "bob" });
    const [last] = (await upload({})).json;
    expect(last).toEqual({ path: at("noted"), name: "noted", type: "file" });
    expect(execFileSync("getfattr", ["--absolute-names", here("noted")], { encoding: "utf8" })).toContain("user.other");
  });

  test("beyond the limits of attributes are refused before anything is written", async () => {
    for (const [name, value] of [
      ["x-metadata-key", "v".repeat(4096)],
      [`x-metadata-${"k".repeat(247)}`, "v"],
      ["x-metadata-key", "\u00e9"],
    ] as const) {
      const answer = await sandbox.envd("POST", query(at("unnoted")), {
        body: "x",
        headers: { ...raw, [name]: value },
      });
      expect([answer.status, answer.json.message]).toEqual([400, expect.stringContaining("invalid metadata")]);
    }
    expect(existsSync(here("unnoted"))).toBeFalse();
  });
});

describe("an upload of a form", () => {
  test("has a file in each part, by its whole name", async () => {
    const names = [at("form/one"), at('form/"two"'), at("form/ü")];
    const answer = await form("/files", [
      ['name="note"', "no file"],
      [`name="file"; filename="${names[0]}"`, "1"],
      [`name=file; filename="${names[1]?.replaceAll('"', '\\"')}"`, "2\r\n--edg\r\n-"],
      [`filename*=UTF-8''${encodeURIComponent(names[2] ?? "")}; name="file"`, ""],
    ]);
    expect([answer.status, answer.json.map(({ path }: { path: string }) => path)]).toEqual([200, names]);
    expect(names.map((name) => readFileSync(here(name), "utf8"))).toEqual(["1", "2\r\n--edg\r\n-", ""]);
  });

  test("with a path in the query is one file", async () => {
    const answer = await form(query(at("one")), [['name="file"; filename="/elsewhere"', "1"]]);
    expect([answer.status, answer.json]).toEqual([200, [{ path: at("one"), name: "one", type: "file" }]]);
    const twice = await form(query(at("one")), [
      ['name="file"; filename="a"', "first"],
      ['name="file"; filename="b"', "second"],
    ]);
    expect([twice.status, twice.json.message]).toEqual([
      400,
      expect.stringContaining("multiple files to the same path"),
    ]);
    expect(readFileSync(here("one"), "utf8")).toBe("first");
  });

  test("of a client that uses the interface of browsers", async () => {
    const fields = new FormData();
    fields.append("file", new Blob([new Uint8Array(300_000).fill(13)]), at("blob"));
    const request = new Response(fields);
    const headers = { "content-type": request.headers.get("content-type") ?? "" };
    expect(
      (await sandbox.envd("POST", "/files", { body: new Uint8Array(await request.arrayBuffer()), headers })).status,
    ).toBe(200);
    expect(readFileSync(here("blob")).equals(Buffer.alloc(300_000, 13))).toBeTrue();
  });

  test("that is malformed is refused", async () => {
    const send = async (body: string, type = "multipart/form-data; boundary=edge") =>
      await sandbox.envd("POST", "/files", { body, headers: { "content-type": type } });
    const head = `Content-Disposition: form-data; name="file"; filename="${at("half")}"`;
    for (const body of [
      "",
      "--edge\r\n",
      `--edge\r\n${head}\r\n\r\nhalf`,
      `--edge\r\n${"x: y\r\n".repeat(4000)}\r\n`,
      `--edge\r\n${"x".repeat(1 << 20)}`,
      `--edge\r\n${head.replace(/; filename.*/, "")}\r\n\r\nx\r\n--edge--`,
      `--edgewise\r\n\r\n\r\n--edge--`,
    ]) {
      const { status, json } = await send(body);
      expect([status, json.code]).toEqual([400, 400]);
    }
    expect((await send("x", "multipart/form-data")).status).toBe(400);
    expect((await send("x", `multipart/form-data; boundary=${"e".repeat(71)}`)).status).toBe(400);
  });

  test("of more parts than it may have ends there", async () => {
    const parts = Array.from({ length: 4097 }, () => ['name="x"', ""] as const);
    const { status, json } = await form("/files", parts);
    expect([status, json.message]).toEqual([400, expect.stringContaining("more than 4096 parts")]);
  });
});

describe("a client that stalls", () => {
  const inUse = () => accounts.used("alice", "guestFiles") + accounts.used("alice", "inputs");

  test("holds its own upload only, until it leaves", async () => {
    const left = new AbortController();
    const body = new ReadableStream({ start: (controller) => controller.enqueue(Buffer.from("half")) });
    const upload = fetch(`${scene.url}${query(at("stalled"))}`, {
      ...{ method: "POST", body, signal: left.signal },
      headers: { ...sandbox.headers(), ...raw },
    }).catch((error: Error) => error.name);
    await until("the upload is under way", () => existsSync(here("stalled")) && inUse() > 0);
    expect((await sandbox.envd("GET", query("/etc/passwd"))).status).toBe(200);
    left.abort();
    expect(await upload).toBe("AbortError");
    await until("its places are free", () => inUse() === 0);
  });

  test("holds its own download only, in bounded memory, until it leaves", async () => {
    writeFileSync(here("endless"), Buffer.alloc(64 << 20, "x"));
    const response = await fetch(`${scene.url}${query(at("endless"))}`, {
      headers: { ...sandbox.headers(), "accept-encoding": "identity" },
    });
    const reader = response.body?.getReader();
    expect((await reader?.read())?.done).toBeFalse();
    expect(inUse()).toBeGreaterThan(0);
    expect((await sandbox.envd("GET", query("/etc/passwd"))).status).toBe(200);
    await reader?.cancel();
    await until("its places are free", () => inUse() === 0);
  });
});

describe("files that are joined", () => {
  test("become one, and are gone", async () => {
    mkdirSync(here("pieces"));
    writeFileSync(here("pieces/1"), "first ");
    writeFileSync(here("pieces/2"), "second");
    const destination = at("joined/whole");
    const sources = [at("pieces/1"), at("pieces/2"), at("pieces/1")];
    const compose = async (body: object) => await sandbox.envd("POST", "/files/compose", { json: body });
    const { status, json } = await compose({ source_paths: sources, destination, username: ANN.name });
    expect([status, json]).toEqual([200, { path: destination, name: "whole", type: "file" }]);
    expect([readFileSync(here(destination), "utf8"), readdirSync(here("pieces"))]).toEqual(["first secondfirst ", []]);
    expect([statSync(here(destination)).uid, statSync(here(destination)).mode & 0o777]).toEqual([ANN.uid, 0o644]);
    for (const body of [
      {},
      { source_paths: [], destination },
      { source_paths: [destination], destination },
      { source_paths: [at("flat")] },
      { source_paths: [at("flat")], destination, username: "ghost" },
      { source_paths: [at("none")], destination },
    ])
      expect((await compose(body)).status).toBeOneOf([400, 401, 404]);
    expect(readFileSync(here(destination), "utf8")).toBe("first secondfirst ");
  });
});

test("the environment of the sandbox", async () => {
  const other = await scene.open({ env: { A: "b" } });
  expect((await other.envd("GET", "/envs")).json).toMatchObject({ A: "b" });
});

test("the latest figures of the sandbox", async () => {
  const { status, json } = await sandbox.envd("GET", "/metrics");
  expect([status, Object.keys(json).sort()]).toEqual([
    200,
    [
      "cpu_count",
      "cpu_used_pct",
      "disk_total",
      "disk_used",
      "mem_cache",
      "mem_total",
      "mem_total_mib",
      "mem_used",
    ].concat(["mem_used_mib", "ts"]),
  ]);
  expect(Object.values(json).every((value) => typeof value === "number" && value >= 0)).toBeTrue();
});

test.each(["/init", "/freeze", "/unfreeze", "/fsfreeze", "/fsthaw", "/collapse", "/upgrade"])(
  "%s is not there",
  async (path) => {
    expect((await sandbox.envd("POST", path, { json: {} })).status).toBeOneOf([401, 404]);
  },
);
