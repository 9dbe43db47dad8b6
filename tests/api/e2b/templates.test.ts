/** Templates over HTTP. The image of the scene has no shell, so that builds which only set variables need no machine. */

import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { connect } from "node:net";
import { Readable } from "node:stream";
import { sql } from "drizzle-orm";
import { getImage } from "../../../src/db/images/images.ts";
import { setTag } from "../../../src/db/images/tags.ts";
import { buildFile } from "../../../src/db/templates/cache.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { AccountId, ImageId } from "../../../src/domain/ids.ts";
import { E2bScene } from "../../support/e2b/scene.ts";
import { TemplateClient } from "../../support/e2b/template-client.ts";
import { until } from "../../support/waiting.ts";

const HASH = "a".repeat(64);
const ENV = (value: string) => ({ type: "ENV", args: ["A", value] });

const accounts = new Accounts();
let scene: E2bScene;
let client: TemplateClient;
beforeAll(async () => {
  scene = await E2bScene.start({}, { accounts });
  client = new TemplateClient(scene.url, scene.key);
});
afterAll(() => scene[Symbol.asyncDispose]());

/** Builds a template with a variable. Returns its ids. */
async function built(name: string, value: string, from = "base") {
  const requested = await client.request(name);
  await client.start(requested, { fromTemplate: from, steps: [ENV(value)] });
  expect(await client.ended(requested)).toMatchObject({ status: "ready" });
  return requested;
}
const resolved = (reference: string) => {
  const principal = { accountId: "alice" as AccountId, grants: new Set(["*"]), tokenId: "" };
  return scene.api.parts.service.templates.resolve(principal, reference);
};

describe("a template", () => {
  test("is requested, built, listed, found by its names and deleted", async () => {
    const asked = await client.call("POST", "/v3/templates", {
      name: "Web",
      tags: ["v1"],
      cpuCount: 99,
      memoryMB: 512,
    });
    const { templateID, buildID } = asked.json;
    expect(asked).toEqual({
      status: 202,
      json: {
        ...{ templateID: expect.stringMatching(/^[a-z0-9]{20}$/), buildID: expect.any(String), public: false },
        ...{ names: ["web"], aliases: ["web"], tags: ["v1"] },
      },
    });
    expect((await client.call("GET", `/templates/web/builds/${buildID}/status`)).json).toEqual({
      ...{ templateID, buildID, status: "waiting", logs: [], logEntries: [] },
    });
    await client.start(
      { templateID, buildID },
      { fromTemplate: "base", steps: [ENV("x")], startCmd: "", readyCmd: null },
    );
    const ended = await client.ended({ templateID, buildID });
    expect([ended.status, ended.reason]).toEqual(["ready", undefined]);
    expect(ended.entries.map(({ message }) => message)).toEqual([
      "[base] FROM base",
      "the image has no /bin/sh: steps run as root, and can only set variables",
      "[builder 1/1] ENV A",
      "Build finished",
    ]);
    const { json: detail } = await client.call("GET", "/templates/web");
    expect(detail).toMatchObject({ templateID, names: ["web"], aliases: ["web"], spawnCount: 0, lastSpawnedAt: null });
    expect(detail.builds).toMatchObject([{ buildID, status: "ready", memoryMB: 512 }]);
    for (const path of ["/templates", "/v2/templates"]) {
      const { json } = await client.call("GET", path);
      expect(json).toContainEqual(
        expect.objectContaining({ templateID, buildID, buildStatus: "ready", buildCount: 1, createdBy: null }),
      );
      expect(json[0].cpuCount).toBeLessThan(99);
    }
    expect((await client.call("GET", "/templates/web/tags")).json).toEqual([
      { tag: "v1", buildID, createdAt: expect.any(String) },
    ]);
    for (const name of ["web:v1", "alice%2Fweb%3Av1", "base", "e2bdev%2Fbase%3Alatest"]) {
      expect([name, (await client.call("GET", `/templates/aliases/${name}`)).status]).toEqual([name, 200]);
    }
    for (const name of ["web", "web:v2", "bob%2Fweb", "nowhere"]) {
      expect([name, (await client.call("GET", `/templates/aliases/${name}`)).status]).toEqual([name, 404]);
    }
    expect(resolved("web:v1").config).toMatchObject({
      user: "root",
      cwd: "/",
      env: { A: "x" },
      memoryBytes: 536_870_912,
    });
    expect((await client.call("DELETE", `/templates/${templateID}`)).status).toBe(204);
    expect((await client.call("DELETE", `/templates/${templateID}`)).status).toBe(404);
    expect((await client.call("GET", "/templates")).json).not.toContainEqual(expect.objectContaining({ templateID }));
  });

  test("has tags that are moved and removed, here and by its images", async () => {
    const first = await built("tagged", "1");
    const second = await built("tagged:next", "2");
    const assigned = await client.call("POST", "/templates/tags", {
      target: "tagged:next",
      tags: ["tagged:stable", "default"],
    });
    expect(assigned).toEqual({ status: 201, json: { buildID: second.buildID, tags: ["stable", "default"] } });
    expect(resolved("tagged").buildId).toBe(second.buildID);
    const [one, two] = [resolved("tagged:next").imageId, resolved("base").imageId];
    // A person moves the tag of the image, and back.
    const move = (id: ImageId) =>
      setTag(scene.api.parts.db, "alice" as AccountId, id, {
        name: "tagged:default",
        change: "added",
        now: Date.now(),
      });
    move(two);
    expect(resolved("tagged")).toMatchObject({ templateId: first.templateID, buildId: null, imageId: two });
    move(one);
    expect(resolved("tagged").buildId).toBe(second.buildID);
    expect((await client.call("DELETE", "/templates/tags", { name: "tagged", tags: ["default", "none"] })).status).toBe(
      204,
    );
    expect((await client.call("GET", "/templates/aliases/tagged")).status).toBe(404);
    expect((await client.call("GET", "/templates/aliases/tagged:stable")).status).toBe(200);
    for (const tag of [":x", "tagged:", "a b"]) {
      expect((await client.call("POST", "/templates/tags", { target: "tagged:next", tags: [tag] })).status).toBe(400);
    }
    // A reference with a tag is not one to the others.
    expect((await client.call("DELETE", "/templates/tagged:none")).status).toBe(404);
    expect((await client.call("DELETE", "/templates/tagged:stable")).status).toBe(204);
    expect((await client.call("GET", "/templates/aliases/tagged:next")).status).toBe(200);
    expect((await client.call("DELETE", "/templates/tagged")).status).toBe(204);
    expect(resolved("base").imageId).toBe(two);
  });

  test("passes its settings on to one that is built from it", async () => {
    await built("parent", "1");
    // Deleting a template must not delete the image of another one.
    expect(resolved("parent").imageId).not.toBe(resolved("base").imageId);
    await client.start(await client.request("child"), { fromTemplate: "parent", steps: [] });
    const child = await built("child:v2", "2", "parent");
    expect(resolved(`${child.templateID}:v2`).config.env).toEqual({ A: "2" });
  });

  test("is what sandboxes begin with, under any of its names", async () => {
    const { templateID, buildID } = await built("live", "x");
    for (const name of ["live", "live:default", templateID]) {
      const { uuid } = await scene.create({ templateID: name });
      const { sandbox, record } = scene.api.parts.service.e2b.find(uuid) ?? {};
      expect(record).toMatchObject({ templateId: templateID, alias: "live", buildId: buildID });
      expect([sandbox?.imageId, sandbox?.envNames.includes("A")]).toEqual([resolved("live").imageId, true]);
    }
    const { spawnCount, lastSpawnedAt } = (await client.call("GET", "/templates/live")).json;
    expect([spawnCount, typeof lastSpawnedAt]).toEqual([3, "string"]);
    // A template in use is deleted, and its image stays as long as a sandbox needs it.
    const { imageId } = resolved("live");
    expect((await client.call("DELETE", "/templates/live")).status).toBe(204);
    expect(getImage(scene.api.parts.db, "alice" as AccountId, imageId)).not.toBeNull();
  });

  test("that is a tag of an image is listed and read like any other, under one name", async () => {
    const content = [[{ path: "plain", type: "f" as const }]];
    const buildID = await scene.api.addImage(content, { tag: "plain" });
    await scene.api.addImage(content, { tag: "plain:latest" });
    const versionID = await scene.api.addImage(content, { tag: "debian:12" });
    await scene.api.addImage(content, { tag: "registry.example/x" });
    const names = (await client.call("GET", "/templates")).json.map(({ names: [name] }: { names: string[] }) => name);
    expect(names).toEqual([...new Set(names)].sort());
    expect(names).toEqual(expect.arrayContaining(["base", "debian:12", "plain"]));
    for (const none of ["plain:latest", "registry.example/x"]) expect(names).not.toContain(none);
    const common = { public: false, aliases: ["plain"], names: ["plain"], spawnCount: 0, lastSpawnedAt: null };
    const { json: listed } = await client.call("GET", "/v2/templates");
    expect(listed).toContainEqual(
      expect.objectContaining({ ...common, templateID: "plain", buildID, buildStatus: "ready", buildCount: 1 }),
    );
    expect((await client.call("GET", "/templates/plain")).json).toMatchObject({
      ...{ ...common, templateID: "plain", builds: [{ buildID, status: "ready" }] },
    });
    for (const [path, tag, id] of [
      ["plain", "default", buildID],
      ["debian:12", "12", versionID],
    ]) {
      const { json } = await client.call("GET", `/templates/${path}/tags`);
      expect([path, json]).toEqual([path, [{ tag, buildID: id, createdAt: expect.any(String) }]]);
    }
    for (const name of ["plain", "plain:latest", "alice%2Fplain", "e2bdev%2Fplain:latest"]) {
      const { status, json } = await client.call("GET", `/templates/aliases/${name}`);
      expect([name, status, json?.templateID]).toEqual([name, 200, "plain"]);
    }
    const other = new TemplateClient(scene.url, scene.foreignKey);
    expect((await other.call("GET", "/templates/plain")).status).toBe(404);
    expect((await other.call("GET", "/templates")).json).not.toContainEqual(expect.objectContaining({ buildID }));
    // A tag of a template that is built by steps is not a template of its own.
    await built("plain", "1");
    const { json: after } = await client.call("GET", "/templates");
    expect(after.filter(({ names: [name] }: { names: string[] }) => name === "plain")).toMatchObject([
      { templateID: expect.stringMatching(/^[a-z0-9]{20}$/), buildCount: 1 },
    ]);
  });

  test("that is an image is deleted with its tag", async () => {
    const { db } = scene.api.parts;
    const image = (await scene.api.addImage([[{ path: "x", type: "f" }]], { tag: "snap:default" })) as ImageId;
    expect((await client.call("DELETE", "/templates/alice%2Fsnap%3Adefault")).status).toBe(204);
    expect((await client.call("GET", "/templates/aliases/snap")).status).toBe(404);
    expect(getImage(db, "alice" as AccountId, image)).toBeNull();
    expect((await client.call("DELETE", "/templates/snap")).status).toBe(404);
  });
});

test("the end of a build is recorded as soon as the database takes it", async () => {
  const { orm } = scene.api.parts.db;
  const requested = await client.request("unrecorded");
  orm.run(sql`create temp trigger full before update of status on main.template_builds when new.status = 'ready'
    begin select raise(fail, 'database or disk is full'); end`);
  await client.start(requested, { fromTemplate: "base", steps: [ENV("x")] });
  const path = `/templates/unrecorded/builds/${requested.buildID}/status`;
  const status = async () => (await client.call("GET", path)).json;
  await until("its work is done", async () => (await status()).logs.includes("Build finished"));
  expect((await status()).status).toBe("building");
  orm.run(sql`drop trigger full`);
  expect((await client.ended(requested)).status).toBe("ready");
});

describe("files of a build", () => {
  test("are uploaded once, at an address that needs no key", async () => {
    const { templateID } = await client.request("files");
    expect(await client.upload(templateID, HASH, Buffer.from("tar"))).toBe(false);
    expect(await client.upload(templateID, HASH, Buffer.from("tar"))).toBe(true);
    const { url } = (await client.call("GET", `/templates/${templateID}/files/${"b".repeat(64)}`)).json;
    const put = async (address: string, body: string) => (await fetch(address, { method: "PUT", body })).status;
    expect(await put(url.replace(/b{64}/, HASH), "x")).toBe(401);
    expect(await put(url.replace(/secret=.*/, "secret=x"), "x")).toBe(401);
    expect(await put(url.replace(/\?.*/, ""), "x")).toBe(401);
    expect((await client.call("GET", `/templates/${templateID}/files/../x`)).status).toBe(404);
    expect((await client.call("GET", `/templates/${templateID}/files/xyz`)).status).toBe(400);
    const other = new TemplateClient(scene.url, scene.foreignKey);
    const own = await other.request("files");
    expect(await other.upload(own.templateID, HASH, Buffer.from("other"))).toBe(false);
  });
});

describe("an upload", () => {
  const hash = "c".repeat(64);
  const addressOf = async (path: string) => (await client.call("GET", path)).json as { present: boolean; url: string };
  const put = async (url: string, body: Uint8Array<ArrayBuffer>) => (await fetch(url, { method: "PUT", body })).status;

  test("that is cut leaves no file, and the last whole one counts, however many come at a time", async () => {
    const { templateID } = await client.request("uploads");
    const path = `/templates/${templateID}/files/${hash}`;
    const { url } = await addressOf(path);
    const cut = await sendCut(url, 1000);
    expect([cut, (await addressOf(path)).present]).toEqual(["", false]);
    const bodies = Array.from({ length: 8 }, (_, at) => new Uint8Array(100_000).fill(at));
    expect(await Promise.all(bodies.map((body) => put(url, body)))).toEqual(bodies.map(() => 200));
    const stored = () => buildFile(scene.api.parts.db, "alice" as AccountId, hash)?.sha256;
    expect(bodies.map(sha256)).toContain(stored() ?? "");
    const last = new Uint8Array([1, 2, 3]);
    expect([await put(url, last), stored()]).toEqual([200, sha256(last)]);
    await sendCut(url, 1000);
    expect(stored()).toBe(sha256(last));
  });

  test("is that of the account which asked for the address", async () => {
    const other = new TemplateClient(scene.url, scene.foreignKey);
    const { templateID } = await other.request("uploads");
    const own = "d".repeat(64);
    const { url } = (await other.call("GET", `/templates/${templateID}/files/${own}`)).json;
    expect(await put(url, new Uint8Array(1))).toBe(200);
    const owners = ["alice", "bob"].filter(
      (account) => buildFile(scene.api.parts.db, account as AccountId, own) !== null,
    );
    expect(owners).toEqual(["bob"]);
  });
});

/** Sends a part of an upload, and ends the connection. Returns the answer. */
async function sendCut(url: string, announcedBytes: number): Promise<string> {
  const { port, pathname, search } = new URL(url);
  const socket = connect(Number(port), "127.0.0.1");
  socket.write(`PUT ${pathname}${search} HTTP/1.1\r\nHost: x\r\nContent-Length: ${announcedBytes}\r\n\r\npart`);
  socket.end();
  return await new Response(Readable.toWeb(socket) as unknown as ReadableStream).text();
}

const sha256 = (bytes: Uint8Array): string => new Bun.CryptoHasher("sha256").update(bytes).digest("hex");

describe("what is refused", () => {
  test("steps that are wrong, too many, or not offered", async () => {
    const requested = await client.request("wrong");
    const from = { fromTemplate: "base" };
    const copy = (...args: string[]) => ({ ...from, steps: [{ type: "COPY", args, filesHash: HASH }] });
    const bodies = [
      {},
      { fromImage: "a", fromTemplate: "b" },
      { fromImage: "a", fromImageRegistry: { type: "registry", username: "x" } },
      ...["aws", "gcp"].map((type) => ({ fromImage: "x/y:1", fromImageRegistry: { type } })),
      { ...from, steps: Array(10_000).fill(ENV("x")) },
      { ...from, steps: [{ type: "ADD", args: ["x"] }] },
      { ...from, steps: [{ type: "RUN" }] },
      { ...from, steps: [{ type: "RUN", args: ["a\0b"] }] },
      { ...from, steps: [{ type: "ENV", args: ["A"] }] },
      { ...from, steps: [{ type: "ENV", args: ["A=B", "c"] }] },
      { ...from, steps: [{ type: "COPY", args: ["a", "b"] }] },
      { ...from, steps: [{ type: "COPY", args: ["a", "b"], filesHash: "../../etc" }] },
      ...[copy("../a", "b"), copy("/a", "b"), copy("a", "b", "x;y"), copy("a", "b", "", "rwx"), copy("a")],
      { ...from, startCmd: "x".repeat(70_000) },
    ];
    for (const body of bodies) {
      const { status, json } = await client.call("POST", `/v2/templates/wrong/builds/${requested.buildID}`, body);
      expect([JSON.stringify(body).slice(0, 80), status, json.code, typeof json.message]).toEqual([
        ...[JSON.stringify(body).slice(0, 80), 400, 400, "string"],
      ]);
    }
    await client.start(requested, from);
    await client.ended(requested);
    const { status } = await client.call("POST", `/v2/templates/wrong/builds/${requested.buildID}`, from);
    expect(status).toBe(400);
  });

  test("names and sizes that are wrong", async () => {
    for (const body of [
      {},
      { name: "" },
      { name: "a/b" },
      { name: "a:b:c" },
      { name: "x".repeat(200) },
      { name: "a", memoryMB: 1 },
    ]) {
      expect([body, (await client.call("POST", "/v3/templates", body)).status]).toEqual([body, 400]);
    }
  });

  test("everything of another account", async () => {
    const { templateID, buildID } = await built("mine", "1");
    const other = new TemplateClient(scene.url, scene.foreignKey);
    const own = await other.request("theirs");
    for (const template of [templateID, "mine", "alice%2Fmine"]) {
      const requests = [
        ["GET", `/templates/${template}`],
        ["DELETE", `/templates/${template}`],
        ["PATCH", `/v2/templates/${template}`, { public: false }],
        ["GET", `/templates/${template}/tags`],
        ["GET", `/templates/${template}/files/${HASH}`],
        ["GET", `/templates/${template}/builds/${buildID}/status`],
        ["GET", `/templates/${template}/builds/${buildID}/logs`],
        ["POST", `/v2/templates/${template}/builds/${buildID}`, { fromTemplate: "base" }],
        ["GET", `/templates/aliases/${template}`],
        ["POST", "/templates/tags", { target: decodeURIComponent(template), tags: ["x"] }],
        ["DELETE", "/templates/tags", { name: decodeURIComponent(template), tags: ["default"] }],
        ["GET", `/templates/${own.templateID}/builds/${buildID}/status`],
      ] as const;
      for (const [method, path, body] of requests) {
        expect([method, path, (await other.call(method, path, body)).status]).toEqual([method, path, 404]);
      }
    }
    const from = { fromTemplate: templateID, steps: [] };
    await other.start(own, from);
    expect(await other.ended(own)).toMatchObject({ status: "error", reason: { step: "base" } });
    expect(resolved("mine").buildId).toBe(buildID);
  });

  test("builds as older clients begin them", async () => {
    for (const path of ["/templates", "/v2/templates", "/templates/x", `/templates/x/builds/${crypto.randomUUID()}`]) {
      expect([path, (await client.call("POST", path, {})).json.message]).toEqual([
        path,
        expect.stringContaining("newer client"),
      ]);
    }
    expect((await client.call("PATCH", "/v2/templates/base", { public: true })).status).toBe(400);
  });

  test("more builds at a time than an account may have", async () => {
    const { max } = accounts.limits.builds;
    using _used = accounts.add("alice", { builds: max });
    const requested = await client.request("busy");
    const path = `/v2/templates/busy/builds/${requested.buildID}`;
    expect((await client.call("POST", path, { fromTemplate: "base" })).status).toBe(429);
    expect((await client.call("GET", `/templates/busy/builds/${requested.buildID}/status`)).json.status).toBe(
      "waiting",
    );
  });
});
