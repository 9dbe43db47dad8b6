import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { UNKNOWN_UUID } from "../support/api/samples.ts";
import { Contree, contreeError } from "../support/contree/contree.ts";
import { contreeEvents } from "../support/contree/events.ts";
import { type Request, ran } from "../support/contree/runs.ts";

// A busy host boots an emulated machine in many times the usual three seconds.
setDefaultTimeout(180_000);

let contree: Contree;
beforeAll(async () => {
  contree = await Contree.start({ tag: "registry.example.com:5000/base" });
});
afterAll(() => contree[Symbol.asyncDispose]());

const post = (request: Request) =>
  contree.call("POST", "/instances", { json: { image: contree.image, disposable: true, ...request } });
const run = (request: Request) => ran(contree, request);
const shell = (command: string, more: Request = {}) => run({ command, shell: true, ...more });

describe("POST /instances", () => {
  test("answers the request with its defaults, and the id of the operation", async () => {
    const answer = await post({ image: "tag:registry.example.com:5000/base", command: "true", disposable: undefined });
    expect(answer.status).toBe(201);
    const { uuid, ...fields } = answer.json;
    expect(answer.headers.get("location")).toBe(`/contree/v1/operations/${uuid}`);
    expect(fields).toMatchObject({
      ...{ image: contree.image, command: "true", args: [], shell: false, env: {}, cwd: "", uid: 0, gid: 0 },
      ...{ preserve_env: false, preserve_cwd: false, hostname: "linuxkit", disposable: false, files: {} },
      ...{ stdin: { value: "", encoding: "ascii", close: true }, truncate_output_at: 1_048_576, timeout: 3600 },
    });
    await contreeEvents(contree, uuid, "?follow=1");
  });

  test("null, unknown and empty fields are ignored", async () => {
    const nothing = { args: null, shell: null, env: null, cwd: null, uid: null, gid: null, timeout: null, stdin: null };
    const more = { files: null, hostname: null, networking: null, resources_limits: null, truncate_output_at: null };
    const request = { ...nothing, ...more, preserve_env: null, preserve_cwd: null, disposable: null, result: null };
    const { out, operation } = await run({ command: "hostname", ...request, extra: { a: 1 } });
    expect([out, operation.metadata.cwd, operation.metadata.timeout]).toEqual(["linuxkit\n", "", 3600]);
    expect((await run({ command: "pwd", cwd: "", hostname: "" })).out).toBe("/\n");
  });

  test("a command is looked up in PATH, and has no shell", async () => {
    expect(await run({ command: "echo", args: ["$HOME", "a b"] })).toMatchObject({ out: "$HOME a b\n", code: 0 });
    expect(await run({ command: "/bin/busybox", args: ["echo", "x"] })).toMatchObject({ out: "x\n" });
    expect(await run({ command: "no-such-command" })).toMatchObject({ code: 127, signal: -1 });
    expect(await run({ command: "/etc" })).toMatchObject({ code: 126 });
  });

  test("arguments after an expression are words of it", async () => {
    const request = { args: ["-s", "--", "a b", "it's", "$HOME", ""], stdin: { value: 'echo "$#:$1:$2:$3:$4"\n' } };
    expect((await shell("/bin/sh", request)).out).toBe("4:a b:it's:$HOME:\n");
    expect((await shell("echo one two;", { args: [] })).out).toBe("one two\n");
  });

  test("without a command, a shell reads standard input", async () => {
    for (const more of [{}, { shell: true }]) {
      expect((await run({ command: "", stdin: { value: "echo from $0 | tr a-z A-Z" }, ...more })).out).toBe(
        "FROM /BIN/SH\n",
      );
    }
  });

  test("SHELL is the shell", async () => {
    expect((await shell("echo $0", { env: { SHELL: "/bin/ash" } })).out).toBe("/bin/ash\n");
    expect((await shell("echo $0")).out).toBe("/bin/sh\n");
  });

  test.each([
    ["plain", { value: "a\nb" }, "a\nb"],
    ["ascii with control characters", { value: "\u0000\u001b[0m\u007f", encoding: "ascii" }, "\u0000\u001b[0m\u007f"],
    ["text that is not ASCII", { value: "café \u{1f600}", encoding: "ascii" }, "café \u{1f600}"],
    ["text that looks encoded", { value: "base64:aGk=" }, "base64:aGk="],
    ["base64", { value: Buffer.from("caf\u00e9\u0000").toString("base64"), encoding: "base64" }, "caf\u00e9\u0000"],
    ["empty base64", { value: "", encoding: "base64" }, ""],
    ["with fields of a stream", { value: "x", encoding: null, truncated: false, close: true }, "x"],
  ])("standard input: %s", async (_, stdin, expected) => {
    expect((await run({ command: "cat", stdin })).out).toBe(expected);
  });

  test("10 MiB of standard input arrive", async () => {
    const value = Buffer.alloc(10_485_760, "0123456789abcdef").toString("base64");
    const { out } = await shell("sha256sum; echo $?", { stdin: { value, encoding: "base64" } });
    const digest = new Bun.CryptoHasher("sha256").update(Buffer.from(value, "base64")).digest("hex");
    expect(out).toBe(`${digest}  -\n0\n`);
  });

  test("files have owners and modes in every spelling", async () => {
    const { json } = await contree.call("POST", "/files", {
      body: "content",
      headers: { "content-type": "application/octet-stream" },
    });
    const file = { uuid: json.uuid };
    const { out } = await shell("cat /d/a; stat -c '%a %u %g' /d/a /d/b /d/c /d/e /d/f", {
      files: {
        "/d/a": file,
        "/d/b": { ...file, mode: "0o755", uid: 1, gid: 2 },
        "/d/c": { ...file, mode: "0o100600", uid: null },
        "/d/e": { ...file, mode: "100640" },
        "/d/f": { ...file, mode: 0o4711 },
      },
    });
    expect(out.split("\n")).toEqual(["content644 0 0", "755 1 2", "600 0 0", "640 0 0", "4711 0 0", ""]);
  });

  test("a user, a directory that is made, and a limit of output", async () => {
    const { out, operation } = await shell("id -u; id -g; pwd; head -c 1000 /dev/zero | tr '\\0' x", {
      ...{ uid: 1000, gid: 100, cwd: "/made/here", truncate_output_at: 40 },
    });
    expect(out).toBe(`1000\n100\n/made/here\n${"x".repeat(20)}`);
    expect(operation.metadata.result.stdout.truncated).toBe(true);
    expect(operation.metadata.result.stderr.truncated).toBe(false);
    expect(operation.metadata.cwd).toBe("/made/here");
  });

  test("limits above those of the operator are lowered to them", async () => {
    const request = { timeout: 1_000_000, resources_limits: { max_layer_bytes: 1e15 } };
    const { operation } = await shell("true", request);
    expect(operation.metadata.timeout).toBe(3600);
    expect(operation.metadata.resources_limits.max_layer_bytes).toBeLessThan(1e15);
  });

  test("the time limit counts from the request, and the result is there before it", async () => {
    const timeout = 20;
    const { operation, out } = await shell("echo begun; sleep 1000", { timeout, disposable: false });
    expect(out).toBe("begun\n");
    expect(operation.metadata).toMatchObject({ timeout, result: { state: { timed_out: true, signal: 9 } } });
    expect(operation.result.image).toBe(contree.image);
    const { created_at, finished_at } = (await (
      await contree.appliance.fetch(`/operations/${operation.uuid}`)
    ).json()) as { created_at: string; finished_at: string };
    expect(Date.parse(finished_at) - Date.parse(created_at)).toBeLessThan(timeout * 1000);
    const events = await contreeEvents(contree, operation.uuid);
    expect(events.find(({ type }) => type === "spawn")?.data).toMatchObject({ timeout });
  });

  test("without the operator's permission a run has no network, and no error", async () => {
    for (const networking of [{}, { enabled: true }, { enabled: false }, { enabled: null }]) {
      expect(await shell("ls /sys/class/net", { networking })).toMatchObject({ out: "lo\n", code: 0 });
    }
  });

  test("variables and the directory of an image are kept on request", async () => {
    const first = await shell("true", {
      ...{ env: { A: "1", B: "two words", C: "" }, preserve_env: true },
      ...{ cwd: "/work", preserve_cwd: true, disposable: false },
    });
    const image = first.operation.result.image;
    expect(image).not.toBe(contree.image);
    const then = await shell('echo "$A:$B:$(env | grep -c ^C=):$PWD"', { image });
    expect(then.out).toBe("1:two words:0:/work\n");
    const without = await run({ image, command: "env" });
    expect(without.out).not.toContain("B=two");
    const unset = await shell("env | grep -E '^[ABD]=' | sort", { image, env: { A: null, B: "", D: "" } });
    expect(unset.out).toBe("B=\nD=\n");
    const gone = await shell("true", { image, env: { A: null, B: "" }, preserve_env: true, disposable: false });
    const left = await shell("env | grep -E '^[AB]='; pwd", { image: gone.operation.result.image });
    expect(left.out).toBe("/work\n");
  });
});

describe("an invalid request", () => {
  const FILE = { uuid: UNKNOWN_UUID };
  test.each([
    [{ command: undefined }, "command"],
    [{ command: 1 }, "command"],
    [{ command: "a\u0000b" }, "command"],
    [{ command: "x".repeat(200_000) }, "command"],
    [{ image: undefined }, "image"],
    [{ image: "busybox" }, "image"],
    [{ image: "tag:" }, "image"],
    [{ image: "tag:.x" }, "image"],
    [{ image: null }, "image"],
    [{ args: "a" }, "args"],
    [{ args: [1] }, "args"],
    [{ shell: "yes" }, "shell"],
    [{ env: ["A=1"] }, "env"],
    [{ env: { A: 1 } }, "env"],
    [{ env: { "A=B": "x" } }, "env"],
    [{ env: { "": "x" } }, "env"],
    [{ env: { A: "\u0000" } }, "env"],
    [{ cwd: 1 }, "cwd"],
    [{ uid: -1 }, "uid"],
    [{ uid: 1.5 }, "uid"],
    [{ gid: 4_294_967_295 }, "gid"],
    [{ hostname: "_" }, "hostname"],
    [{ hostname: "x".repeat(65) }, "hostname"],
    [{ disposable: 1 }, "disposable"],
    [{ tag: "a b" }, "tag"],
    [{ tag: "" }, "tag"],
    [{ tag: "after", disposable: true }, "tag"],
    [{ preserve_env: "" }, "preserve_env"],
    [{ preserve_cwd: 0 }, "preserve_cwd"],
    [{ timeout: 0 }, "timeout"],
    [{ timeout: -5 }, "timeout"],
    [{ timeout: 1.5 }, "timeout"],
    [{ timeout: "60" }, "timeout"],
    [{ truncate_output_at: -1 }, "truncate_output_at"],
    [{ truncate_output_at: 10_485_761 }, "truncate_output_at"],
    [{ stdin: "text" }, "stdin"],
    [{ stdin: {} }, "value"],
    [{ stdin: { value: null } }, "value"],
    [{ stdin: { value: "x", encoding: "utf8" } }, "encoding"],
    [{ stdin: { value: "@", encoding: "base64" } }, "stdin"],
    [{ stdin: { value: "\ud800" } }, "stdin"],
    [{ stdin: { value: "x", close: "no" } }, "close"],
    [{ files: [] }, "files"],
    [{ files: { "/x": "uuid" } }, "file"],
    [{ files: { "/x": { uuid: "x" } } }, "uuid"],
    [{ files: { "/x": { ...FILE, mode: "rwx" } } }, "mode"],
    [{ files: { "/x": { ...FILE, mode: "0888" } } }, "mode"],
    [{ files: { "/x": { ...FILE, mode: -1 } } }, "mode"],
    [{ files: { "/x": { ...FILE, uid: "root" } } }, "uid"],
    [{ resources_limits: 5 }, "resources_limits"],
    [{ resources_limits: { max_layer_bytes: 0 } }, "max_layer_bytes"],
    [{ networking: true }, "networking"],
    [{ networking: { enabled: "yes" } }, "enabled"],
  ])("%j is 400, and says so", async (wrong, field) => {
    const text = contreeError(await post({ command: "true", ...wrong }), 400, "validation_error");
    expect(text).toContain(field);
  });

  test("impossible paths are 422", async () => {
    contreeError(await post({ command: "true", cwd: "relative" }), 422, "invalid_path");
    contreeError(await post({ command: "true", files: { "x/../y": FILE } }), 422, "invalid_path");
  });

  test("missing images and files are 404", async () => {
    contreeError(await post({ command: "true", image: UNKNOWN_UUID }), 404, "not_found");
    contreeError(await post({ command: "true", image: "tag:unknown" }), 404, "not_found");
    contreeError(await post({ command: "true", files: { "/x": FILE } }), 404, "not_found");
  });

  test("needs the scope, and a body of JSON", async () => {
    const token = await contree.appliance.createToken("tester", "--scope", "operations:read");
    contreeError(await contree.call("POST", "/instances", { json: {}, token }), 403, "forbidden");
    contreeError(
      await contree.call("POST", "/instances", { body: "{", token: contree.appliance.token }),
      400,
      "validation_error",
    );
    contreeError(await contree.call("POST", "/instances", { json: [] }), 400, "validation_error");
    contreeError(await contree.call("POST", "/instances", { json: null }), 400, "validation_error");
    contreeError(await contree.call("GET", "/instances"), 405, "method_not_allowed");
  });
});
