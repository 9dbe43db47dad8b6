import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, open, readdir, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BackupError, backUp, restore } from "../../src/cli/backup/archive.ts";
import { openDatabase } from "../../src/db/database.ts";
import { upsertFile } from "../../src/db/files.ts";
import { getImage } from "../../src/db/images/images.ts";
import { allMergedLayers, insertMergedLayer } from "../../src/db/images/merged-layers.ts";
import { MIGRATIONS } from "../../src/db/migrations.ts";
import { revokeToken } from "../../src/db/tokens.ts";
import type { AccountId, ImageId, LayerId, OperationId, SandboxId } from "../../src/domain/ids.ts";
import { silentLog } from "../../src/log.ts";
import { sessionUseCases } from "../../src/service/sessions.ts";
import { issueToken, tokenVerifier } from "../../src/service/tokens.ts";
import { blobPath, receiveBlob } from "../../src/storage/blobs.ts";
import { eventLogPath } from "../../src/storage/events/event-file.ts";
import { dataLayout } from "../../src/storage/layout.ts";
import { openStaging } from "../../src/storage/staging.ts";
import { TokenKeys } from "../../src/storage/token-keys.ts";
import { lockFile } from "../../src/system/lock.ts";
import { allocatedBytes } from "../../src/system/sparse.ts";
import { Api } from "../support/api/api.ts";
import { migrationNames, writeOlderDatabase } from "../support/database.ts";
import { throwing } from "../support/failures.ts";

const ALICE = "alice" as AccountId;

let api: Api;
let directory: string;
let image: ImageId;
beforeEach(async () => {
  api = await Api.start();
  directory = await mkdtemp(join(tmpdir(), "coppice-backup-"));
  image = await api.addImage(
    [[{ type: "f", path: "motd", content: "hello" }], [{ type: "f", path: "x", content: "changed" }]],
    {
      tag: "app",
    },
  );
});
afterEach(async () => {
  await api[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

const root = () => api.parts.layout.root;
const at = (name: string): string => join(directory, name);

/** Exit code of `coppice backup`, where tar runs a command after each record of the archive: see tar-hook.ts. */
async function backUpWith(action: string): Promise<number> {
  const program = [process.execPath, "--preload=./tests/support/images/tar-hook.ts", "src/main.ts"];
  const argv = [...program, "backup", "--output", at("backup.tar"), "--data-dir", root()];
  const env = { ...process.env, COPPICE_TEST_TAR_ACTION: action };
  return await Bun.spawn(argv, { env, stdout: "ignore", stderr: "ignore" }).exited;
}

describe("a backup", () => {
  test("of a running service is restored with everything that it refers to", async () => {
    const content = Buffer.from("an input file");
    const { sha256, sizeBytes } = await receiveBlob(api.parts.layout, one(content), 1000);
    upsertFile(api.parts.db, { accountId: ALICE, sha256, sizeBytes, now: 1 });
    const backup = await backUp(root(), at("backup.tar"));
    expect(backup).toMatchObject({ images: 2, layers: 2, files: 1 });
    expect((await stat(at("backup.tar"))).mode & 0o777).toBe(0o600);
    expect(await readdir(directory)).toEqual(["backup.tar"]);
    expect((await readdir(root())).filter((name) => name.startsWith("backup-"))).toEqual([]);

    await restore(at("backup.tar"), at("data"));
    const layout = dataLayout(at("data"));
    using db = openDatabase(layout.database);
    expect(getImage(db, ALICE, image)).toEqual(getImage(api.parts.db, ALICE, image));
    expect(await readFile(blobPath(layout, sha256))).toEqual(content);
    for (const part of ["layers", "keys"] as const) {
      expect(await contentsOf(layout[part])).toEqual(await contentsOf(api.parts.layout[part]));
    }
    expect((await readdir(at("data"))).filter((name) => name.startsWith("restore-"))).toEqual([]);
    // The keys are the same, so issued tokens stay valid.
    await TokenKeys.open(layout.keys);
    expect((await stat(layout.root)).mode & 0o777).toBe(0o700);
  });

  test("has the events of sandboxes, also while they are written", async () => {
    const { uuid } = (await api.call("POST", "/v1/sandboxes", { json: { image: "tag:app" } })).json as {
      uuid: SandboxId;
    };
    using log = await api.parts.eventLogs.openRing(uuid);
    log.append(null, "ends_soon", { ends_at: "2026-11-20T10:30:00Z" });
    await log.written();
    await backUp(root(), at("backup.tar"));
    await log.end();
    await restore(at("backup.tar"), at("data"));
    const [segment = ""] = await readdir(eventLogPath(dataLayout(at("data")), uuid));
    expect(await readFile(join(eventLogPath(dataLayout(at("data")), uuid), segment), "latin1")).toContain("ends_at");
  });

  test("has the events of operations that have ended", async () => {
    const { operations, parts } = api;
    const result = { exit_code: 0, stdout: { truncated: false, bytes: 0 }, stderr: { truncated: false, bytes: 0 } };
    const ids = Array.from({ length: 4 }, () => operations.insert(ALICE, "instance").id);
    const [logged, silent, failed, running] = ids as [OperationId, OperationId, OperationId, OperationId];
    for (const id of ids) operations.start(id);
    for (const id of [logged, failed, running]) await writeFile(eventLogPath(parts.layout, id), `log of ${id}`);
    operations.succeed(logged, result);
    operations.succeed(silent, result);
    operations.fail(failed, { error: "unavailable", message: "x", details: {} });
    await backUp(root(), at("backup.tar"));
    await restore(at("backup.tar"), at("data"));
    const restored = dataLayout(at("data"));
    expect((await readdir(restored.events)).sort()).toEqual([logged, failed].sort());
    expect(await readFile(eventLogPath(restored, logged), "utf8")).toBe(`log of ${logged}`);
  });

  test.each([2, 4])("of another format (%d) is refused", async (format) => {
    await backUp(root(), at("backup.tar"));
    await Bun.$`mkdir ${at("x")} && tar -xf ${at("backup.tar")} -C ${at("x")}`.quiet();
    const manifest = JSON.parse(await readFile(join(at("x"), "manifest.json"), "utf8"));
    await writeFile(join(at("x"), "manifest.json"), JSON.stringify({ ...manifest, format }));
    await Bun.$`tar -cf ${at("other.tar")} -C ${at("x")} .`.quiet();
    const refusal = `has format ${format}; this program reads 3`;
    expect(await throwing(restore(at("other.tar"), at("data")))).toThrow(refusal);
  });

  test("can be read by no other user while it is written, not even through an unfinished archive that was opened before", async () => {
    const partial = at(".backup.tar.partial");
    await writeFile(partial, "of a backup that was killed", { mode: 0o644 });
    await using opened = await open(partial);
    const modes = at("modes");
    expect(await backUpWith(`stat -c %a "$TAR_ARCHIVE" >> ${modes}`)).toBe(0);
    expect(new Set((await readFile(modes, "utf8")).trim().split("\n"))).toEqual(new Set(["600"]));
    await rm(modes);
    expect(await opened.readFile("utf8")).toBe("of a backup that was killed");
    expect(await readdir(directory)).toEqual(["backup.tar"]);
  });

  test("whose terminal is closed leaves nothing behind", async () => {
    expect(await backUpWith("kill -HUP $COPPICE; exec sleep infinity")).toBe(1);
    expect(await readdir(directory)).toEqual([]);
    expect((await readdir(root())).filter((entry) => entry.startsWith("backup-"))).toEqual([]);
  });

  test("is of one moment: later changes are not in it", async () => {
    await backUp(root(), at("backup.tar"));
    await api.addImage([[{ type: "f", path: "later", content: "x" }]], { tag: "later" });
    await restore(at("backup.tar"), at("data"));
    expect((await readdir(dataLayout(at("data")).layers)).length).toBe(4);
  });

  test("does not contain files that nothing refers to", async () => {
    await writeFile(join(api.parts.layout.layers, `${Bun.randomUUIDv7()}.disk`), "garbage");
    await backUp(root(), at("backup.tar"));
    await restore(at("backup.tar"), at("data"));
    expect((await readdir(dataLayout(at("data")).layers)).length).toBe(4);
  });

  test("keeps the holes of sparse files", async () => {
    const [name = ""] = (await readdir(api.parts.layout.layers)).filter((entry) => entry.endsWith(".disk"));
    const path = join(api.parts.layout.layers, name);
    const size = 512 * 1024 ** 2;
    await truncate(path, size);
    api.parts.db.orm.run(`update layers set disk_bytes = ${size} where id = '${name.replace(".disk", "")}'`);
    const { sizeBytes } = await backUp(root(), at("backup.tar"));
    expect(sizeBytes).toBeLessThan(8 * 1024 ** 2);
    await restore(at("backup.tar"), at("data"));
    const restored = join(dataLayout(at("data")).layers, name);
    expect((await stat(restored)).size).toBe(size);
    expect(await allocatedBytes(restored)).toBeLessThan(8 * 1024 ** 2);
  });

  test("has no sessions of the page: a restore signs no client in again that has signed out", async () => {
    const { db, keys } = api.parts;
    const verifyToken = tokenVerifier(db, keys, Date.now);
    const page = await sessionUseCases({ db, log: silentLog, keys, verifyToken, clock: Date.now }).begin(api.token, []);
    await backUp(root(), at("backup.tar"));
    await restore(at("backup.tar"), at("data"));
    const layout = dataLayout(at("data"));
    using restored = openDatabase(layout.database);
    const common = { log: silentLog, verifyToken, clock: Date.now };
    const parts = { ...common, db: restored, keys: await TokenKeys.open(layout.keys) };
    expect(await sessionUseCases(parts).find(page)).toBeNull();
    expect(await sessionUseCases({ ...parts, db, keys }).find(page)).not.toBeNull();
  });

  test("leaves merged layers out, with their rows", async () => {
    const [first, second] = layerRows();
    const merged = { id: Bun.randomUUIDv7() as LayerId, accountId: ALICE, sizeBytes: 1, entryCount: 1, now: 1 };
    insertMergedLayer(api.parts.db, { ...merged, belowId: first as LayerId, topId: second as LayerId });
    await backUp(root(), at("backup.tar"));
    expect(allMergedLayers(api.parts.db)).toEqual([merged.id]);
    await Bun.$`mkdir ${at("x")} && tar -xf ${at("backup.tar")} -C ${at("x")}`.quiet();
    using db = openDatabase(dataLayout(at("x")).database);
    expect(allMergedLayers(db)).toEqual([]);
  });

  test("keeps the schema of an appliance of an older version, and so does the archive", async () => {
    const layout = dataLayout(at("old"));
    await layout.ensure();
    const older = writeOlderDatabase(layout.database);
    await backUp(layout.root, at("backup.tar"));
    await Bun.$`mkdir ${at("x")} && tar -xf ${at("backup.tar")} -C ${at("x")}`.quiet();
    for (const directory of [layout.root, at("x")]) {
      using db = openDatabase(dataLayout(directory).database, "keep");
      expect(migrationNames(db)).toEqual(older);
    }
    await restore(at("backup.tar"), at("data"));
    using restored = openDatabase(dataLayout(at("data")).database, "require");
    expect(migrationNames(restored)).toEqual(MIGRATIONS.map(({ name }) => name));
  });

  test("that was killed leaves files that the next one removes", async () => {
    // A killed process leaves the directory with links and keys, and no lock.
    const abandoned = join(root(), "backup-Abc123");
    await mkdir(join(abandoned, "keys"), { recursive: true });
    await using running = await openStaging(api.parts.layout, "backup");
    await backUp(root(), at("backup.tar"));
    expect(existsSync(abandoned)).toBe(false);
    expect(existsSync(running.path)).toBe(true);
  });

  test("that is interrupted leaves nothing behind", async () => {
    const interrupted = new AbortController();
    const interruption = backUp(root(), at("backup.tar"), interrupted.signal);
    interrupted.abort(new Error("enough"));
    expect(await throwing(interruption)).toThrow("enough");
    expect(await readdir(directory)).toEqual([]);
    expect((await readdir(root())).filter((entry) => entry.startsWith("backup-"))).toEqual([]);
  });

  test("fails when a layer is missing, and leaves nothing behind", async () => {
    const [name = ""] = await readdir(api.parts.layout.layers);
    await rm(join(api.parts.layout.layers, name));
    expect(await throwing(backUp(root(), at("backup.tar")))).toThrow(BackupError);
    expect(await readdir(directory)).toEqual([]);
    expect((await readdir(root())).filter((entry) => entry.startsWith("backup-"))).toEqual([]);
  });
});

describe("a restore", () => {
  beforeEach(() => backUp(root(), at("backup.tar")));

  test("never overwrites a database", async () => {
    expect(await throwing(restore(at("backup.tar"), root()))).toThrow("has a database already");
  });

  test("revokes the tokens of the backup if asked to, and none otherwise", async () => {
    const request = { account: ALICE, scopes: ["*"], ttlMs: 60_000, now: Date.now() };
    const { token, row } = await issueToken(api.parts.db, await TokenKeys.open(api.parts.layout.keys), request);
    await backUp(root(), at("later.tar"));
    revokeToken(api.parts.db, row.jti, Date.now());
    await restore(at("later.tar"), at("data"));
    expect(await accepts(at("data"), token)).toBe(true);
    await restore(at("later.tar"), at("rotated"), { rotateKeys: true });
    expect(await accepts(at("rotated"), token)).toBe(false);
    const renewed = openDatabase(dataLayout(at("rotated")).database);
    using _renewed = renewed;
    const issued = await issueToken(renewed, await TokenKeys.open(dataLayout(at("rotated")).keys), request);
    expect(await accepts(at("rotated"), issued.token)).toBe(true);
  });

  test("of an older version's backup removes rows of merged layers", async () => {
    await Bun.$`mkdir ${at("x")} && tar -xf ${at("backup.tar")} -C ${at("x")}`.quiet();
    {
      using db = openDatabase(dataLayout(at("x")).database);
      const [first, second] = layerRows();
      const merged = { id: Bun.randomUUIDv7() as LayerId, accountId: ALICE, sizeBytes: 1, entryCount: 1, now: 1 };
      insertMergedLayer(db, { ...merged, belowId: first as LayerId, topId: second as LayerId });
    }
    await Bun.$`tar -cf ${at("old.tar")} -C ${at("x")} .`.quiet();
    await restore(at("old.tar"), at("data"));
    using db = openDatabase(dataLayout(at("data")).database);
    expect(allMergedLayers(db)).toEqual([]);
  });

  test("is refused while an appliance uses the directory", async () => {
    const layout = dataLayout(at("data"));
    await layout.ensure();
    using _lock = lockFile(layout.lock);
    expect(await throwing(restore(at("backup.tar"), at("data")))).toThrow("in use by a running appliance");
  });

  test.each([
    ["cut off", async (path: string) => truncate(path, Math.floor((await stat(path)).size / 2))],
    ["no archive", (path: string) => writeFile(path, "not a tar")],
    ["missing", (path: string) => rm(path)],
  ])("of one that is %s puts nothing in place", async (_what, damage) => {
    await damage(at("backup.tar"));
    expect(await throwing(restore(at("backup.tar"), at("data")))).toThrow(BackupError);
    expect(existsSync(dataLayout(at("data")).database)).toBe(false);
  });

  test("of another kind of archive puts nothing in place", async () => {
    await mkdir(at("other"));
    await writeFile(at("other/file"), "x");
    await Bun.$`tar -cf ${at("other.tar")} -C ${at("other")} file`.quiet();
    expect(await throwing(restore(at("other.tar"), at("data")))).toThrow("not a backup of an appliance");
  });

  test("of one whose layer was changed puts nothing in place", async () => {
    await Bun.$`mkdir ${at("x")} && tar -xf ${at("backup.tar")} -C ${at("x")}`.quiet();
    const [name = ""] = (await readdir(at("x/layers"))).filter((entry) => entry.endsWith(".disk"));
    await truncate(join(at("x/layers"), name), 10);
    await Bun.$`tar -cf ${at("bad.tar")} -C ${at("x")} .`.quiet();
    expect(await throwing(restore(at("bad.tar"), at("data")))).toThrow("incomplete: the disk of layer");
    expect(await readdir(dataLayout(at("data")).layers)).toEqual([]);
  });
});

function layerRows(): LayerId[] {
  return api.parts.db.orm.all<{ id: LayerId }>("select id from layers order by created_at, id").map(({ id }) => id);
}

async function accepts(dataDirectory: string, token: string): Promise<boolean> {
  const layout = dataLayout(dataDirectory);
  using db = openDatabase(layout.database);
  return (await tokenVerifier(db, await TokenKeys.open(layout.keys), Date.now)(token)) !== null;
}

async function contentsOf(path: string): Promise<Record<string, string>> {
  const names = (await readdir(path)).sort();
  const hashes = await Promise.all(names.map(async (name) => Bun.SHA256.hash(await readFile(join(path, name)), "hex")));
  return Object.fromEntries(names.map((name, index) => [name, hashes[index] ?? ""]));
}

async function* one(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes;
}
