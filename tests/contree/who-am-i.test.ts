import { afterAll, beforeAll, expect, test } from "bun:test";
import { Contree, contreeError } from "../support/contree/contree.ts";

let contree: Contree;

beforeAll(async () => {
  contree = await Contree.start();
});
afterAll(() => contree[Symbol.asyncDispose]());

test("has the permissions and end of a token, and the limits of the appliance", async () => {
  const { status, json } = await contree.call("GET", "/whoami");
  expect(status).toBe(200);
  expect(json.permissions).toEqual({
    list: true,
    import: true,
    spawn: true,
    spawn_disposable: true,
    cancel: true,
    set_image_tag: true,
  });
  expect(json.token_expiration).toBeGreaterThan(Date.now() / 1000);
  expect(json.limits.instance_max_timeout).toBe(json.limits.images_import_max_timeout);
  expect(json.limits.instance_max_concurrency).toBeGreaterThan(0);
  expect(json.limits.images_import_max_concurrency).toBeGreaterThan(0);
  const [listed] = (await contree.appliance.command(["token", "list", "--config", contree.appliance.configFile])).stdout
    .split("\n")
    .filter((line) => line.includes("tester"));
  expect(listed).toContain(json.token_uuid);
});

test.each([
  [["images:read"], []],
  [["images:read", "operations:read"], ["list"]],
  [["images:import"], ["import"]],
  [["instances:spawn"], ["spawn", "spawn_disposable"]],
  [["operations:cancel"], ["cancel"]],
  [["images:tag"], ["set_image_tag"]],
] as const)("scopes %j allow %j, and every other permission is false", async (scopes, allowed) => {
  const token = await contree.appliance.createToken("tester", ...scopes.flatMap((scope) => ["--scope", scope]));
  const { json } = await contree.call("GET", "/whoami", { token });
  const granted = Object.entries(json.permissions).filter(([, value]) => value);
  expect(granted.map(([name]) => name).sort()).toEqual([...allowed].sort());
});

test("needs a valid token, and ignores the header of a project", async () => {
  contreeError(await contree.call("GET", "/whoami", { token: null }), 401, "unauthorized");
  contreeError(await contree.call("GET", "/whoami", { token: "opaque text" }), 401, "unauthorized");
  expect((await contree.call("GET", "/whoami", { headers: { project: "p-1" } })).status).toBe(200);
});
