import { afterAll, beforeAll, expect, test } from "bun:test";
import { Api, errorOf } from "../support/api/api.ts";
import { heldTest } from "../support/api/program.ts";

let api: Api;
let image = "";
let file = "";
beforeAll(async () => {
  api = await Api.start();
  image = await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
  file = (await api.call("POST", "/v1/files", { body: "input" })).json.uuid;
});
afterAll(() => api[Symbol.asyncDispose]());

const spawn = async (fields: object): Promise<string> =>
  (await api.call("POST", "/v1/instances", { json: { image: "tag:base", command: "true", ...fields } })).json.uuid;
const asked = (id: string) => api.call("GET", `/v1/operations/${id}/request`);
const listed = async (query: string) => (await api.call("GET", `/v1/operations?${query}`)).json;

heldTest("the request of an instance can be read and sent again, without secrets", async () => {
  const fields = {
    ...{ command: "cat $1", args: ["/in"], shell: true, cwd: "/work", uid: 7, gid: 8, hostname: "box", timeout: 60 },
    ...{ stdin_open: true, pty: { rows: 24, cols: 80 }, disposable: true, truncate_output_at: 5 },
    files: { "/in": { uuid: file, mode: "0755", uid: 1, gid: 2 } },
    resources: { vcpus: 2, memory_bytes: 536_870_912, disk_bytes: 2_147_483_648 },
    network: { allow: [{ host: "a.example.org", ports: [443] }], tls: "any" },
  };
  const id = await spawn({ ...fields, env: { KEY: "the secret value" }, stdin: "secret input" });
  const answer = await asked(id);
  const { kind, env_names: names, stdin_bytes: bytes, ...again } = answer.json;
  expect({ kind, names, bytes }).toEqual({ kind: "instance", names: ["KEY"], bytes: 12 });
  expect(again).toEqual({ image, ...fields });
  expect(answer.text).not.toContain("secret");
  const first = api.operations.instances.at(-1);
  await spawn(again);
  expect(api.operations.instances.at(-1)).toEqual({ ...first, env: {}, stdin: null } as never);
});

heldTest("the tag for the image of a run is part of the request, and is sent again with it", async () => {
  const again = (await asked(await spawn({ tag: "after" }))).json;
  expect(again.tag).toBe("after");
  await spawn(again);
  expect(api.operations.instances.at(-1)?.tag).toBe("after");
  expect((await asked(await spawn({}))).json).not.toHaveProperty("tag");
});

heldTest("the request of a recorded run is that of a recorded run", async () => {
  const { network, ...fields } = (await asked(await spawn({ network: { record: true } }))).json;
  expect(network).toEqual({ tls: "sni", record: true });
  expect(await spawn({ ...fields, network })).toMatch(/^[0-9a-f-]{36}$/);
});

heldTest("imports and checkpoints return their requests, without passwords", async () => {
  const credentials = { username: "u", password: "the secret" };
  const registry = "registry.example.net/library/busybox:1.36";
  const { json } = await api.call("POST", "/v1/images/import", { json: { registry, tag: "t", credentials } });
  const answer = await asked(json.uuid);
  expect(answer.json).toEqual({ kind: "image_import", registry, tag: "t", timeout: expect.any(Number) });
  expect(answer.text).not.toContain("secret");
  const load = await api.call("POST", "/v1/images/load", { json: { file } });
  expect((await asked(load.json.uuid)).json).toEqual({ kind: "image_import", file, timeout: expect.any(Number) });
});

heldTest("a listing has a line about each request, on demand", async () => {
  const plain = await spawn({ command: "echo", args: ["a b", "c"] });
  const shell = await spawn({ command: `echo ${"x".repeat(100)}`, shell: true });
  const long = await spawn({ command: "echo", args: ["y".repeat(9000)] });
  const rows: { id: string; about?: string; image?: string }[] = await listed("about=true&limit=3");
  expect(rows.map(({ id, about, image: from }) => ({ id, about, from }))).toEqual([
    { id: long, about: undefined, from: image },
    { id: shell, about: `echo ${"x".repeat(75)}`, from: image },
    { id: plain, about: "echo a b c", from: image },
  ]);
  expect(Object.keys((await listed("limit=1"))[0])).not.toContain("about");
  const { json } = await api.call("POST", "/v1/images/import", { json: { registry: "r.example.net/a:1" } });
  expect((await listed("about=true&limit=1"))[0]).toMatchObject({ id: json.uuid, about: "r.example.net/a:1" });
});

test("requests of other accounts, and those that were not stored, are not found", async () => {
  const id = await spawn({});
  const foreign = await api.call("GET", `/v1/operations/${id}/request`, { token: api.foreignToken });
  errorOf(foreign, "not_found");
  const { id: old } = api.operations.insert("alice" as never, "instance");
  errorOf(await asked(old), "not_found");
});

test("a bad about is refused with its field", async () => {
  const answer = await api.call("GET", "/v1/operations?about=maybe");
  expect(errorOf(answer, "validation_error").details).toMatchObject({ field: "about" });
});
