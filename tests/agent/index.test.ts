import { describe, expect, test } from "bun:test";
import {
  chmodSync,
  closeSync,
  linkSync,
  mkdirSync,
  openSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import {
  AgentFrame,
  HostFrame,
  INDEX_DISK_SCRATCH,
  Stream,
  WINDOW_BYTES_INITIAL,
} from "../../src/vm/agent/protocol.ts";
import { INDEX_SESSION, type IndexRecord, parseIndex, readIndex } from "../support/agent/index-records.ts";
import { frame, NativeAgent, parseError, u16, u32 } from "../support/agent/native-agent.ts";
import { command, setXattr } from "../support/agent/raw-layers.ts";

/** Indexes a layer that `make` fills. */
async function indexOf(make: (upper: string) => void) {
  await using agent = await NativeAgent.mounted();
  make(join(agent.directory, "l/00/upper"));
  const { stream, last } = await readIndex(agent, 0);
  if (last.type !== AgentFrame.done) throw new Error(parseError(last).text);
  const { entries, more } = parseIndex(stream);
  expect(last.payload.readBigUInt64LE()).toBe(BigInt(entries.length));
  const byPath = new Map(entries.map((entry) => [entry.path, entry]));
  expect(byPath.size).toBe(entries.length);
  const entry = (path: string): IndexRecord => {
    const record = byPath.get(path);
    if (record === undefined) throw new Error(`no entry ${path}`);
    return record;
  };
  return { entries, entry, more };
}

describe("an index", () => {
  test("of an empty layer is its root", async () => {
    const { entries } = await indexOf((upper) => chmodSync(upper, 0o1751));
    expect(entries.map(({ path, type, mode }) => [path, type, mode])).toEqual([["", "d", 0o1751]]);
  });

  test("has every type, with its owner, mode, time, links and target", async () => {
    const { entry, entries } = await indexOf((upper) => {
      mkdirSync(join(upper, "d"), { mode: 0o2755 });
      writeFileSync(join(upper, "d/file"), "content");
      chmodSync(join(upper, "d/file"), 0o4711);
      linkSync(join(upper, "d/file"), join(upper, "d/second"));
      symlinkSync("../some/where", join(upper, "d/link"));
      command("touch", "-h", "-d", "1969-12-31 23:59:54.75 UTC", join(upper, "d/link"));
      command("chown", "-h", "1:4294967294", join(upper, "d/link"));
      command("mkfifo", "-m", "600", join(upper, "pipe"));
      command("mknod", "-m", "640", join(upper, "char"), "c", "511", "1048575");
      command("mknod", join(upper, "block"), "b", "8", "1");
      command("mknod", join(upper, "gone"), "c", "0", "0");
    });
    expect(entry("d").type).toBe("d");
    const file = entry("d/file");
    expect([file.type, file.mode, file.nlink, file.size]).toEqual(["f", 0o4711, 2, 7n]);
    expect(entry("d/second").inode).toBe(file.inode);
    expect(file.extents.map(({ logical, length }) => [logical, length])).toEqual([[0n, 7n]]);
    const link = entry("d/link");
    expect([link.type, link.target, link.uid, link.gid]).toEqual(["l", "../some/where", 1, 4_294_967_294]);
    expect(link.mtimeNs).toBe(-5_250_000_000n);
    expect([entry("pipe").type, entry("pipe").mode]).toEqual(["p", 0o600]);
    expect([entry("char").type, ...entry("char").device]).toEqual(["c", 511, 1_048_575]);
    expect([entry("block").type, ...entry("block").device]).toEqual(["b", 8, 1]);
    expect([entry("gone").type, ...entry("gone").device]).toEqual(["w", 0, 0]);
    const order = entries.map(({ path }) => path);
    expect(order[0]).toBe("");
    for (const path of order.filter((name) => name.startsWith("d/"))) {
      expect(order.indexOf("d")).toBeLessThan(order.indexOf(path));
    }
  });

  test("has every name as its bytes", async () => {
    const names = ["new\nline", "\x01\x7f", " ", "-rf", "x".repeat(255), "caf\xe9", "\xff\xfe"];
    const { entries } = await indexOf((upper) => {
      for (const name of names) {
        writeFileSync(Buffer.concat([Buffer.from(`${upper}/`), Buffer.from(name, "latin1")]), "");
      }
    });
    expect(entries.map(({ path }) => path).sort()).toEqual(["", ...names].sort());
  });

  test("has extended attributes, but for those of overlayfs, which mark opaque directories", async () => {
    const { entry } = await indexOf((upper) => {
      mkdirSync(join(upper, "opaque"));
      setXattr(join(upper, "opaque"), "trusted.overlay.opaque", "y");
      setXattr(join(upper, "opaque"), "trusted.overlay.origin", "\x00\xfb");
      mkdirSync(join(upper, "not"));
      setXattr(join(upper, "not"), "trusted.overlay.opaque", "x");
      setXattr(join(upper, "not"), "trusted.overlay.overlay.opaque", "y");
      writeFileSync(join(upper, "file"), "");
      setXattr(join(upper, "file"), "user.empty", "");
      setXattr(join(upper, "file"), "user.binary", "a\x00\xff");
      setXattr(join(upper, "file"), "trusted.mine", "m");
      setXattr(join(upper, "file"), "user.overlay.opaque", "y");
      symlinkSync("x", join(upper, "link"));
      setXattr(join(upper, "link"), "trusted.of-link", "l");
    });
    expect([entry("opaque").opaque, entry("opaque").xattrs]).toEqual([true, {}]);
    expect([entry("not").opaque, entry("not").xattrs]).toEqual([false, { "trusted.overlay.opaque": "y" }]);
    expect(entry("link").xattrs).toEqual({ "trusted.of-link": "l" });
    expect(entry("file").xattrs).toEqual({
      "user.empty": "",
      "user.binary": "a\x00\xff",
      "trusted.mine": "m",
      "user.overlay.opaque": "y",
    });
  });

  test("lists the written extents of a file up to its end, and no others", async () => {
    const { entry } = await indexOf((upper) => {
      writeFileSync(join(upper, "empty"), "");
      writeFileSync(join(upper, "hole"), "");
      truncateSync(join(upper, "hole"), 1 << 20);
      writeFileSync(join(upper, "tail"), "x".repeat(4097));
      command("fallocate", "-l", "65536", join(upper, "reserved"));
      command("fallocate", "--keep-size", "-l", "65536", join(upper, "tail"));
    });
    for (const path of ["empty", "hole", "reserved"]) expect(entry(path).extents).toEqual([]);
    expect(entry("hole").size).toBe(1n << 20n);
    expect(entry("tail").extents.reduce((sum, { length }) => sum + length, 0n)).toBe(4097n);
  });

  test("spreads the extents of a file over as many records as they need", async () => {
    const pieces = 700;
    const { entry, more } = await indexOf((upper) => {
      const fd = openSync(join(upper, "comb"), "w");
      for (let index = 0; index < pieces; index++) writeSync(fd, Buffer.alloc(4096, 1), 0, 4096, index * 8192);
      closeSync(fd);
    });
    const { extents, size } = entry("comb");
    expect(size).toBe(BigInt(pieces * 8192 - 4096));
    expect(more).toBeGreaterThanOrEqual(2);
    expect(extents.map(({ logical }) => logical)).toEqual(
      Array.from({ length: pieces }, (_, index) => BigInt(index * 8192)),
    );
    expect(extents.every(({ length }) => length === 4096n)).toBe(true);
  });

  test("of a wide and a deep tree is whole, and waits for credit", async () => {
    await using agent = await NativeAgent.mounted();
    const upper = join(agent.directory, "l/00/upper");
    mkdirSync(join(upper, "wide"));
    for (let index = 0; index < 3000; index++) writeFileSync(join(upper, `wide/${index}-${"n".repeat(60)}`), "");
    for (let index = 0; index < 300; index++) mkdirSync(join(upper, `wide/d${index}/sub`), { recursive: true });
    // Too deep for a path.
    command("perl", "-e", 'chdir $ARGV[0]; for (1 .. 600) { mkdir "d" x 20; chdir "d" x 20 or die $! }', upper);
    agent.send(frame(HostFrame.index, INDEX_SESSION, u16(0)));
    let stream = Buffer.alloc(0);
    while (stream.length < WINDOW_BYTES_INITIAL)
      stream = Buffer.concat([stream, (await agent.next()).payload.subarray(4)]);
    expect(stream.length).toBe(WINDOW_BYTES_INITIAL);
    expect(await agent.quiet(200)).toBe(true);
    agent.send(frame(HostFrame.window, INDEX_SESSION, u32(Stream.stdout), u32(0xffff_ffff)));
    for (;;) {
      const { type, payload } = await agent.next();
      if (type !== AgentFrame.output) {
        expect([type, payload.readBigUInt64LE()]).toEqual([AgentFrame.done, 1n + 1n + 3000n + 600n + 600n]);
        break;
      }
      stream = Buffer.concat([stream, payload.subarray(4)]);
    }
    const { entries } = parseIndex(stream);
    const deepest = Array.from({ length: 600 }, () => "d".repeat(20)).join("/");
    expect(entries.some(({ path }) => path === deepest)).toBe(true);
    expect(new Set(entries.map(({ path }) => path)).size).toBe(entries.length);
  });
});

describe("an impossible index", () => {
  test("names the place where a tree is too deep", async () => {
    await using agent = await NativeAgent.mounted();
    const upper = join(agent.directory, "l/00/upper");
    command("perl", "-e", 'chdir $ARGV[0]; for (1 .. 2100) { mkdir "d"; chdir "d" or die $! }', upper);
    const { last } = await readIndex(agent, 0);
    expect(parseError(last).text).toMatch(/^index of \/d\/d\/d.*nested over 2048 deep/);
  });

  test("is an error of its own session", async () => {
    await using agent = await NativeAgent.mounted();
    expect(parseError((await readIndex(agent, INDEX_DISK_SCRATCH)).last).text).toBe("the scratch is not frozen");
    expect(parseError((await readIndex(agent, 1)).last).text).toBe("no such layer");
    agent.send(frame(HostFrame.freeze, 2));
    expect((await agent.next()).type).toBe(AgentFrame.done);
    const { stream } = await readIndex(agent, INDEX_DISK_SCRATCH);
    const root = parseIndex(stream).entries[0];
    expect(root?.inode).toBe(BigInt(statSync(join(agent.directory, "s/upper")).ino));
  });
});
