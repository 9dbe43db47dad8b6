import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { lstatSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { mkdir, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import { parseRegistryReference } from "../../../src/domain/registry-reference.ts";
import { buildBaseDisk } from "../../../src/oci/base-disk.ts";
import { LAYOUT_TAG } from "../../../src/oci/layout.ts";
import { buildScratchTemplate, createScratch } from "../../../src/oci/scratch-disk.ts";
import { copyToLayout, inspectImage } from "../../../src/oci/skopeo.ts";
import { runTool } from "../../../src/oci/tool.ts";
import { commonFailure } from "../../../src/oci/tool-failure.ts";
import { unpack } from "../../../src/oci/umoci.ts";
import { run } from "../../../src/system/exec.ts";
import { type ScratchDirectory, scratchDirectory } from "../../../src/system/scratch.ts";
import { allocatedBytes } from "../../../src/system/sparse.ts";
import { ToolNetwork } from "../../../src/system/tool-network.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { builtAssets } from "../../support/guests/vm.ts";
import { awkwardImage, type ImageSpec, pushImage } from "../../support/images/images.ts";
import { Registry } from "../../support/images/registry.ts";
import { testGate } from "../../support/network/gate.ts";

setDefaultTimeout(60_000);

const MIB = 1_048_576;
const { launcher } = builtAssets();
const bounds = { launcher, timeoutMs: 60_000, signal: new AbortController().signal };
/** Current mounts of file systems of disks. */
const diskMounts = () =>
  readFileSync("/proc/self/mountinfo", "utf8")
    .split("\n")
    .filter((line) => / - (erofs|ext[234]|squashfs|overlay|fuse\S*) |\/dev\/loop/.test(line));
const mountsBefore = diskMounts();

let registry: Registry;
let scratch: ScratchDirectory;

beforeAll(async () => {
  registry = await Registry.start();
  scratch = await scratchDirectory(tmpdir(), "disk-");
});

afterAll(async () => {
  await registry[Symbol.asyncDispose]();
  await scratch[Symbol.asyncDispose]();
  // The host never mounts a disk.
  expect(diskMounts()).toEqual(mountsBefore);
});

let count = 0;
async function unpacked(image: ImageSpec): Promise<{ staging: string; root: string; path: string }> {
  count += 1;
  const at = (name: string) => join(scratch.path, `${name}-${count}`);
  const reference = parseRegistryReference(await pushImage(registry, `image-${count}:1`, image));
  using network = new ToolNetwork();
  await using outside = await testGate();
  const access = {
    credentials: null,
    settings: registry.settings,
    hosts: { [registry.host]: {} },
    network,
    gate: outside.gate,
    scratch: scratch.path,
    ...bounds,
  };
  const selection = await inspectImage(reference, access);
  await copyToLayout(reference, { ...access, selection, directory: at("layout"), onProgress: () => undefined });
  await mkdir(at("staging"));
  await unpack({ layout: at("layout"), tag: LAYOUT_TAG, into: join(at("staging"), "upper"), ...bounds });
  return { staging: at("staging"), root: join(at("staging"), "upper"), path: at("disk") };
}

const output = async (...argv: string[]): Promise<string> => {
  const { stdout } = await run({ argv, timeoutMs: 30_000, stdoutBytesMax: 16 * MIB });
  return Buffer.from(stdout).toString("latin1");
};

/** One line for each entry, sorted by name: everything that a layer must keep. */
function tree(root: string): string[] {
  const lines: string[] = [];
  const inodes = new Map<number, string>();
  const visit = (directory: Buffer, prefix: string): void => {
    const names = readdirSync(directory, { encoding: "buffer" }).sort(Buffer.compare);
    for (const name of names) {
      const path = Buffer.concat([directory, Buffer.from("/"), name]);
      const relative = `${prefix}/${name.toString("latin1")}`;
      const info = lstatSync(path);
      const facts = [info.mode.toString(8), info.uid, info.gid, Math.floor(info.mtimeMs / 1000), info.rdev];
      if (info.isFile()) facts.push(createHash("sha256").update(readFileSync(path)).digest("hex"));
      if (info.isSymbolicLink()) facts.push(readlinkSync(path));
      if (info.isFile() && info.nlink > 1) facts.push(inodes.get(info.ino) ?? "first of its links");
      inodes.set(info.ino, relative);
      lines.push(`${JSON.stringify(relative)} ${facts.join(" ")}`);
      if (info.isDirectory()) visit(path, relative);
    }
  };
  visit(Buffer.from(root), "");
  return lines;
}

/** The mode in the inode, whose number and link count dump.erofs prints. */
async function erofsInode(disk: string, path: string): Promise<{ mode: number; links: number }> {
  const text = await output("dump.erofs", `--path=${path}`, disk);
  const [, nid, links] = /NID: (\d+)\s+Links: (\d+)/.exec(text) ?? [];
  const bytes = readFileSync(disk);
  const metadata = bytes.readUInt32LE(1024 + 40) * 4096;
  return { mode: bytes.readUInt16LE(metadata + Number(nid) * 32 + 4), links: Number(links) };
}

test("an image is unpacked as its layers say", async () => {
  const { root } = await unpacked(awkwardImage({ long: true }));
  const entries = new Map(tree(root).map((line) => [JSON.parse(/^"(?:[^"\\]|\\.)*"/.exec(line)?.[0] ?? '""'), line]));
  const facts = (name: string) =>
    entries
      .get(name)
      ?.replace(/^"(?:[^"\\]|\\.)*" /, "")
      .split(" ")
      .slice(0, 3);
  expect(facts("/bin/suid")).toEqual(["104755", "0", "0"]);
  expect(facts("/bin/sgid")).toEqual(["102755", "12", "34"]);
  expect(facts("/owned")).toEqual(["100600", "1000000", "4294967294"]);
  expect(facts("/dev/null")?.[0]).toBe("20666");
  expect(lstatSync(join(root, "dev/null")).rdev).toBe(0x103);
  expect(facts("/dev/disk")).toEqual(["60660", "0", "6"]);
  expect(facts("/fifo")?.[0]).toBe("10640");
  expect(lstatSync(join(root, "bin/link")).ino).toBe(lstatSync(join(root, "bin/suid")).ino);
  expect(lstatSync(join(root, "owned")).mtimeMs).toBe(1_234_567_890_000);
  for (const name of ["/\xff\xfeA", "/new\nline", `/${"l".repeat(255)}`, "/kept/new", "/implicit/parent/file"]) {
    expect(entries.has(name)).toBe(true);
  }
  for (const name of ["/gone", "/kept/old", "/was-directory/inner", "/.wh.gone"]) expect(entries.has(name)).toBe(false);
  expect([facts("/was-file")?.[0], facts("/was-directory")?.[0]]).toEqual(["40711", "100644"]);
  // This process's umask does not affect the modes of the image.
  expect([lstatSync(root).mode & 0o7777, facts("/implicit")?.[0]]).toEqual([0o755, "40755"]);
  expect(await output("getfattr", "--absolute-names", "-d", "-m", "-", "-e", "hex", join(root, "attributes"))).toMatch(
    /trusted.bytes=0x00ff0a\nuser.color=0x626c7565\n/,
  );
});

test("attributes that need root on the host are those of the last layer, and part of the disk", async () => {
  const entry = (content: string, xattrs: Record<string, string>) => ({ path: "a", content, xattrs });
  const directory = (xattrs: Record<string, string>) => ({ path: "d", type: "directory", xattrs }) as const;
  const { staging, root, path } = await unpacked({
    layers: [
      [entry("x", { "security.ima": "first" }), directory({ "security.gone": "gone", "user.gone": "gone" })],
      [entry("y", { "security.ima": "second", "security.note": "third" }), directory({ "security.stays": "fourth" })],
    ],
  });
  const attributes = async (name: string) =>
    (await output("getfattr", "--absolute-names", "-d", "-m", "-", join(root, name)))
      .split("\n")
      .filter((line) => line.includes("="));
  expect((await attributes("a")).sort()).toEqual(['security.ima="second"', 'security.note="third"']);
  expect(await attributes("d")).toEqual(['security.stays="fourth"']);
  expect(await buildBaseDisk({ staging, path, ...bounds })).toEqual({ format: "erofs" });
  const disk = readFileSync(path);
  const values = ["first", "gone", "second", "third", "fourth"];
  expect(values.filter((value) => disk.includes(value))).toEqual(["second", "third", "fourth"]);
});

test("this process's umask does not affect the image", async () => {
  const before = process.umask(0o077);
  const { root } = await unpacked({ layers: [[{ path: "a/b/file", content: "x" }]] });
  process.umask(before);
  expect([root, join(root, "a"), join(root, "a/b")].map((path) => lstatSync(path).mode & 0o7777)).toEqual([
    0o755, 0o755, 0o755,
  ]);
});

test("a base disk is EROFS, contains the tree, and is reproducible", async () => {
  const { staging, root, path } = await unpacked(awkwardImage({ long: false }));
  expect(await buildBaseDisk({ staging, path, ...bounds })).toEqual({ format: "erofs" });
  const again = `${path}-again`;
  await buildBaseDisk({ staging, path: again, ...bounds });
  const hash = (file: string) => createHash("sha256").update(readFileSync(file)).digest("hex");
  expect(hash(again)).toBe(hash(path));
  const extracted = `${path}-extracted`;
  await output("fsck.erofs", "--preserve", `--extract=${extracted}`, path);
  expect(readdirSync(extracted)).toEqual(["upper"]);
  // The extracting tool drops set-UID bits and hard links, so the test reads these from the disk.
  const common = (line: string) =>
    line.replace(/( 10)\d(\d{3} )/, "$10$2").replace(/ (first of its links|\/bin\/link)$/, "");
  expect(tree(join(extracted, "upper")).map(common)).toEqual(tree(root).map(common));
  expect(await erofsInode(path, "/upper/bin/suid")).toEqual({ mode: 0o104755, links: 2 });
  expect(await erofsInode(path, "/upper/bin/sgid")).toEqual({ mode: 0o102755, links: 1 });
  // Attributes of the namespace "trusted" are left out; those of users are kept.
  expect([Buffer.from([0, 255, 10]), "blue"].map((value) => readFileSync(path).includes(value))).toEqual([false, true]);
});

test("an EROFS disk keeps times before 1970 and after 2100", async () => {
  const { staging, root, path } = await unpacked({ layers: [[{ path: "early" }, { path: "late" }]] });
  await output("touch", "--date=@-86400", join(root, "early"));
  await output("touch", "--date=@7258118400", join(root, "late"));
  expect(await buildBaseDisk({ staging, path, ...bounds })).toEqual({ format: "erofs" });
  expect(await output("dump.erofs", "--path=/upper/early", path)).toContain("1969-12-31 00:00:00.000000000");
  expect(await output("dump.erofs", "--path=/upper/late", path)).toContain("2200-01-01 00:00:00.000000000");
});

test("a tree that mkfs.erofs refuses becomes ext4", async () => {
  const { staging, path } = await unpacked(awkwardImage({ long: true }));
  expect(await buildBaseDisk({ staging, path, ...bounds })).toEqual({ format: "ext4" });
  await output("e2fsck", "-fn", path);
  const stats = await output("debugfs", "-R", "stat /upper/bin/suid", path);
  expect(stats).toMatch(/Mode:\s+04755/);
  expect(stats).toMatch(/Links: 2/);
  expect(await output("debugfs", "-R", "stat /upper/owned", path)).toMatch(/User: 1000000 +Group: +-2 /);
  expect(await output("debugfs", "-R", "stat /upper/dev/null", path)).toMatch(/character special[\s\S]*01:03/);
  expect(await output("debugfs", "-R", `cat /upper/${"l".repeat(255)}`, path)).toBe("255");
  expect(await output("debugfs", "-R", "cat /upper/big", path)).toHaveLength(300_000);
  expect(await output("debugfs", "-R", "ea_get /upper/attributes user.color", path)).toContain("blue");
  expect((await stat(path)).size).toBeGreaterThan(64 * MIB);
  expect(await allocatedBytes(path)).toBeLessThan(4 * MIB);
});

test("ext4 has room for many small files", async () => {
  const staging = join(scratch.path, "many");
  const root = join(staging, "upper");
  await mkdir(root, { recursive: true });
  await writeFile(join(root, "l".repeat(255)), "");
  for (let directory = 0; directory < 8; directory += 1) {
    await mkdir(join(root, `d${directory}`));
    for (let file = 0; file < 500; file += 1) await writeFile(join(root, `d${directory}`, `f${file}`), "x");
  }
  const path = join(scratch.path, "many.disk");
  expect(await buildBaseDisk({ staging, path, ...bounds })).toEqual({ format: "ext4" });
  await output("e2fsck", "-fn", path);
});

test("a tree with too many files for the memory of mkfs.erofs becomes ext4", async () => {
  const { staging, path } = await unpacked(awkwardImage({ long: false }));
  const usage = { bytes: MIB, entries: 360_000 };
  expect(await buildBaseDisk({ staging, path, usage, ...bounds })).toEqual({ format: "ext4" });
  await output("e2fsck", "-fn", path);
  expect(await allocatedBytes(path)).toBeLessThan(128 * MIB);
});

test("a tree that mke2fs could not finish is refused", async () => {
  const staging = join(scratch.path, "huge");
  await mkdir(join(staging, "upper"), { recursive: true });
  await writeFile(join(staging, "upper", "l".repeat(255)), "");
  const make = 'cd "$1/upper" && seq 50001 | xargs touch';
  await run({ argv: ["sh", "-c", make, "sh", staging], timeoutMs: 30_000 });
  const disk = buildBaseDisk({ staging, path: join(scratch.path, "huge.disk"), ...bounds });
  expect(await throwing(disk)).toThrow(/^the image has a directory of more than 50000 entries/);
  await rm(staging, { recursive: true });
});

test("a tool that exceeds the memory or processes of its import is ended", async () => {
  await using groups = await openCgroupTree({ namespace: `coppice-test-${process.pid}` });
  await using group = await groups.create("import", { memoryBytes: 16 * MIB, pids: 32 });
  const confinement = { readable: [], writable: [], network: null };
  const tool = (...argv: string[]) => runTool({ argv, confinement }, { ...bounds, controlGroups: group.directories });
  expect(Buffer.from(await tool("cat", "/proc/self/cgroup")).toString()).toContain("/import\n");
  const killed: unknown = await tool("tail", "/dev/zero").catch((error: unknown) => error);
  expect(commonFailure(killed, bounds.timeoutMs)).toMatchObject({
    code: "payload_too_large",
    message: "the image takes more memory than tail may use",
  });
  const forks = tool("sh", "-c", "for each in $(seq 64); do sleep 60 & done");
  expect(await failureOf(forks)).toMatchObject({ stderrTail: expect.stringContaining("Cannot fork") });
  expect(await group.pids()).toEqual([]);
});

test("missing directories are added, and a symlink in their place is kept", async () => {
  const staging = join(scratch.path, "added");
  const root = join(staging, "upper");
  const outside = join(scratch.path, "outside");
  await mkdir(root, { recursive: true });
  await mkdir(outside);
  await symlink(outside, join(root, "tmp"));
  await symlink(join(outside, "made"), join(root, "root"));
  await writeFile(join(root, "dev"), "a file");
  await buildBaseDisk({ staging, path: join(scratch.path, "added.disk"), ...bounds });
  expect(readdirSync(root).sort()).toEqual(["dev", "proc", "root", "sys", "tmp"]);
  expect(readdirSync(outside)).toEqual([]);
  expect(lstatSync(join(root, "proc")).mode & 0o7777).toBe(0o755);
  const empty = await unpacked({ layers: [[{ path: "x" }]], config: {} });
  await buildBaseDisk({ staging: empty.staging, path: empty.path, ...bounds });
  const modes = ["tmp", "root", "dev"].map((name) => lstatSync(join(empty.root, name)).mode & 0o7777);
  expect(modes).toEqual([0o1777, 0o700, 0o755]);
});

test("a malformed layout is validation_error, and a tool that is too slow unavailable", async () => {
  const { root } = await unpacked({ layers: [[{ path: "x" }]] });
  const layout = join(scratch.path, `layout-${count}`);
  const code = (promise: Promise<unknown>) =>
    promise.then(
      () => "done",
      (error: unknown) => (error instanceof ApiError ? `${error.code}: ${error.message}` : String(error)),
    );
  const into = join(scratch.path, "nowhere");
  expect(await code(unpack({ layout, tag: "other", into, ...bounds }))).toMatch(
    /^validation_error: the image cannot be unpacked: .*tag is not found: other/,
  );
  await rm(join(layout, "blobs"), { recursive: true });
  expect(await code(unpack({ layout, into, ...bounds }))).toMatch(/^validation_error/);
  const late = buildBaseDisk({ staging: join(root, ".."), path: join(scratch.path, "x"), ...bounds, timeoutMs: 0 });
  expect(await code(late)).toMatch(/^unavailable: import timed out/);
});

test("a scratch disk is a sparse copy of its template, with a UUID of its own", async () => {
  const template = join(scratch.path, "template");
  await buildScratchTemplate(template, 10_240 * MIB);
  const uuids = new Set([uuidOf(await output("dumpe2fs", "-h", template))]);
  for (const name of ["stamped", "other"]) {
    const copy = join(scratch.path, name);
    await createScratch(template, copy);
    expect((await stat(copy)).size).toBe(10_240 * MIB);
    expect(await allocatedBytes(copy)).toBeLessThan(MIB);
    // Both verify the superblock's checksum, and those of metadata that are seeded with the UUID.
    expect(await output("e2fsck", "-fn", copy)).not.toMatch(/checksum|Fix/);
    uuids.add(uuidOf(await output("dumpe2fs", copy)));
    const listing = await output("debugfs", "-R", "ls -l /", copy);
    expect(listing).toMatch(/40755 .* upper\n/);
    expect(listing).toMatch(/40755 .* work\n/);
  }
  expect(uuids.size).toBe(3);
});

test.each(["uninit_bg,^metadata_csum", "^uninit_bg,^metadata_csum"])(
  "a template that an older host made stays whole: %s",
  async (features) => {
    const template = join(scratch.path, `older ${features}`);
    const copy = `${template} copy`;
    await output("mke2fs", "-q", "-t", "ext4", "-O", `^has_journal,${features}`, template, "16M");
    await createScratch(template, copy);
    expect(await output("e2fsck", "-fn", copy)).not.toMatch(/checksum|Fix/);
  },
);

test("only a scratch disk can be the template of another", async () => {
  const template = join(scratch.path, "zeros");
  await Bun.write(template, new Uint8Array(MIB));
  expect(await throwing(createScratch(template, join(scratch.path, "of-zeros")))).toThrow("not ext4");
});

function uuidOf(superblock: string): string {
  return /^Filesystem UUID: +([0-9a-f-]{36})$/m.exec(superblock)?.[1] ?? expect.unreachable();
}
