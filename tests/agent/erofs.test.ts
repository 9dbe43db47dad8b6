/** Compares the agent's own reader of EROFS disks with the kernel's view of the tree that a disk was made of. */
import { describe, expect, test } from "bun:test";
import { linkSync, mkdirSync, readFileSync, renameSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { erofsArgv } from "../../src/oci/base-disk.ts";
import { AgentFrame } from "../../src/vm/agent/protocol.ts";
import { type IndexRecord, parseIndex, readIndex } from "../support/agent/index-records.ts";
import { NativeAgent, parseError } from "../support/agent/native-agent.ts";
import { command, setXattr } from "../support/agent/raw-layers.ts";
import { seededRandom } from "../support/random.ts";

const BLOCK_BYTES = 4096;
const SUPER_OFFSET = 1024;
const FUZZ_SEEDS_COUNT = Number(process.env["COPPICE_FUZZ_COUNT"] ?? 60);
/** Mutated directories can contain themselves: such a listing has no end. */
const FUZZ_STREAM_BYTES_MAX = 1_048_576;
const [MKFS, ...MKFS_FLAGS] = erofsArgv({ path: "", staging: "" }).slice(0, -2) as [string, ...string[]];

function makeTree(upper: string): void {
  mkdirSync(join(upper, "d/empty"), { recursive: true, mode: 0o2755 });
  writeFileSync(join(upper, "d/file"), Buffer.alloc(5000, "content"));
  linkSync(join(upper, "d/file"), join(upper, "d/second"));
  writeFileSync(join(upper, "d/nothing"), "");
  symlinkSync("../some/where", join(upper, "d/link"));
  command("touch", "-h", "-d", "1969-12-31 23:59:54.75 UTC", join(upper, "d/link"));
  command("chown", "-h", "1:4294967294", join(upper, "d/link"));
  symlinkSync("long/".repeat(800), join(upper, "long"));
  command("mkfifo", "-m", "600", join(upper, "pipe"));
  command("mknod", "-m", "640", join(upper, "char"), "c", "511", "1048575");
  command("mknod", join(upper, "block"), "b", "8", "1");
  command("mknod", join(upper, "gone"), "c", "0", "0");
  writeFileSync(join(upper, "sparse"), "");
  truncateSync(join(upper, "sparse"), 1 << 20);
  // Directories of many blocks, of one that is full to the byte or nearly, and a deep one.
  mkdirSync(join(upper, "wide"));
  for (let index = 0; index < 1500; index++)
    writeFileSync(join(upper, `wide/${index}-${"n".repeat(index % 200)}`), "x");
  for (let tail = 0; tail < 24; tail++) {
    mkdirSync(join(upper, `full/${tail}`), { recursive: true });
    for (let index = 0; index < 18; index++) {
      const name = `${String(index).padStart(2, "0")}${"f".repeat(index === 0 ? 160 + tail : 212)}`;
      writeFileSync(join(upper, `full/${tail}/${name}`), "");
    }
  }
  mkdirSync(join(upper, "deep/".repeat(300)), { recursive: true });
  // The kernel reads attributes: of a directory, below directories without any, and of special files.
  mkdirSync(join(upper, "plain/marked/inner/most"), { recursive: true });
  writeFileSync(join(upper, "plain/marked/inner/most/file"), "marked");
  writeFileSync(join(upper, "plain/marked/inner/most/other"), "not marked");
  for (const path of ["plain/marked", "plain/marked/inner/most/file"]) setXattr(join(upper, path), "user.mark", "1");
  symlinkSync("x", join(upper, "plain/marked/link"));
  setXattr(join(upper, "plain/marked/link"), "security.mark", "l");
  for (const name of ["new\nline", "\x01\x7f", " ", "-rf", "\xff\xfe"]) {
    writeFileSync(Buffer.concat([Buffer.from(`${upper}/`), Buffer.from(name, "latin1")]), "");
  }
}

/** Makes a disk of the layer, which the agent then reads. */
function makeDisk(agent: NativeAgent, ...flags: string[]): string {
  const layer = join(agent.directory, "l/00");
  const [built, disk] = [join(agent.directory, "made"), join(layer, "disk")];
  command(MKFS, ...MKFS_FLAGS, ...flags, built, layer);
  renameSync(built, disk);
  return disk;
}

async function entriesOf(agent: NativeAgent): Promise<IndexRecord[]> {
  const { stream, last } = await readIndex(agent, 0);
  if (last.type !== AgentFrame.done) throw new Error(parseError(last).text);
  const { entries } = parseIndex(stream);
  expect(last.payload.readBigUInt64LE()).toBe(BigInt(entries.length));
  return entries.sort((a, b) => (a.path < b.path ? -1 : 1));
}

/** The fields of an entry that do not depend on how it is stored. */
function facts({ inode: _inode, extents: _extents, ...entry }: IndexRecord) {
  return entry.type === "d" ? { ...entry, size: 0n, nlink: 0 } : entry;
}

describe("an index that is read from an EROFS disk", () => {
  test("agrees with the kernel's view of the tree, and has the right extents", async () => {
    await using agent = await NativeAgent.mounted();
    const upper = join(agent.directory, "l/00/upper");
    makeTree(upper);
    const expected = await entriesOf(agent);
    const disk = readFileSync(makeDisk(agent));
    const entries = await entriesOf(agent);
    expect(entries.map(facts)).toEqual(expected.map(facts));
    const inodes = new Map(entries.map(({ path, inode }) => [path, inode]));
    expect(inodes.get("d/second")).toBe(inodes.get("d/file") as bigint);
    for (const { path, type, size, extents, xattrs } of entries) {
      // The kernel, which reads attributes here, has the file on another disk.
      if (type !== "f" || Object.keys(xattrs).length > 0) continue;
      const bytes = extents.map(({ physical, length }) => disk.subarray(Number(physical), Number(physical + length)));
      expect(extents.map(({ logical, length }) => [logical, length])).toEqual(size === 0n ? [] : [[0n, size]]);
      expect(Buffer.concat(bytes)).toEqual(readFileSync(Buffer.from(`${upper}/${path}`, "latin1")));
    }
  });

  test("has the disk's time for inodes without a time", async () => {
    await using agent = await NativeAgent.mounted();
    makeTree(join(agent.directory, "l/00/upper"));
    makeDisk(agent, "-T", "86400");
    const times = (await entriesOf(agent)).filter(
      ({ path, xattrs }) => path !== "" && Object.keys(xattrs).length === 0,
    );
    expect(new Set(times.map(({ mtimeNs }) => mtimeNs))).toEqual(new Set([86_400_000_000_000n]));
  });
});

describe("a disk that only the kernel can read", () => {
  test.each([
    ["compressed", (agent: NativeAgent) => makeDisk(agent, "-zlz4")],
    ["of another kind", (agent: NativeAgent) => writeFileSync(join(agent.directory, "l/00/disk"), "not a disk")],
  ])("is left to it: %s", async (_, make) => {
    await using agent = await NativeAgent.mounted();
    const upper = join(agent.directory, "l/00/upper");
    writeFileSync(join(upper, "file"), Buffer.alloc(100_000, "x"));
    const expected = await entriesOf(agent);
    make(agent);
    expect(await entriesOf(agent)).toEqual(expected);
  });

  test("fails when the content of a file has no extent of its own", async () => {
    await using agent = await NativeAgent.mounted();
    const upper = join(agent.directory, "l/00/upper");
    writeFileSync(join(upper, "file"), "behind the inode");
    const [built, layer] = [join(agent.directory, "made"), join(agent.directory, "l/00")];
    command(MKFS, "--quiet", built, layer);
    renameSync(built, join(layer, "disk"));
    expect(parseError((await readIndex(agent, 0)).last).text).toContain("index of /file: inline data");
  });
});

test("a damaged disk gives a listing, or an error that names the entry", async () => {
  await using agent = await NativeAgent.mounted();
  const upper = join(agent.directory, "l/00/upper");
  mkdirSync(join(upper, "a/b/c"), { recursive: true });
  symlinkSync("target", join(upper, "a/link"));
  for (let index = 0; index < 200; index++) writeFileSync(join(upper, `a/b/${index}`), "x");
  setXattr(join(upper, "a/b/c"), "user.mark", "1");
  const path = makeDisk(agent);
  const disk = readFileSync(path);
  for (let seed = 1; seed <= FUZZ_SEEDS_COUNT; seed++) {
    const random = seededRandom(seed);
    const damaged = Buffer.from(disk);
    // All metadata is in the first blocks; the magic number stays intact, so that the damage is read.
    for (let count = 1 + random.below(6); count > 0; count--) {
      const at = SUPER_OFFSET + 4 + random.below(4 * BLOCK_BYTES);
      if (at < damaged.length) damaged[at] = random.below(3) === 0 ? 0xff : random.below(256);
    }
    writeFileSync(path, random.below(10) === 0 ? damaged.subarray(0, random.below(damaged.length)) : damaged);
    await using fresh = await NativeAgent.mounted();
    renameSync(path, join(fresh.directory, "l/00/disk"));
    const { last } = await readIndex(fresh, 0, FUZZ_STREAM_BYTES_MAX);
    if (last.type === AgentFrame.error) expect(parseError(last).text).toStartWith("index of /");
  }
}, 120_000);
