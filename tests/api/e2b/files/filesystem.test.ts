/** The service filesystem.Filesystem, as clients of E2B call it, with a native agent. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import { WATCHES_COUNT_MAX } from "../../../../src/vm/agent/protocol.ts";
import { type E2bSandbox, E2bScene } from "../../../support/e2b/scene.ts";
import { until } from "../../../support/waiting.ts";

const accounts = new Accounts();
let scene: E2bScene;
let sandbox: E2bSandbox;
let root: string;
const here = (path: string) => join(root, path);
const rpc = async (method: string, message: object, user: string | null = null) => {
  const { status, json } = await sandbox.rpc(`filesystem.Filesystem/${method}`, message, user);
  return { status, json };
};
const events = async (watcherId: string) =>
  (await rpc("GetWatcherEvents", { watcherId })).json.events.map(
    ({ type, name }: { type: string; name: string }) => `${type.replace("EVENT_TYPE_", "")} ${name}`,
  );

beforeAll(async () => {
  scene = await E2bScene.start({}, { accounts });
  sandbox = await scene.open();
  root = sandbox.machine.root;
  mkdirSync(here("etc"));
  writeFileSync(here("etc/passwd"), "root:x:0:0::/root:/bin/sh\nann:x:1234:567::/home/ann:/bin/sh\n");
  writeFileSync(here("etc/group"), "root:x:0:\nstaff:x:567:\n");
}, 120_000);
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

describe("Stat", () => {
  test("describes a file, a directory, and what a symlink leads to", async () => {
    mkdirSync(here("s/d"), { recursive: true });
    writeFileSync(here("s/f"), "12345");
    chownSync(here("s/f"), 1234, 567);
    chmodSync(here("s/f"), 0o4751);
    execFileSync("setfattr", ["-n", "user.e2b.note", "-v", "text", here("s/f")]);
    execFileSync("setfattr", ["-n", "user.other", "-v", "text", here("s/f")]);
    execFileSync("setfattr", ["-n", "user.e2b.bytes", "-v", "0xff00", here("s/f")]);
    utimesSync(here("s/f"), 1_700_000_000.5, 1_700_000_000.5);
    symlinkSync("s/f", here("to-f"));
    symlinkSync("gone", here("s/broken"));
    const stat = async (path: string) => (await rpc("Stat", { path })).json.entry;
    const file = {
      ...{ name: "f", type: "FILE_TYPE_FILE", path: "/s/f", size: "5", mode: 0o751, permissions: "-rwsr-x--x" },
      ...{ owner: "ann", group: "staff", modifiedTime: "2023-11-14T22:13:20.500000000Z", metadata: { note: "text" } },
    };
    expect(await stat("/s//./f")).toEqual(file);
    expect(await stat("/to-f")).toEqual({
      ...file,
      ...{ name: "to-f", path: "/to-f", permissions: "lrwxrwxrwx", symlinkTarget: "/s/f" },
    });
    expect(await stat("/s/broken")).toMatchObject({ type: "FILE_TYPE_SYMLINK", symlinkTarget: "/s/gone" });
    expect(await stat("/s/d")).toMatchObject({ type: "FILE_TYPE_DIRECTORY", permissions: "drwxr-xr-x", owner: "root" });
    expect(await stat("/")).toMatchObject({ name: "/", path: "/", type: "FILE_TYPE_DIRECTORY" });
    chownSync(here("s/f"), 77, 78);
    expect(await stat("/s/f")).toMatchObject({ owner: "77", group: "78" });
  });

  test("refuses what is missing, and users that the guest does not have", async () => {
    expect(await rpc("Stat", { path: "/none" })).toMatchObject({ status: 404, json: { code: "not_found" } });
    expect(await rpc("Stat", { path: "/s/f/x" })).toMatchObject({ status: 400, json: { code: "invalid_argument" } });
    expect(await rpc("Stat", { path: "/" }, "ghost")).toEqual({
      status: 401,
      json: { code: "unauthenticated", message: "invalid username: 'ghost'" },
    });
    expect((await rpc("Stat", { path: "~ghost" })).json.code).toBe("invalid_argument");
  });
});

describe("MakeDir, Move and Remove", () => {
  test("give what they make to the user", async () => {
    const created = await rpc("MakeDir", { path: "m/x/y" }, "ann");
    expect(created.json.entry).toMatchObject({ path: "/home/ann/m/x/y", owner: "ann", group: "staff", mode: 0o755 });
    for (const path of ["home", "home/ann/m/x"]) expect(statSync(here(path)).uid).toBe(1234);
    expect(await rpc("MakeDir", { path: "~/m" }, "ann")).toMatchObject({
      status: 409,
      json: { code: "already_exists" },
    });
    writeFileSync(here("home/ann/m/f"), "f");
    expect((await rpc("MakeDir", { path: "~/m/f" }, "ann")).json).toMatchObject({
      code: "invalid_argument",
      message: "path already exists but it is not a directory: /home/ann/m/f",
    });
    const moved = await rpc("Move", { source: "/home/ann/m/f", destination: "/moved/to/g" }, "ann");
    expect(moved.json.entry).toMatchObject({ path: "/moved/to/g", name: "g", owner: "root", size: "1" });
    expect([statSync(here("moved")).uid, readFileSync(here("moved/to/g"), "utf8")]).toEqual([1234, "f"]);
    writeFileSync(here("moved/h"), "h");
    expect((await rpc("Move", { source: "/moved/h", destination: "/moved/to/g" })).status).toBe(200);
    expect(readFileSync(here("moved/to/g"), "utf8")).toBe("h");
    expect((await rpc("Move", { source: "/moved/h", destination: "/moved/i" })).json.code).toBe("not_found");
    symlinkSync("to/g", here("moved/l"));
    expect((await rpc("Move", { source: "/moved/l", destination: "/moved/k" })).json.entry).toMatchObject({
      ...{ type: "FILE_TYPE_FILE", symlinkTarget: "/moved/to/g", path: "/moved/k" },
    });
    for (let turn = 0; turn < 2; turn++) {
      expect(await rpc("Remove", { path: "/moved" })).toEqual({ status: 200, json: {} });
    }
    expect(existsSync(here("moved"))).toBeFalse();
  });
});

describe("ListDir", () => {
  test("has each directory before its entries, which are in the order of their names", async () => {
    for (const path of ["l/b/z", "l/b/a", "l/b-c", "l/a"]) mkdirSync(here(path), { recursive: true });
    for (const path of ["l/b/z/1", "l/b.txt", "l/B"]) writeFileSync(here(path), "");
    symlinkSync("b", here("l/link"));
    symlinkSync("l", here("list"));
    execFileSync("setfattr", ["-n", "user.e2b.note", "-v", "text", here("l/b.txt")]);
    const list = async (path: string, depth?: number) => (await rpc("ListDir", { path, depth })).json.entries;
    const names = async (path: string, depth?: number) =>
      (await list(path, depth)).map(({ path: at }: { path: string }) => at.slice(path.length + 1));
    expect(await names("/l")).toEqual(["B", "a", "b", "b-c", "b.txt", "link"]);
    expect(await names("/list", 9)).toEqual(["B", "a", "b", "b/a", "b/z", "b/z/1", "b-c", "b.txt", "link"]);
    const entries = await list("/l", 1);
    expect(entries[4]).toMatchObject({ path: "/l/b.txt", metadata: { note: "text" } });
    expect(entries[5]).toMatchObject({ type: "FILE_TYPE_DIRECTORY", symlinkTarget: "/l/b" });
    expect(await list("/l/a")).toEqual([]);
    expect((await rpc("ListDir", { path: "/l/b.txt" })).json.code).toBe("invalid_argument");
    expect((await rpc("ListDir", { path: "/none" })).json.code).toBe("not_found");
  });

  test("shows names whose bytes are not UTF-8", async () => {
    mkdirSync(here("bytes"));
    writeFileSync(Buffer.concat([Buffer.from(`${here("bytes")}/`), Buffer.of(0xff, 0x0a, 0x22)]), "");
    expect((await rpc("ListDir", { path: "/bytes" })).json.entries).toMatchObject([{ name: '\ufffd\n"' }]);
  });

  test("of too many entries is refused", async () => {
    mkdirSync(here("huge"));
    execFileSync("sh", ["-c", "seq 50001 | xargs touch"], { cwd: here("huge") });
    expect(await rpc("ListDir", { path: "/huge" })).toMatchObject({
      status: 429,
      json: { code: "resource_exhausted" },
    });
    rmSync(here("huge/1"));
    expect((await rpc("ListDir", { path: "/huge" })).json.entries.length).toBe(50_000);
  });
});

describe("a watcher", () => {
  const create = async (path: string, fields: object = {}) =>
    (await rpc("CreateWatcher", { path, ...fields })).json.watcherId as string;

  test("gives the events before each request at once, as the agent writes them", async () => {
    mkdirSync(here("w"));
    const watcher = await create("/w");
    expect(await events(watcher)).toEqual([]);
    const upload = { body: "some bytes", headers: { "content-type": "application/octet-stream" } };
    expect((await sandbox.envd("POST", "/files?path=/w/f", upload)).status).toBe(200);
    expect(await events(watcher)).toEqual(["CREATE f", "CHMOD f", "WRITE f"]);
    for (let turn = 0; turn < 50; turn++) {
      writeFileSync(here(`w/${turn}`), "");
      expect(await events(watcher)).toContain(`CREATE ${turn}`);
      rmSync(here(`w/${turn}`));
      expect(await events(watcher)).toContain(`REMOVE ${turn}`);
    }
    renameSync(here("w/f"), here("w/g"));
    expect(await events(watcher)).toEqual(["RENAME f", "CREATE g"]);
    expect(await rpc("RemoveWatcher", { watcher_id: watcher })).toEqual({ status: 200, json: {} });
    for (const method of ["RemoveWatcher", "GetWatcherEvents"]) {
      expect(await rpc(method, { watcherId: watcher })).toMatchObject({ status: 404, json: { code: "not_found" } });
    }
  });

  test("covers directories below, and describes entries on request", async () => {
    mkdirSync(here("deep/a"), { recursive: true });
    const watcher = await create("/deep", { recursive: true, includeEntry: true });
    symlinkSync("/etc/passwd", here("deep/a/link"));
    writeFileSync(here("deep/a/f"), "x");
    rmSync(here("deep/a/f"));
    const { json } = await rpc("GetWatcherEvents", { watcherId: watcher });
    expect(json.events[0]).toMatchObject({
      ...{ type: "EVENT_TYPE_CREATE", name: "a/link" },
      entry: { path: "/deep/a/link", type: "FILE_TYPE_FILE", symlinkTarget: "/etc/passwd" },
    });
    expect(json.events.at(-1)).toEqual({ type: "EVENT_TYPE_REMOVE", name: "a/f" });
    rmSync(here("deep"), { recursive: true });
    await rpc("RemoveWatcher", { watcherId: watcher });
  });

  test("needs a directory", async () => {
    expect((await rpc("CreateWatcher", { path: "/none" })).json.code).toBe("not_found");
    expect((await rpc("CreateWatcher", { path: "/etc/passwd" })).json.code).toBe("invalid_argument");
    const other = await scene.open();
    const watcher = await create("/etc");
    const foreign = await other.rpc("filesystem.Filesystem/GetWatcherEvents", { watcherId: watcher });
    expect(foreign.json.code).toBe("not_found");
    await rpc("RemoveWatcher", { watcherId: watcher });
  });

  test("that is not read fails after a number of events, and gives its memory back", async () => {
    mkdirSync(here("storm"));
    const watcher = await create("/storm");
    execFileSync("sh", ["-c", "for i in $(seq 6000); do : > $i; done; rm *"], { cwd: here("storm") });
    expect(await rpc("GetWatcherEvents", { watcherId: watcher })).toMatchObject({
      status: 500,
      json: { code: "internal" },
    });
    expect(await rpc("GetWatcherEvents", { watcherId: watcher })).toMatchObject({
      status: 500,
      json: { code: "internal" },
    });
    await rpc("RemoveWatcher", { watcherId: watcher });
  });

  test("ends with its sandbox", async () => {
    await until("the watches of other tests are given back", () => accounts.used("alice", "eventReaders") === 0);
    const other = await scene.open();
    expect((await other.rpc("filesystem.Filesystem/CreateWatcher", { path: "/" })).status).toBe(200);
    expect(accounts.used("alice", "eventReaders")).toBe(1);
    expect((await scene.api.call("DELETE", `/v1/sandboxes/${other.uuid}`)).status).toBeLessThan(300);
    await until("its watch is given back", () => accounts.used("alice", "eventReaders") === 0);
  });

  test("is one of a number", async () => {
    const created = await Promise.all(
      Array.from({ length: WATCHES_COUNT_MAX }, () => rpc("CreateWatcher", { path: "/etc" })),
    );
    expect(created.map(({ status }) => status)).toEqual(created.map(() => 200));
    expect((await rpc("CreateWatcher", { path: "/etc" })).json.code).toBe("resource_exhausted");
    for (const { json } of created) await rpc("RemoveWatcher", json);
    // A place is free when the guest has closed its watch.
    let again = "";
    await until("another one has a place", async () => {
      again = (await rpc("CreateWatcher", { path: "/etc" })).json.watcherId ?? "";
      return again !== "";
    });
    expect(await events(again)).toEqual([]);
    await rpc("RemoveWatcher", { watcherId: again });
  });
});

describe("WatchDir", () => {
  /** The messages of a stream, as they come. */
  async function* stream(message: object, headers: Readonly<Record<string, string>> = {}) {
    const text = Buffer.from(JSON.stringify(message));
    const body = Buffer.alloc(5 + text.byteLength);
    body.writeUInt32BE(text.byteLength, 1);
    text.copy(body, 5);
    const response = await fetch(`${scene.url}/filesystem.Filesystem/WatchDir`, {
      ...{ method: "POST", body },
      headers: { ...sandbox.headers(), "content-type": "application/connect+json", ...headers },
    });
    expect([response.status, response.headers.get("content-type")]).toEqual([200, "application/connect+json"]);
    let bytes = Buffer.alloc(0);
    for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
      bytes = Buffer.concat([bytes, chunk]);
      while (bytes.byteLength >= 5 && bytes.byteLength >= 5 + bytes.readUInt32BE(1)) {
        const end = 5 + bytes.readUInt32BE(1);
        yield { flags: bytes[0], json: JSON.parse(bytes.toString("utf8", 5, end)) };
        bytes = bytes.subarray(end);
      }
    }
    expect(bytes.byteLength).toBe(0);
  }
  type Frames = ReturnType<typeof stream>;
  const next = async (frames: Frames) =>
    (await frames.next()).value as {
      flags: number;
      json: {
        readonly start?: object;
        readonly keepalive?: object;
        readonly error?: object;
        readonly filesystem?: { readonly name: string };
      };
    };

  test("begins when it is armed, sends events as they happen, and ends with its directory", async () => {
    mkdirSync(here("live"));
    const frames = stream({ path: "/live", includeEntry: true });
    expect(await next(frames)).toEqual({ flags: 0, json: { start: {} } });
    writeFileSync(here("live/f"), "");
    expect(await next(frames)).toMatchObject({
      flags: 0,
      json: { filesystem: { name: "f", type: "EVENT_TYPE_CREATE", entry: { path: "/live/f" } } },
    });
    rmSync(here("live"), { recursive: true });
    let last = await next(frames);
    const names: string[] = [];
    for (; last.flags === 0; last = await next(frames)) names.push(last.json.filesystem?.name ?? "");
    expect([names.at(-1), last]).toEqual([".", { flags: 2, json: {} }]);
  });

  test("is kept open by messages, and ends at its deadline", async () => {
    const frames = stream({ path: "/etc" }, { "keepalive-ping-interval": "1", "connect-timeout-ms": "1500" });
    expect((await next(frames)).json).toEqual({ start: {} });
    expect((await next(frames)).json).toEqual({ keepalive: {} });
    let last = await next(frames);
    while (last.json.keepalive !== undefined) last = await next(frames);
    expect(last).toMatchObject({ flags: 2, json: { error: { code: "deadline_exceeded" } } });
  });

  test("gives its place back when its client leaves", async () => {
    const open = async () => {
      const frames = stream({ path: "/etc" });
      const { json } = await next(frames);
      // The client closes its connection.
      await frames.return(undefined);
      return "start" in json;
    };
    let openedCount = 0;
    while (openedCount < WATCHES_COUNT_MAX + 4) openedCount += (await open()) ? 1 : 0;
  });

  test("says in its last frame why it failed", async () => {
    for (const [message, code] of [
      [{ path: "/none" }, "not_found"],
      [{ path: "/etc/passwd" }, "invalid_argument"],
      [{ path: 5 }, "invalid_argument"],
    ] as const) {
      expect(await next(stream(message))).toMatchObject({ flags: 2, json: { error: { code } } });
    }
  });
});
