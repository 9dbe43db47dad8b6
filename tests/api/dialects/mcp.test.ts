/** The tools and resources of the Model Context Protocol, by its official client. */

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Api } from "../../support/api/api.ts";
import { instancesCount, latestInstance, statusOf } from "../../support/api/latest-instance.ts";
import { throwing } from "../../support/failures.ts";
import { ERAS, McpClient } from "../../support/mcp-client.ts";
import { until } from "../../support/waiting.ts";

/** 4,000 tokens of about four characters. */
const TOOLS_CHARACTERS_MAX = 16_000;
const UNKNOWN = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";

let api: Api;
let image = "";
let foreignImage = "";
beforeAll(async () => {
  api = await Api.start();
  const files = [
    { path: "etc", type: "d" as const },
    { path: "etc/motd", type: "f" as const, content: "welcome\nto the \x1b[31mmachine\u202e\n" },
    { path: "etc/raw", type: "f" as const, content: Uint8Array.from({ length: 400_000 }, (_, at) => at % 256) },
    { path: "etc/long", type: "f" as const, content: "0123456789\n".repeat(100_000) },
    { path: "etc/new\nline", type: "f" as const, content: "" },
  ];
  image = await api.addImage([files], { tag: "base" });
  foreignImage = await api.addImage([files], { account: "bob", tag: "secret" });
});
afterAll(() => api[Symbol.asyncDispose]());

describe.each(ERAS)("a client (%s)", (era) => {
  let mcp: McpClient;
  beforeAll(async () => {
    mcp = await McpClient.open(api.url, api.token, era);
  });
  afterAll(() => mcp[Symbol.asyncDispose]());

  test("gets a short description of everything that it can use", async () => {
    const { tools } = await mcp.client.listTools();
    expect(JSON.stringify(tools).length).toBeLessThan(TOOLS_CHARACTERS_MAX);
    expect(tools.map(({ name }) => name).sort()).toEqual([
      ...["checkpoint", "delete_image", "diff", "end", "follow", "image_history", "import_image", "list_files"],
      ...["list_images", "list_operations", "path_history", "read_file", "read_output", "run", "sandbox_checkpoint"],
      ...["sandbox_end", "sandbox_exec", "sandbox_fork", "sandbox_list", "sandbox_open", "sandbox_read"],
      ...["sandbox_rollback", "sandbox_url", "sandbox_write", "search", "tag_image", "upload_file"],
    ]);
    for (const { inputSchema, annotations, description } of tools) {
      expect(inputSchema["additionalProperties"]).toBe(false);
      expect(annotations).toBeDefined();
      expect(description?.length).toBeGreaterThan(20);
    }
    expect(mcp.client.getInstructions()).toContain("image");
  });

  test("sees the images of its own account only", async () => {
    expect((await mcp.call("list_images")).text).toContain(`${image} base`);
    expect((await mcp.call("list_images")).text).not.toContain(foreignImage);
    for (const name of [foreignImage, "secret", UNKNOWN, "tag:secret", "no/such:tag"]) {
      const { isError, text } = await mcp.call("list_files", { image: name });
      expect({ isError, text }).toEqual({ isError: true, text: expect.stringContaining("list_images shows") });
    }
  });

  test("reads files as inert text", async () => {
    const { items } = await mcp.call("read_file", { image: "base", path: "/etc/motd" });
    expect(items.map(({ text }) => text)).toEqual([
      expect.stringContaining("2 control or invisible characters are not shown"),
      "welcome\nto the [31mmachine\n",
    ]);
    const long = await mcp.call("read_file", { image, path: "/etc/long", offset: 11, length: 22 });
    expect(long.text).toContain("bytes 11 to 33 of 1100000; next offset 33");
    expect(long.items[1]?.text).toBe("0123456789\n0123456789\n");
    const uri = `coppice://images/${image}/files/etc/long`;
    expect(long.items[2]).toEqual({ type: "resource_link", uri, name: "long", size: 1_100_000 } as never);
    expect((await mcp.call("read_file", { image, path: "/etc/raw" })).text).toContain("binary, 400,000 bytes");
    expect((await mcp.call("list_files", { image, path: "/etc" })).text).toContain("new\\u{a}line 0");
  });

  test("gives an image another tag, and moves a tag", async () => {
    const other = await api.addImage([[{ path: "f", type: "f", content: "" }]], { tag: `${era}-first` });
    expect((await mcp.call("tag_image", { image: other, tag: `${era}-second` })).isError).toBe(false);
    const listed = async () => (await mcp.call("list_images", { tag_prefix: era })).text;
    expect(await listed()).toContain(`${other} ${era}-first`);
    expect(await listed()).toContain(`${other} ${era}-second`);
    await mcp.call("tag_image", { image, tag: `${era}-second` });
    expect(await listed()).toContain(`${image} ${era}-second`);
    expect(await listed()).not.toContain(`${other} ${era}-second`);
    expect((await mcp.call("delete_image", { image: `${era}-first` })).structured).toEqual({ image: other });
    expect((await mcp.call("read_file", { image: `${era}-second`, path: "/etc/motd" })).isError).toBe(false);
    expect((await mcp.call("import_image", { reference: "alpine" })).text).toStartWith("reference names no registry");
  });

  test("searches content and names", async () => {
    expect((await mcp.call("search", { image, pattern: "^wel" })).text).toBe("/etc/motd:1: welcome");
    expect((await mcp.call("search", { image, glob: "mot?" })).text).toStartWith("/etc/motd ");
    expect((await mcp.call("search", { image, glob: "*", limit: 1 })).text).toContain("not complete");
    expect((await mcp.call("search", { image })).text).toContain("needs a pattern");
    expect((await mcp.call("search", { image, glob: "{" })).isError).toBe(true);
  });

  test("reads resources in pages, and in parts that it can put together", async () => {
    const { resources } = await mcp.client.listResources();
    expect(resources.map(({ uri }) => uri)).toContain(`coppice://images/${image}/files/`);
    const read = async (uri: string) => {
      const [part] = (await mcp.client.readResource({ uri })).contents;
      return part as { text?: string; blob?: string; mimeType: string; _meta?: Record<string, unknown> };
    };
    expect((await read(`coppice://images/${image}/files/etc`)).text).toContain("motd\n");
    for (const [name, size] of [
      ["raw", 400_000],
      ["long", 1_100_000],
    ] as const) {
      const parts: Buffer[] = [];
      let uri: string | undefined = `coppice://images/${image}/files/etc/${name}`;
      for (; uri !== undefined && parts.length < 10; ) {
        const part = await read(uri);
        parts.push(part.text === undefined ? Buffer.from(part.blob ?? "", "base64") : Buffer.from(part.text));
        uri = part._meta?.["coppice/next"] as string | undefined;
      }
      expect([name, Buffer.concat(parts).byteLength]).toEqual([name, size]);
    }
    // The resource is unchanged, for programs; a client must not render it.
    expect(await read(`coppice://images/${image}/files/etc/motd`)).toMatchObject({
      mimeType: "text/plain",
      text: "welcome\nto the \x1b[31mmachine\u202e\n",
    });
    expect((await read(`coppice://images/${image}/files/etc/new%0Aline`)).text).toBe("");
    for (const path of [
      `images/${foreignImage}/files/etc/motd`,
      `images/${image}/files/nope`,
      "x",
      "images/x/files/",
    ]) {
      expect(await throwing(mcp.client.readResource({ uri: `coppice://${path}` }))).toThrow();
    }
  });

  test("gets errors that name what is wrong with its input", async () => {
    const wrong: [string, Record<string, unknown>, string][] = [
      ["run", { image }, "command is required"],
      ["run", { image, command: "true", comand: "x" }, "there is no parameter comand"],
      ["run", { image, command: "true", timeout: "5" }, "timeout must be an integer"],
      ["run", { image, command: "true", files: [{ path: "/a" }] }, "either content or file"],
      ["run", { image, command: "true", network: ["http://x"] }, "http://x"],
      ["run", { image, command: "true", tag: "-" }, "tag must be 1 to 128 characters"],
      ["run", { image, command: "true", tag: "t", disposable: true }, "a disposable run makes none"],
      ["follow", { operation: "x" }, "operation must be the id"],
      ["follow", { operation: UNKNOWN }, "list_operations shows"],
      ["tag_image", { image, tag: "-" }, "tag must be 1 to 128 characters"],
      ["read_file", { image, path: "etc" }, "must be absolute"],
      ["read_file", { image, path: "/nope" }, "/nope"],
      ["upload_file", { content: "*", encoding: "base64" }, "standard base64"],
    ];
    for (const [name, input, said] of wrong) {
      const { isError, text } = await mcp.call(name, input);
      expect({ name, isError, text }).toEqual({ name, isError: true, text: expect.stringContaining(said) });
      expect(text).not.toMatch(/\bat .*\.ts:|Error:/);
    }
    expect(await throwing(mcp.call("rm_rf"))).toThrow("there is no tool of this name");
  });

  test("that cancels a run ends it, unless it is detached or the token may not", async () => {
    const weak = await api.issue("alice", ["instances:spawn", "operations:read", "images:read"]);
    await using other = await McpClient.open(api.url, weak, era);
    for (const [client, input, status] of [
      [mcp, {}, "CANCELLED"],
      [mcp, { detach: true }, "PENDING"],
      [other, {}, "PENDING"],
    ] as const) {
      const before = await instancesCount(api);
      const cancelling = new AbortController();
      const options = { signal: cancelling.signal, onprogress: () => undefined };
      const call = client.call("run", { image: "base", command: "sleep 1000", ...input }, options);
      const id = await latestInstance(api, before + 1);
      cancelling.abort();
      expect(await throwing(call)).toThrow();
      if (status === "CANCELLED") await until("it is cancelled", () => statusOf(api, id) === status);
      else await until("no call waits", () => api.parts.operations.waitsCount === 0);
      expect(statusOf(api, id)).toBe(status);
    }
  });

  test("gets nothing for offsets beyond every listing", async () => {
    const calls: [string, Record<string, unknown>][] = [
      ["list_images", {}],
      ["list_operations", {}],
      ["image_history", { image }],
      ["list_files", { image }],
      ["read_file", { image, path: "/etc/long" }],
    ];
    for (const [name, input] of calls) {
      const refused = await mcp.call(name, { ...input, offset: 1e300 });
      expect({ name, ...refused }).toMatchObject({ name, isError: true, text: expect.stringContaining("offset") });
      expect((await mcp.call(name, { ...input, offset: Number.MAX_SAFE_INTEGER })).isError).toBe(false);
    }
  });

  test("may do what the scopes of its token allow", async () => {
    const none = await api.issue("alice", ["files:read"]);
    await using other = await McpClient.open(api.url, none, era);
    const inputs: Record<string, Record<string, unknown>> = {
      run: { image, command: "true" },
      import_image: { reference: "registry.example.net/a:1" },
      tag_image: { image, tag: "t" },
      upload_file: { content: "x" },
      search: { image, glob: "*" },
      diff: { image },
      path_history: { image, path: "/" },
    };
    const { tools } = await other.client.listTools();
    for (const { name, inputSchema } of tools) {
      const required = (inputSchema["required"] ?? []) as string[];
      const plain = Object.fromEntries(required.map((field) => [field, field === "operation" ? UNKNOWN : image]));
      const { isError, text } = await other.call(name, inputs[name] ?? plain);
      expect({ name, isError, text }).toEqual({
        name,
        isError: true,
        text: expect.stringMatching(/^the token does not allow [a-z]+:[a-z]+; .*coppice token create/),
      });
    }
    expect(await throwing(other.client.listResources())).toThrow("images:read");
    // The files and the network of a run need scopes of their own.
    const runs = await api.issue("alice", ["instances:spawn", "images:read"]);
    await using runner = await McpClient.open(api.url, runs, era);
    const files = [{ path: "/a", content: "x" }];
    expect((await runner.call("run", { image, command: "true", files })).text).toContain("files:write");
    const network = ["a.example.org:443"];
    expect((await runner.call("run", { image, command: "true", network })).text).toContain("instances:network");
    const { text, operation } = await runner.call("run", { image, command: "true", disposable: true });
    expect(text).toMatch(
      /^operation [0-9a-f-]{36} was accepted and continues; the token does not allow operations:read/,
    );
    expect(operation).toBeNull();
  });
});
