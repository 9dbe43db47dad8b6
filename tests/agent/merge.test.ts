import { describe, expect, test } from "bun:test";
import * as fs from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import type { GuestPath } from "../../src/domain/tree/guest-path.ts";
import { writeLayerIndex } from "../../src/storage/index/layer-index-writer.ts";
import { DISK_BYTES_MAX } from "../../src/storage/limits.ts";
import { ImageTree } from "../../src/storage/tree/image-tree.ts";
import { type LayerFiles, OpenLayers } from "../../src/storage/tree/open-layers.ts";
import { AgentFrame, HostFrame, INDEX_DISK_SCRATCH, MountFlag, Stream } from "../../src/vm/agent/protocol.ts";
import { type IndexRecord, parseIndex } from "../support/agent/index-records.ts";
import { type Frame, frame, NativeAgent, parseError, syncFrame, u16, u32 } from "../support/agent/native-agent.ts";
import { command, type RawTree, rawTree, setXattr, writeRawTree } from "../support/agent/raw-layers.ts";
import { pieces } from "../support/images/index-stream.ts";

const SESSION = 5;

async function done(agent: NativeAgent): Promise<Frame> {
  const answer = await agent.next();
  if (answer.type === AgentFrame.error) throw new Error(parseError(answer).text);
  return answer;
}

async function streamOf(agent: NativeAgent, disk: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  agent.send(frame(HostFrame.index, SESSION, u16(disk)));
  for (;;) {
    const answer = await done(agent);
    if (answer.type === AgentFrame.done) return Buffer.concat(chunks);
    chunks.push(answer.payload.subarray(4));
    agent.send(frame(HostFrame.window, SESSION, u32(Stream.stdout), u32(answer.payload.length - 4)));
  }
}

const layerDirectory = (agent: NativeAgent, number: number): string =>
  join(agent.directory, `l/${String(number).padStart(2, "0")}/upper`);

/** Makes layers, the lowest first, and mounts them for a merge. */
async function mountedLayers(agent: NativeAgent, make: readonly ((upper: string) => void)[]): Promise<void> {
  for (const [number, fill] of make.entries()) {
    fs.mkdirSync(layerDirectory(agent, number), { recursive: true });
    fill(layerDirectory(agent, number));
  }
  agent.send(syncFrame(), frame(HostFrame.mount, 1, u16(make.length), u16(MountFlag.bare)));
  for (const type of [AgentFrame.synced, AgentFrame.done]) expect((await done(agent)).type).toBe(type);
}

/** Merges layers into the scratch, freezes it, and returns its content. */
async function merged(agent: NativeAgent, ...make: readonly ((upper: string) => void)[]) {
  await mountedLayers(agent, make);
  agent.send(frame(HostFrame.merge, SESSION));
  const count = (await done(agent)).payload.readBigUInt64LE();
  agent.send(frame(HostFrame.freeze, SESSION));
  await done(agent);
  const { entries } = parseIndex(await streamOf(agent, INDEX_DISK_SCRATCH));
  expect(count).toBe(BigInt(entries.length));
  const byPath = new Map(entries.map((entry) => [entry.path, entry]));
  const entry = (path: string): IndexRecord => {
    const record = byPath.get(path);
    if (record === undefined) throw new Error(`no entry ${path}`);
    return record;
  };
  return { entry, paths: entries.map(({ path }) => path).sort(), upper: join(agent.directory, "s/upper") };
}

describe("a merge of layers", () => {
  test("keeps all names of a file with the maximum number of links", async () => {
    await using agent = await NativeAgent.start();
    const most = 65_000; // of ext4
    const { entry, paths } = await merged(
      agent,
      () => undefined,
      (upper) => {
        fs.writeFileSync(join(upper, "0"), "");
        for (let count = 1; count < most; count++) fs.linkSync(join(upper, "0"), join(upper, `${count}`));
      },
    );
    expect(paths).toHaveLength(1 + most);
    expect(new Set(paths.slice(1).map((path) => entry(path).inode)).size).toBe(1);
  });

  test("takes the highest entries, keeps whiteouts, and marks opaque directories", async () => {
    await using agent = await NativeAgent.start();
    const { entry, paths } = await merged(
      agent,
      (upper) => {
        for (const name of ["both", "closed", "gone", "hidden", "replaced"]) fs.mkdirSync(join(upper, name));
        for (const name of ["both", "closed", "gone", "hidden", "replaced"])
          fs.writeFileSync(join(upper, name, "low"), "");
        fs.writeFileSync(join(upper, "file"), "low");
        fs.writeFileSync(join(upper, "shadow"), "low");
        command("mknod", join(upper, "again"), "c", "0", "0");
      },
      (upper) => {
        for (const name of ["again", "both", "closed", "file"]) fs.mkdirSync(join(upper, name));
        fs.writeFileSync(join(upper, "both/high"), "");
        command("mknod", join(upper, "both/nowhere"), "c", "0", "0");
        setXattr(join(upper, "closed"), "trusted.overlay.opaque", "y");
        command("mknod", join(upper, "closed/low"), "c", "0", "0");
        for (const name of ["gone", "hidden"]) command("mknod", join(upper, name), "c", "0", "0");
        fs.writeFileSync(join(upper, "replaced"), "high");
        fs.writeFileSync(join(upper, "shadow"), "high");
      },
      (upper) => {
        fs.mkdirSync(join(upper, "hidden"));
        fs.mkdirSync(join(upper, "both"));
      },
    );
    expect(paths).toEqual(
      [
        "",
        "again",
        "both",
        "both/high",
        "both/low",
        "both/nowhere",
        "closed",
        "file",
        "gone",
        "hidden",
        "replaced",
        "shadow",
      ].sort(),
    );
    const kinds = paths.map((path) => `${path} ${entry(path).type}${entry(path).opaque ? "!" : ""}`);
    expect(kinds).toEqual(
      [
        " d",
        "again d!",
        "both d",
        "both/high f",
        "both/low f",
        "both/nowhere w",
        "closed d!",
        "file d!",
        "gone w",
        "hidden d!",
        "replaced f",
        "shadow f",
      ].sort(),
    );
    expect(entry("shadow").size).toBe(4n);
  });

  test("marks directories with whiteouts for overlayfs, and keeps no whiteout that hides nothing", async () => {
    await using agent = await NativeAgent.start();
    const { paths, upper } = await merged(
      agent,
      (low) => {
        fs.mkdirSync(join(low, "new/deep"), { recursive: true });
        setXattr(join(low, "new"), "trusted.overlay.opaque", "y");
        fs.writeFileSync(join(low, "new/deep/file"), "");
      },
      (high) => {
        fs.mkdirSync(join(high, "new/deep"), { recursive: true });
        command("mknod", join(high, "new/deep/file"), "c", "0", "0");
        fs.mkdirSync(join(high, "open"));
        command("mknod", join(high, "open/file"), "c", "0", "0");
      },
    );
    expect(paths).toEqual(["", "new", "new/deep", "open", "open/file"]);
    const marks = command(
      "getfattr",
      "-h",
      "-d",
      "-m",
      "trusted.overlay",
      join(upper, "open"),
      join(upper, "new/deep"),
    );
    expect(marks).toContain('trusted.overlay.origin=""');
    expect(marks).not.toContain("new/deep");
  });

  test("copies every kind of object with all its attributes", async () => {
    await using agent = await NativeAgent.start();
    const odd = ["new\nline", "\x01\x7f", "-rf", "x".repeat(255), "\xff\xfe"];
    const at = (upper: string, name: string) => Buffer.concat([Buffer.from(`${upper}/`), Buffer.from(name, "latin1")]);
    const { entry, upper } = await merged(
      agent,
      (low) => {
        for (const name of odd) fs.writeFileSync(at(low, name), name);
        fs.mkdirSync(join(low, "d"));
        fs.writeFileSync(join(low, "d/one"), "linked");
        for (const name of ["d/two", "three"]) fs.linkSync(join(low, "d/one"), join(low, name));
        fs.writeFileSync(join(low, "d/lost"), "has had three names");
        for (const name of ["d/gone", "lost"]) fs.linkSync(join(low, "d/lost"), join(low, name));
        command("setfacl", "-d", "-m", "u:1234:rwx,g::r-x", join(low, "d"));
        command("setfacl", "-m", "u:77:rw-", join(low, "d/one"));
        setXattr(join(low, "d/one"), "user.mine", "a\x00\xff");
        setXattr(join(low, "d/one"), "trusted.overlay.overlay.opaque", "y");
        setXattr(join(low, "d/one"), "trusted.overlay.origin", "x");
        fs.symlinkSync("no\nwhere", join(low, "sym"));
        setXattr(join(low, "sym"), "trusted.of-link", "l");
        command("mkfifo", join(low, "pipe"));
        fs.chmodSync(join(low, "pipe"), 0o4610);
        command("mknod", "-m", "640", join(low, "char"), "c", "511", "1048575");
        command("mknod", join(low, "block"), "b", "8", "1");
        command(
          "perl",
          "-MSocket",
          "-e",
          "socket(S, AF_UNIX, SOCK_STREAM, 0); chdir $ARGV[0]; bind(S, pack_sockaddr_un('sock')) or die $!",
          low,
        );
        command("chown", "-h", "1:4294967294", join(low, "sym"), join(low, "pipe"));
        command("touch", "-h", "-d", "1969-12-31 23:59:54.75 UTC", join(low, "sym"), join(low, "d/one"));
        command("setcap", "cap_net_raw+ep", join(low, "three"));
        command("chmod", "6755", join(low, "d/lost"));
        command("chmod", "3775", join(low, "d"));
        command("touch", "-d", "2001-02-03 04:05:06.123456789 UTC", join(low, "d"), low);
      },
      (high) => {
        fs.mkdirSync(join(high, "e"));
        command("mknod", join(high, "lost"), "c", "0", "0");
        command("chmod", "1751", high);
        command("touch", "-d", "2002-02-03 04:05:06.5 UTC", high);
      },
    );
    const low = layerDirectory(agent, 0);
    const facts = (directory: string, path: string) => {
      const status = fs.lstatSync(Buffer.isBuffer(path) ? path : join(directory, path), { bigint: true });
      const xattrs = command("getfattr", "-h", "-d", "-m", "-", "-e", "hex", "--absolute-names", join(directory, path));
      const kept = xattrs
        .split("\n")
        .filter((line) => !/^#|overlay\.origin/.test(line))
        .sort();
      const { mode, uid, gid, rdev, atimeNs, mtimeNs } = status;
      const isDirectory = status.isDirectory();
      return {
        mode,
        uid,
        gid,
        rdev,
        // Reading a link here changes its access time; layers are mounted without access times.
        atimeNs: status.isSymbolicLink() ? 0n : atimeNs,
        mtimeNs,
        size: isDirectory ? 0n : status.size,
        nlink: isDirectory ? 0n : status.nlink,
        kept,
      };
    };
    for (const path of ["d", "d/one", "d/two", "three", "d/lost", "d/gone", "sym", "pipe", "char", "block", "sock"]) {
      expect([path, facts(upper, path)]).toEqual([path, facts(low, path)]);
    }
    for (const name of odd)
      expect(fs.readFileSync(at(upper, name)).toString("latin1")).toBe(Buffer.from(name).toString("latin1"));
    expect(entry("d/two").inode).toBe(entry("three").inode);
    expect(entry("d/lost").inode).toBe(entry("d/gone").inode);
    expect(entry("d/lost").nlink).toBe(3);
    expect(entry("lost").type).toBe("w");
    expect([entry("").mode, entry("").mtimeNs]).toEqual([0o1751, 1_012_709_106_500_000_000n]);
    expect(fs.readlinkSync(join(upper, "sym"))).toBe("no\nwhere");
    expect(fs.readFileSync(join(upper, "d/gone"), "utf8")).toBe("has had three names");
  });

  test("keeps holes, and is as deep as an index may be", async () => {
    await using agent = await NativeAgent.start();
    const { paths, entry, upper } = await merged(
      agent,
      (low) => {
        const fd = fs.openSync(join(low, "sparse"), "w");
        for (const offset of [0, 1 << 20, 5 * 1024 ** 3]) fs.writeSync(fd, Buffer.alloc(5000, 7), 0, 5000, offset);
        fs.ftruncateSync(fd, 6 * 1024 ** 3);
        fs.closeSync(fd);
        command("fallocate", "-l", "1048576", join(low, "reserved"));
        command("perl", "-e", 'chdir $ARGV[0]; for (1 .. 1500) { mkdir "d" x 20; chdir "d" x 20 or die $! }', low);
      },
      (high) =>
        command(
          "perl",
          "-e",
          'chdir $ARGV[0]; for (1 .. 1500) { mkdir "d" x 20; chdir "d" x 20 or die $! } open F, ">end"',
          high,
        ),
    );
    expect(entry("sparse").size).toBe(6n * 1024n ** 3n);
    const { blocks } = fs.statSync(join(upper, "sparse"));
    expect(blocks).toBeLessThanOrEqual(fs.statSync(join(layerDirectory(agent, 0), "sparse")).blocks + 64);
    const at = Buffer.alloc(5001);
    const fd = fs.openSync(join(upper, "sparse"), "r");
    fs.readSync(fd, at, 0, 5001, 5 * 1024 ** 3);
    fs.closeSync(fd);
    expect(at.equals(Buffer.concat([Buffer.alloc(5000, 7), Buffer.alloc(1)]))).toBe(true);
    expect(fs.statSync(join(upper, "reserved")).size).toBe(1_048_576);
    expect(fs.statSync(join(upper, "reserved")).blocks).toBe(0);
    expect(paths.filter((path) => path.endsWith("/end")).map((path) => path.split("/").length)).toEqual([1501]);
  }, 60_000);

  test("needs an empty scratch, and names the place of a failure", async () => {
    await using agent = await NativeAgent.start();
    await mountedLayers(agent, [(upper) => fs.writeFileSync(join(upper, "name"), "")]);
    fs.writeFileSync(join(agent.directory, "s/upper/name"), "in the way");
    agent.send(frame(HostFrame.merge, SESSION));
    expect(parseError(await agent.next()).text).toMatch(/^merge, at name: create: File exists/);
    await using other = await NativeAgent.mounted();
    other.send(frame(HostFrame.merge, SESSION));
    expect(parseError(await other.next()).text).toBe("no bare scratch is mounted");
  });
});

/** All entries of an image, and the file with each content. */
async function seen(layers: readonly LayerFiles[]): Promise<{ rows: string[]; contents: [string, LayerFiles][] }> {
  const open = new OpenLayers(64);
  const tree = new ImageTree(layers, open);
  const rows: string[] = [];
  const contents: [string, LayerFiles][] = [];
  for await (const { path, located } of tree.walk(await tree.stat("/" as GuestPath, { follow: false }))) {
    const { entry, layer } = located;
    const { type, mode, uid, gid, mtimeSeconds, mtimeNanoseconds, target, rdevMajor, rdevMinor } = entry;
    using lease = tree.lease(located);
    const xattrs = lease.index.xattrs(entry).map(({ name, value }) => `${name}=${Buffer.from(value).toString("hex")}`);
    const rest = type === "d" ? [] : [entry.size, entry.nlink];
    rows.push(
      JSON.stringify([
        path,
        type,
        mode,
        uid,
        gid,
        mtimeSeconds,
        mtimeNanoseconds,
        target,
        rdevMajor,
        rdevMinor,
        xattrs.sort(),
        rest,
      ]),
    );
    if (type === "f") contents.push([path, layer]);
  }
  return { rows, contents };
}

test("of any layers shows the same as the layers themselves", async () => {
  const roots = new Map<string, string>();
  const index = async (agent: NativeAgent, disk: number, name: string, root: string): Promise<LayerFiles> => {
    const files = { disk: join(agent.directory, `${name}.disk`), index: join(agent.directory, `${name}.index`) };
    fs.writeFileSync(files.disk, "");
    await writeLayerIndex({
      stream: pieces(await streamOf(agent, disk)),
      path: files.index,
      diskBytes: DISK_BYTES_MAX,
    });
    roots.set(files.index, root);
    return files;
  };
  const compare = async (trees: readonly RawTree[], base: RawTree): Promise<void> => {
    await using agent = await NativeAgent.start();
    await mountedLayers(
      agent,
      trees.map((tree) => (upper) => writeRawTree(upper, tree)),
    );
    agent.send(frame(HostFrame.merge, SESSION));
    await done(agent);
    agent.send(frame(HostFrame.freeze, SESSION));
    await done(agent);
    const originals: LayerFiles[] = [];
    for (const number of trees.keys())
      originals.push(await index(agent, number, `l${number}`, layerDirectory(agent, number)));
    const one = await index(agent, INDEX_DISK_SCRATCH, "merged", join(agent.directory, "s/upper"));
    await using below = await NativeAgent.start();
    writeRawTree(layerDirectory(below, 0), base);
    below.send(syncFrame(), frame(HostFrame.mount, 1, u16(1), u16(0)));
    await done(below);
    await done(below);
    const bottom = await index(below, 0, "base", layerDirectory(below, 0));
    const [expected, actual] = [await seen([bottom, ...originals]), await seen([bottom, one])];
    expect(actual.rows).toEqual(expected.rows);
    const content = ([path, { index: key }]: [string, LayerFiles]) =>
      fs.readFileSync(join(String(roots.get(key)), path));
    for (const [at, file] of expected.contents.entries()) {
      expect(content(actual.contents[at] as [string, LayerFiles]).equals(content(file))).toBe(true);
    }
  };
  await fc.assert(fc.asyncProperty(fc.array(rawTree, { minLength: 1, maxLength: 4 }), rawTree, compare), {
    numRuns: 25,
  });
}, 120_000);
