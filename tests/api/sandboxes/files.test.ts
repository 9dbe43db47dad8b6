/** Files of a sandbox: of its machine while it has one, and of its head while it is paused. */
import { afterAll, beforeAll, expect, setDefaultTimeout } from "bun:test";
import { findSandbox } from "../../../src/db/sandboxes/rows.ts";
import type { SandboxId } from "../../../src/domain/ids.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { openSandbox, runSandbox } from "../../support/api/sandboxes.ts";
import { cli } from "../../support/cli/cli.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

const LONG_BYTES = 300_000;
const LONG = Buffer.alloc(LONG_BYTES, "0123456789");

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  const time = { mtimeSeconds: 1_700_000_000, mtimeNanoseconds: 7 };
  await api.addImage(
    [
      [
        { path: "d", type: "d", mode: 0o750 },
        { path: "d/e", type: "d" },
        { path: "d/e/f", type: "f", content: "deep" },
        { path: "d/long", type: "f", content: LONG, uid: 7, gid: 8, mode: 0o640, ...time },
        { path: "link", type: "l", target: "d" },
        { path: "dangling", type: "l", target: "missing" },
      ],
    ],
    { tag: "base" },
  );
});
afterAll(() => api[Symbol.asyncDispose]());

const stateOf = (id: string) => findSandbox(api.parts.db, id as SandboxId)?.state;

/** A paused sandbox. */
async function paused(fields: object = {}): Promise<{ readonly id: string; readonly path: string }> {
  const id = await openSandbox(api, fields as Record<string, unknown>);
  await using running = await runSandbox(api, id);
  const pausing = api.call("POST", `${running.path}/pause?wait=30`);
  await running.finish();
  expect((await pausing).json.state).toBe("paused");
  return { id, path: running.path };
}

heldTest("a paused sandbox answers reads from its head, without a machine", async () => {
  const { id, path } = await paused();
  const get = (query: string, headers = {}) => api.call("GET", `${path}/files${query}`, { headers });
  expect((await get("/stat?path=/d/long")).json).toEqual({
    ...{ path: "/d/long", name: "long", type: "file", mode: "0640", size: LONG_BYTES, uid: 7, gid: 8, links: 1 },
    mtime: "2023-11-14T22:13:20.000000007Z",
  });
  expect((await get("/stat?path=/link")).json).toMatchObject({ type: "directory", mode: "0750", symlink_to: "/d" });
  expect((await get("/stat?path=/link&follow=false")).json).toMatchObject({ type: "symlink", symlink_to: "d" });
  expect((await get("/stat?path=/dangling")).json).toMatchObject({ type: "symlink", symlink_to: "missing" });
  errorOf(await get("/stat?path=/missing"), "not_found");
  expect((await get("?path=/d/long")).bytes.length).toBe(LONG_BYTES);
  expect((await get("?path=/d/e/f")).text).toBe("deep");
  const range = await get("?path=/link/long", { range: "bytes=299995-" });
  expect([range.status, range.text, range.headers.get("content-range")]).toEqual([
    206,
    "56789",
    "bytes 299995-299999/300000",
  ]);
  errorOf(await get("?path=/d"), "invalid_path");
  const head = await api.call("HEAD", `${path}/files?path=/d/long`);
  expect(head.headers.get("content-length")).toBe(String(LONG_BYTES));
  const list = async (query: string) =>
    (await get(`/list?path=${query}`)).text
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line))
      .map(({ path: at, type, truncated }) => (type === "end" ? truncated : `${at} ${type}`));
  expect(await list("/d&depth=2")).toEqual(["/d directory", "/d/e directory", "/d/e/f file", "/d/long file", false]);
  expect(await list("/link")).toEqual(["/link directory", "/link/e directory", "/link/long file", false]);
  expect((await list("/&follow=true")).filter((line) => String(line).includes("link "))).toEqual(["/link directory"]);
  expect(await list("/d/e/f")).toEqual(["/d/e/f file", false]);
  expect(await list("/d&limit=2&depth=9")).toEqual(["/d directory", "/d/e directory", true]);
  errorOf(await api.call("GET", `${path}/files?path=/d/e/f`, { token: api.foreignToken }), "not_found");
  expect(stateOf(id)).toBe("paused");
  await Promise.all(
    Array.from({ length: 60 }, async () => expect((await get("?path=/d/long")).bytes.length).toBe(LONG_BYTES)),
  );
});

heldTest("a write resumes it, and its files are those of its machine again", async () => {
  const { id, path } = await paused();
  const writing = api.call("PUT", `${path}/files?path=/written`, { body: "x" });
  while (stateOf(id) !== "resuming") await api.call("GET", path);
  await using running = await runSandbox(api, id);
  expect((await writing).json.entry).toMatchObject({ path: "/written", size: 1 });
  expect(running.instance.isRunning).toBe(true);
  expect((await api.call("GET", `${path}/files?path=/written`)).text).toBe("x");
});

heldTest("without auto_resume, a write to a paused one is refused", async () => {
  const { path } = await paused({ auto_resume: false });
  const refused = await api.call("PUT", `${path}/files?path=/written`, { body: "x" });
  expect(errorOf(refused, "conflict").details).toEqual({ state: "paused" });
  expect((await api.call("GET", `${path}/files?path=/d/e/f`)).text).toBe("deep");
});

heldTest("the user of a sandbox is that of its requests, unless they name another", async () => {
  await using running = await runSandbox(api, await openSandbox(api, { user: "1234:567" }));
  errorOf(await api.call("PUT", `${running.path}/files?path=/refused`, { body: "x" }), "forbidden");
  const directory = { path: "/open", mode: "0777", user: "0:0" };
  expect((await api.call("POST", `${running.path}/files/directory`, { json: directory })).status).toBe(201);
  const { entry } = (await api.call("PUT", `${running.path}/files?path=/open/f`, { body: "x" })).json;
  expect(entry).toMatchObject({ uid: 1234, gid: 567 });
});

heldTest("the commands take the name of a sandbox before the path", async () => {
  await paused({ name: "named" });
  const environment = { COPPICE_URL: api.url, COPPICE_TOKEN: api.token, HOME: "/nonexistent" };
  for (const at of ["named:/d/e/f", "name:named:d/e/f"]) {
    const { code, stdout } = await cli(["cat", at], { environment });
    expect([code, stdout.toString()]).toEqual([0, "deep"]);
  }
  const { stdout } = await cli(["ls", "named:/d"], { environment });
  expect(stdout.toString()).toMatch(
    /^drwxr-xr-x \d+ 0 0 \d+ \S+ e\n-rw-r----- 1 7 8 300000 2023-11-14T22:13:20Z long\n$/,
  );
  const missing = await cli(["cat", "missing:/d"], { environment });
  expect([missing.code, missing.stderr]).toMatchObject([1, expect.stringContaining("no such sandbox")]);
});
