/** Addresses of ports, links to them, and public ports, over HTTP. */
import { afterAll, beforeAll, expect, setDefaultTimeout } from "bun:test";
import { Api, errorOf, LIMITS } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";

setDefaultTimeout(60_000);

const ADDRESS = { scheme: "https", domain: "box.example", port: null } as const;

let on: Api;
let off: Api;
beforeAll(async () => {
  on = await Api.start({ limits: { ...LIMITS, ingress: { address: ADDRESS, allowsPublic: false } } });
  off = await Api.start();
  for (const api of [on, off]) await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(async () => {
  await on[Symbol.asyncDispose]();
  await off[Symbol.asyncDispose]();
});

const open = (api: Api, fields: object = {}, token = api.token) =>
  api.call("POST", "/v1/sandboxes", { json: { image: "tag:base", ...fields }, token });

heldTest("a sandbox shows the addresses of its ports where there are any", async () => {
  const { uuid, urls } = (await open(on)).json;
  expect(urls).toEqual({ pattern: `https://{port}-${uuid}.box.example/` });
  expect((await on.call("GET", `/v1/sandboxes/${uuid}`)).json.urls).toEqual(urls);
  expect((await on.call("GET", "/v1/sandboxes")).json[0].urls).toEqual(urls);
  expect((await open(off)).json.urls).toBeUndefined();
});

heldTest("a link has an end, and belongs to the account of the sandbox", async () => {
  const { uuid } = (await open(on, { name: "linked" })).json;
  const link = (json: object, token = on.token, name: string = uuid) =>
    on.call("POST", `/v1/sandboxes/${name}/links`, { json, token });
  const answer = await link({ port: 8080, ttl: 60 }, on.token, "name:linked");
  expect(answer.status).toBe(201);
  expect(answer.json.url).toMatch(new RegExp(`^https://8080-${uuid}\\.box\\.example/\\?coppice-link=[\\w-]{94}$`));
  const leftMs = Date.parse(answer.json.expires_at) - Date.now();
  expect(leftMs).toBeGreaterThan(30_000);
  expect(leftMs).toBeLessThanOrEqual(60_000);
  for (const json of [{}, { port: 0 }, { port: 65_536 }, { port: 80, ttl: 0 }, { port: 80, ttl: 604_801 }]) {
    errorOf(await link(json), "validation_error");
  }
  errorOf(await link({ port: 80 }, on.foreignToken), "not_found");
  errorOf(await link({ port: 80 }, await on.issue("alice", ["instances:spawn"])), "forbidden");
  const { uuid: unreachable } = (await open(off)).json;
  const refused = errorOf(
    await off.call("POST", `/v1/sandboxes/${unreachable}/links`, { json: { port: 80 } }),
    "forbidden",
  );
  expect(refused.message).toContain("ingress.listen");
});

heldTest("public ports need a scope of their own, and the operator's consent", async () => {
  const spawner = await on.issue("alice", ["instances:spawn"]);
  expect(errorOf(await open(on, { public_ports: [80] }, spawner), "forbidden").details).toEqual({
    scope: "instances:ingress",
  });
  expect(errorOf(await open(on, { public_ports: [80] }), "forbidden").details).toEqual({ field: "public_ports" });
  const { uuid } = (await open(on, { public_ports: [] }, spawner)).json;
  const change = (json: object) => on.call("PATCH", `/v1/sandboxes/${uuid}`, { json });
  errorOf(await change({ public_ports: [80] }), "forbidden");
  expect((await change({ public_ports: [] })).status).toBe(200);
});
