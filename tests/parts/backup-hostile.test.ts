/** Archives of untrusted origin, for `coppice restore`. */
import { Database } from "bun:sqlite";
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BackupError, backUp, restore } from "../../src/cli/backup/archive.ts";
import { dataLayout } from "../../src/storage/layout.ts";
import { Api } from "../support/api/api.ts";
import { type TarEntry, tar } from "../support/images/tar.ts";

let api: Api;
let directory: string;
/** a whole backup, unpacked: path and content of each file, directories without content */
let members: ReadonlyMap<string, Buffer | null>;

beforeAll(async () => {
  api = await Api.start();
  directory = await mkdtemp(join(tmpdir(), "coppice-hostile-backup-"));
  await api.addImage([[{ type: "f", path: "motd", content: "hello" }]], { tag: "app" });
  await backUp(api.parts.layout.root, join(directory, "backup.tar"));
  const unpacked = join(directory, "unpacked");
  await mkdir(unpacked);
  await Bun.$`tar -xf ${join(directory, "backup.tar")} -C ${unpacked}`.quiet();
  const entries = await readdir(unpacked, { recursive: true, withFileTypes: true });
  members = new Map(
    await Promise.all(
      entries.map(async (entry): Promise<[string, Buffer | null]> => {
        const path = join(entry.parentPath, entry.name);
        const content = entry.isDirectory() ? null : await readFile(path);
        return [path.slice(unpacked.length + 1), content];
      }),
    ),
  );
});
afterAll(async () => {
  await api[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

interface Host {
  /** a directory with one file, which no restore may change */
  readonly files: string;
  readonly data: string;
}

/** Restores the backup, but for `leaveOut` and what is below it, with other members before and after the rest. */
async function restored(make: (host: Host) => { leaveOut?: string; first?: TarEntry[]; last?: TarEntry[] }) {
  const own = await mkdtemp(join(directory, "case-"));
  const host = { files: join(own, "host"), data: join(own, "data") };
  await mkdir(host.files);
  await writeFile(join(host.files, "secret"), "of the host");
  const { leaveOut = "", first = [], last = [] } = make(host);
  const isLeftOut = (path: string) => leaveOut !== "" && (path === leaveOut || path.startsWith(`${leaveOut}/`));
  const rest = [...members].flatMap(([path, content]): TarEntry[] => {
    if (isLeftOut(path)) return [];
    return [content === null ? { path: `${path}/`, type: "directory", mode: 0o700 } : { path, content }];
  });
  const archive = join(own, "hostile.tar");
  await writeFile(archive, tar([...first, ...rest, ...last]));
  const error = await restore(archive, host.data).then(
    () => null,
    (reason: unknown) => reason,
  );
  expect(await readdir(host.files)).toEqual(["secret"]);
  expect(await readFile(join(host.files, "secret"), "utf8")).toBe("of the host");
  return { error, layout: dataLayout(host.data), host };
}

/** Name of a member of the backup. */
function memberOf(part: string, end: string): string {
  return [...members.keys()].find((path) => path.startsWith(`${part}/`) && path.endsWith(end)) ?? "";
}

/** Expects that a restore was refused before anything was put in place. */
async function expectRefused({ error, layout }: Awaited<ReturnType<typeof restored>>, message: RegExp): Promise<void> {
  expect(error).toBeInstanceOf(BackupError);
  expect((error as BackupError).message).toMatch(message);
  expect(existsSync(layout.database)).toBe(false);
  for (const part of [layout.layers, layout.keys, layout.blobs]) expect(await readdir(part)).toEqual([]);
  expect((await readdir(layout.root)).filter((name) => name.startsWith("restore-"))).toEqual([]);
}

const NOT_PLAIN = /is not a file or directory of its own: a backup has no links$/;

describe("a restore refuses an archive with", () => {
  test.each(["layers", "keys", "blobs", "events"])("a link to a directory in place of %s", async (part) => {
    const outcome = await restored(({ files }) => ({
      leaveOut: part,
      last: [{ path: part, type: "symlink", target: files }],
    }));
    await expectRefused(outcome, NOT_PLAIN);
  });

  test("a link below a part, whose target is outside or within", async () => {
    for (const target of ["host", "../keys"]) {
      const outcome = await restored(({ files }) => ({
        last: [{ path: "layers/more", type: "symlink", target: target === "host" ? files : target }],
      }));
      await expectRefused(outcome, NOT_PLAIN);
    }
  });

  test.each([
    ["the disk of a layer", "layers", ".disk"],
    ["a key", "keys", ""],
  ])("a link in place of %s", async (_what, part, end) => {
    const name = memberOf(part, end);
    const same = join(directory, "unpacked", name);
    const outcome = await restored(() => ({
      leaveOut: name,
      last: [{ path: name, type: "symlink", target: same }],
    }));
    await expectRefused(outcome, NOT_PLAIN);
  });

  test.each(["manifest.json", "coppice.db"])("a link in place of %s", async (name) => {
    const same = join(directory, "unpacked", name);
    const outcome = await restored(() => ({ leaveOut: name, last: [{ path: name, type: "symlink", target: same }] }));
    await expectRefused(outcome, NOT_PLAIN);
  });

  test("a second name of a file", async () => {
    const outcome = await restored(() => ({
      last: [{ path: "layers/again", type: "hardlink", target: memberOf("keys", "") }],
    }));
    await expectRefused(outcome, NOT_PLAIN);
  });

  test.each([
    ["by its path", (files: string) => [{ path: "layers/secret", type: "hardlink", target: `${files}/secret` }]],
    [
      "through a link",
      (files: string) => [
        { path: "layers/way", type: "symlink", target: files },
        { path: "layers/secret", type: "hardlink", target: "layers/way/secret" },
      ],
    ],
    ["by climbing", () => [{ path: "layers/secret", type: "hardlink", target: `${"../".repeat(30)}etc/passwd` }]],
  ] as const)("a second name of a file of the host, %s", async (_how, last) => {
    await expectRefused(await restored(({ files }) => ({ last: last(files) as TarEntry[] })), /./);
  });

  test.each([
    ["a pipe", "fifo"],
    ["a character device", "char"],
    ["a block device", "block"],
  ] as const)("%s", async (_what, type) => {
    const outcome = await restored(() => ({ last: [{ path: "layers/special", type, device: [1, 3] }] }));
    await expectRefused(outcome, NOT_PLAIN);
  });

  test("a name that climbs", async () => {
    const outcome = await restored(() => ({ first: [{ path: "layers/../../../host/planted", content: "x" }] }));
    await expectRefused(outcome, /\.\./);
  });

  test("an absolute name", async () => {
    const outcome = await restored(({ files }) => ({ first: [{ path: `${files}/planted`, content: "x" }] }));
    await expectRefused(outcome, /not a backup of an appliance/);
  });

  test("a rollback journal, in which SQLite would follow names", async () => {
    const outcome = await restored(() => ({ last: [{ path: "coppice.db-journal", content: "x" }] }));
    await expectRefused(outcome, /not a backup of an appliance: it has "coppice.db-journal"/);
  });

  test.each(["operations", "layers"])("an id of %s that is the path of a file of the host", async (table) => {
    const database = join(directory, `${table}.db`);
    await writeFile(database, members.get("coppice.db") ?? "");
    {
      using db = new Database(database, { create: false });
      db.run("pragma foreign_keys = off");
      db.run(`update ${table} set id = '../../host/secret' where id = (select id from ${table} limit 1)`);
      db.run("pragma journal_mode = delete");
    }
    const content = await readFile(database);
    const outcome = await restored(() => ({ leaveOut: "coppice.db", last: [{ path: "coppice.db", content }] }));
    await expectRefused(outcome, /has a wrong id: "..\/..\/host\/secret"$/);
  });

  test("a file behind a link", async () => {
    const outcome = await restored(({ files }) => ({
      first: [
        { path: "way", type: "symlink", target: files },
        { path: "way/planted", content: "x" },
      ],
    }));
    await expectRefused(outcome, /./);
  });
});

test("a backup has no links, even of files that share their content on the disk", async () => {
  const { layout } = api.parts;
  const [layer = ""] = (await readdir(layout.layers)).filter((name) => name.endsWith(".disk"));
  const [key = ""] = await readdir(layout.keys);
  await Bun.$`ln ${join(layout.layers, layer)} ${join(layout.keys, "linked")}`.quiet();
  try {
    await backUp(layout.root, join(directory, "linked.tar"));
  } finally {
    await rm(join(layout.keys, "linked"));
  }
  const listed = await Bun.$`tar -tvf ${join(directory, "linked.tar")}`.text();
  expect(listed).toContain("keys/linked");
  expect(listed).toContain(`keys/${key}`);
  expect(listed.split("\n").filter((line) => line !== "" && !/^[-d]/.test(line))).toEqual([]);
});
