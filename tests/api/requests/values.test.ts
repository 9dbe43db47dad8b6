/** Values of fields and parameters that the interface refuses, and what it says about them. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Api, errorOf } from "../../support/api/api.ts";
import { OPEN, SPAWN, samples, UNKNOWN_UUID } from "../../support/api/samples.ts";

let api: Api;
let image = "";
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "matrix" });
});
afterAll(() => api[Symbol.asyncDispose]());

const WRONG: Readonly<Record<string, readonly unknown[]>> = {
  string: [1, true, null, [], {}],
  integer: ["1", 1.5, true, null, [], {}, 1e300],
  boolean: ["true", 1, 0, null, [], {}],
  object: ["a", 1, true, null],
  array: ["a", 1, true, null, {}, [1]],
};

describe.each([
  [
    "/v1/images/import",
    "POST",
    "images/import",
    { registry: "string", tag: "string", timeout: "integer", credentials: "object" },
  ],
  ["/v1/images/{uuid}/tag", "PATCH", "tag", { tag: "string" }],
  [
    "/v1/instances",
    "POST",
    "instances",
    {
      image: "string",
      command: "string",
      shell: "boolean",
      args: "array",
      env: "object",
      cwd: "string",
      uid: "integer",
      gid: "integer",
      timeout: "integer",
      files: "object",
      truncate_output_at: "integer",
      stdin: "string",
      stdin_open: "boolean",
      pty: "object",
      hostname: "string",
      disposable: "boolean",
      resources: "object",
    },
  ],
  [
    "/v1/sandboxes",
    "POST",
    "sandboxes",
    {
      image: "string",
      name: "string",
      timeout: "integer",
      on_timeout: "string",
      auto_resume: "boolean",
      env: "object",
      cwd: "string",
      user: "string",
      resources: "object",
      metadata: "object",
      files: "object",
      start: "object",
    },
  ],
] as const)("wrong types in %s", (path, method, _name, fields) => {
  test.each(Object.entries(fields))("%s must be a %s, and the message says so", async (field, type) => {
    const sample = samples({}).find((candidate) => candidate.path === path && candidate.method === method);
    for (const value of WRONG[type] ?? []) {
      const json = { ...(sample?.json as object), [field]: value };
      const error = errorOf(await api.call(method, path.replace("{uuid}", image), { json }), "validation_error");
      expect(error.message).toContain(field);
      expect(String(error.details["field"])).toStartWith(field);
    }
  });
});

describe("values out of bounds", () => {
  // spec: errors.400, images.import.registry, images.import.timeout, instances.timeout, instances.truncate_output_at
  // spec: instances.hostname, instances.files
  test.each([
    ["/v1/images/import", { registry: "registry.example.net/a", timeout: 0 }, "timeout"],
    ["/v1/images/import", { registry: "registry.example.net/a", timeout: 3601 }, "timeout"],
    ["/v1/images/import", { registry: "" }, "registry"],
    ["/v1/images/import", {}, "registry"],
    ["/v1/images/import", { registry: "registry.example.net/a", tag: "" }, "tag"],
    ["/v1/images/import", { registry: "registry.example.net/a", tag: "-a" }, "tag"],
    ["/v1/images/import", { registry: "registry.example.net/a", tag: "a b" }, "tag"],
    ["/v1/images/import", { registry: "registry.example.net/a", tag: "a".repeat(129) }, "tag"],
    ["/v1/images/import", { registry: "registry.example.net/a", credentials: { username: "u" } }, "credentials"],
    ["/v1/instances", { ...SPAWN, timeout: 0 }, "timeout"],
    ["/v1/sandboxes", { ...OPEN, timeout: 0 }, "timeout"],
    ["/v1/sandboxes", { ...OPEN, timeout: 86_401 }, "timeout"],
    ["/v1/sandboxes", { ...OPEN, idle_timeout: 0 }, "idle_timeout"],
    ["/v1/sandboxes", { ...OPEN, on_timeout: "stop" }, "on_timeout"],
    ["/v1/sandboxes", { ...OPEN, name: "" }, "name"],
    ["/v1/sandboxes", { ...OPEN, name: "A" }, "name"],
    ["/v1/sandboxes", { ...OPEN, name: "a-" }, "name"],
    ["/v1/sandboxes", { ...OPEN, name: "a".repeat(41) }, "name"],
    ["/v1/sandboxes", { ...OPEN, metadata: { a: 1 } }, "metadata"],
    ["/v1/sandboxes", { ...OPEN, metadata: { "": "a" } }, "metadata"],
    ["/v1/sandboxes", { ...OPEN, metadata: { a: "x".repeat(1025) } }, "metadata"],
    ["/v1/sandboxes", { ...OPEN, public_ports: [0] }, "public_ports"],
    ["/v1/sandboxes", { ...OPEN, public_ports: [80, 80] }, "public_ports"],
    ["/v1/sandboxes", { ...OPEN, public_ports: Array.from({ length: 65 }, (_, port) => port + 1) }, "public_ports"],
    ["/v1/sandboxes", { ...OPEN, user: "" }, "user"],
    ["/v1/sandboxes", { ...OPEN, user: "a\0" }, "user"],
    ["/v1/sandboxes", { ...OPEN, start: { command: "" } }, "start"],
    ["/v1/sandboxes", { ...OPEN, start: { command: "true", user: "a", uid: 1 } }, "user"],
    ["/v1/sandboxes", { ...OPEN, image: "HEAD" }, "image"],
    ["/v1/sandboxes", { ...OPEN, network: "all" }, "network"],
    ["/v1/sandboxes", { name: "dev" }, "image"],
    ["/v1/instances", { ...SPAWN, timeout: 3601 }, "timeout"],
    ["/v1/instances", { ...SPAWN, truncate_output_at: -1 }, "truncate_output_at"],
    ["/v1/instances", { ...SPAWN, truncate_output_at: 10_485_761 }, "truncate_output_at"],
    ["/v1/instances", { ...SPAWN, uid: -1 }, "uid"],
    ["/v1/instances", { ...SPAWN, gid: 4_294_967_295 }, "gid"],
    ["/v1/instances", { ...SPAWN, pty: {} }, "pty"],
    ["/v1/instances", { ...SPAWN, pty: { rows: 0, cols: 80 } }, "pty"],
    ["/v1/instances", { ...SPAWN, pty: { rows: 24, cols: 65_536 } }, "pty"],
    ["/v1/instances", { ...SPAWN, command: "" }, "command"],
    ["/v1/instances", { image: "tag:matrix" }, "command"],
    ["/v1/instances", { command: "true" }, "image"],
    ["/v1/instances", { ...SPAWN, image: "x" }, "image"],
    ["/v1/instances", { ...SPAWN, image: "tag:" }, "image"],
    ["/v1/instances", { ...SPAWN, image: `tag:${"a".repeat(129)}` }, "image"],
    ["/v1/instances", { ...SPAWN, hostname: "" }, "hostname"],
    ["/v1/instances", { ...SPAWN, hostname: "a b" }, "hostname"],
    ["/v1/instances", { ...SPAWN, hostname: "a".repeat(65) }, "hostname"],
    ["/v1/instances", { ...SPAWN, env: { "A\nB": 5 } }, "env"],
    ["/v1/instances", { ...SPAWN, files: { "/a\nb": 5 } }, "files"],
    ["/v1/instances", { ...SPAWN, files: { "/a": { uuid: "x" } } }, "files"],
    ["/v1/instances", { ...SPAWN, files: { "/a": { uuid: UNKNOWN_UUID, mode: "644" } } }, "mode"],
    ["/v1/instances", { ...SPAWN, files: { "/a": { uuid: UNKNOWN_UUID, mode: "0888" } } }, "mode"],
    ["/v1/instances", { ...SPAWN, resources: { vcpus: 0 } }, "vcpus"],
    ["/v1/instances", { ...SPAWN, resources: { vcpus: 5 } }, "vcpus"],
    ["/v1/instances", { ...SPAWN, resources: { memory_bytes: 1e15 } }, "memory_bytes"],
    ["/v1/instances", { ...SPAWN, stdin: "é" }, "stdin"],
  ])("%s %j", async (path, json, field) => {
    expect(errorOf(await api.call("POST", path, { json }), "validation_error").message).toContain(field);
  });

  test("a field inside another is named once", async () => {
    const wrong = {
      resources: { vcpus: 1, memory_bytes: 1.5 },
      files: { "/etc/x.y": { uuid: UNKNOWN_UUID, mode: "7" } },
    };
    for (const [field, message] of [
      ["resources", "resources.memory_bytes must be a positive integer"],
      ["files", "files./etc/x.y.mode must be four octal digits"],
      ["env", "env must be an object of strings"],
    ] as const) {
      const json = { ...SPAWN, ...(field === "env" ? { env: { a: 1 } } : { [field]: wrong[field] }) };
      expect(errorOf(await api.call("POST", "/v1/instances", { json }), "validation_error").message).toBe(message);
    }
  });

  // spec: images.list.limit, images.list.offset, operations.list.limit, operations.list.offset, images.list.since
  // spec: operations.list.since
  test.each(["/v1/images", "/v1/operations"])("limit and offset of %s", async (path) => {
    for (const limit of ["0", "1001", "-1", "abc", "1e2", "1.5", "", "%201", "+1"]) {
      const error = errorOf(await api.call("GET", `${path}?limit=${limit}`), "validation_error");
      expect(error.message).toBe("limit must be an integer from 1 to 1000");
    }
    for (const offset of ["-1", "abc", "1e2", "", "1.5", "99999999999999999999"]) {
      expect(errorOf(await api.call("GET", `${path}?offset=${offset}`), "validation_error").details["field"]).toBe(
        "offset",
      );
    }
    for (const bound of ["since", "until"]) {
      for (const value of ["", "yesterday", "15", "2026-13-01", "%ff"]) {
        expect(errorOf(await api.call("GET", `${path}?${bound}=${value}`), "validation_error").details["field"]).toBe(
          bound,
        );
      }
    }
    expect((await api.call("GET", `${path}?limit=1000&offset=${Number.MAX_SAFE_INTEGER}`)).json).toEqual([]);
  });
});
