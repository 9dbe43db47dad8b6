/** Operations on files, in the agent's native build, whose root is the directory `r`. */
import { describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { FileOp } from "../../../src/vm/agent/protocol.ts";
import { ask, content, entries, startTarget, write } from "../../support/agent/file-requests.ts";
import { NativeAgent } from "../../support/agent/native-agent.ts";

const ENOENT = 2;
const EEXIST = 17;
const ENOTDIR = 20;
const EISDIR = 21;
const EINVAL = 22;
const ENOTEMPTY = 39;
const ENOTSUP = 95;
const ESRCH = 3;

/** An agent with a running command, and the path of a file of its root. */
async function open() {
  const agent = await NativeAgent.mounted();
  await startTarget(agent);
  const at = (path: string) => join(agent.directory, "r", path);
  return { agent, at, [Symbol.asyncDispose]: () => agent[Symbol.asyncDispose]() };
}

describe("stat", () => {
  test("gives the status, and where a symlink leads when it is followed", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    mkdirSync(at("d"));
    writeFileSync(at("d/f"), "abc", { mode: 0o640 });
    chmodSync(at("d/f"), 0o640);
    symlinkSync("d/f", at("link"));
    symlinkSync("/nowhere", at("broken"));
    const [file] = entries(await ask(agent, { op: FileOp.stat, path: "/d/f" }));
    const status = statSync(at("d/f"), { bigint: true });
    expect(file).toMatchObject({ path: "/d/f", link: "", size: 3n, mode: Number(status.mode), inode: status.ino });
    expect(file?.mtimeNs).toBe(status.mtimeNs);
    const [link] = entries(await ask(agent, { op: FileOp.stat, path: "/link" }));
    expect(link).toMatchObject({ path: "/link", link: "d/f", mode: 0o120777 });
    const [followed] = entries(await ask(agent, { op: FileOp.stat, path: "/link", flags: ["follow"] }));
    expect(followed).toMatchObject({ path: "/link", link: "/d/f", mode: 0o100640, inode: status.ino });
    const [broken] = entries(await ask(agent, { op: FileOp.stat, path: "/broken", flags: ["follow"] }));
    expect(broken).toMatchObject({ link: "/nowhere", mode: 0o120777 });
    expect((await ask(agent, { op: FileOp.stat, path: "/none" })).error?.errno).toBe(ENOENT);
    expect((await ask(agent, { op: FileOp.stat, path: "relative" })).error?.errno).toBe(EINVAL);
    expect((await ask(agent, { op: FileOp.stat, path: "/d\0f" })).error?.errno).toBe(EINVAL);
    expect((await ask(agent, { op: FileOp.stat, path: "/d", target: 9 })).error?.errno).toBe(ESRCH);
  });
});

describe("write and read", () => {
  test("bytes come back as they were sent, in every range", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    const bytes = Buffer.from(Array.from({ length: 300_000 }, (_, index) => (index * 7919) % 251));
    const written = await write(agent, { op: FileOp.write, path: "/a/b/f", flags: ["parents"] }, bytes);
    expect([written.error, written.done]).toEqual([null, 300_000n]);
    expect(entries(written)[0]).toMatchObject({ path: "/a/b/f", size: 300_000n, mode: 0o100644 });
    expect(statSync(at("a/b")).mode & 0o777).toBe(0o755);
    expect(readFileSync(at("a/b/f")).equals(bytes)).toBeTrue();
    for (const [offset, length] of [
      [0, 300_000],
      [1, 2],
      [65_535, 131_074],
      [299_999, 10],
      [300_000, 1],
      [400_000, 1],
    ] as const) {
      const part = await ask(agent, { op: FileOp.read, path: "/a/b/f", offset, length });
      expect(content(part).content.equals(bytes.subarray(offset, offset + length))).toBeTrue();
      expect(part.done).toBe(BigInt(content(part).content.length));
    }
    const all = content(await ask(agent, { op: FileOp.read, path: "/a/b/f" }));
    expect(all.entry.size).toBe(300_000n);
    expect(all.content.equals(bytes)).toBeTrue();
  });

  test("a file stays the same file, and a symlink is followed, unless the write is atomic", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    writeFileSync(at("f"), "old content", { mode: 0o600 });
    linkSync(at("f"), at("same"));
    symlinkSync("f", at("link"));
    symlinkSync("made", at("dangling"));
    expect(entries(await write(agent, { op: FileOp.write, path: "/link" }, Buffer.from("new")))[0]).toMatchObject({
      link: "/f",
      mode: 0o100600,
    });
    expect(readFileSync(at("same"), "utf8")).toBe("new");
    await write(agent, { op: FileOp.write, path: "/dangling" }, Buffer.from("x"));
    expect(readFileSync(at("made"), "utf8")).toBe("x");
    const more = { op: FileOp.write, path: "/f", flags: ["append"] } as const;
    expect((await write(agent, more, Buffer.from(" and more"))).done).toBe(9n);
    expect(readFileSync(at("same"), "utf8")).toBe("new and more");
    expect((await write(agent, { op: FileOp.write, path: "/f" }, Buffer.alloc(0))).done).toBe(0n);
    expect(readFileSync(at("same"), "utf8")).toBe("");
    const atomic = await write(agent, { op: FileOp.write, path: "/f", flags: ["atomic"] }, Buffer.from("other"));
    expect(entries(atomic)[0]).toMatchObject({ mode: 0o100600, links: 1 });
    expect([readFileSync(at("same"), "utf8"), readFileSync(at("f"), "utf8")]).toEqual(["", "other"]);
    await write(agent, { op: FileOp.write, path: "/link", flags: ["atomic"] }, Buffer.from("y"));
    expect(lstatSync(at("link")).isFile()).toBeTrue();
    expect(readdirSync(at(".")).sort()).toEqual(["dangling", "f", "link", "made", "same"]);
  });

  test("an atomic write gives no right that the file before did not", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    mkdirSync(at("d"));
    chmodSync(at("d"), 0o777);
    writeFileSync(at("d/tool"), "root's");
    chmodSync(at("d/tool"), 0o6777);
    const tool = { op: FileOp.write, path: "/d/tool", flags: ["atomic"] } as const;
    expect(entries(await write(agent, tool, Buffer.from("x")))[0]).toMatchObject({ uid: 0, mode: 0o106777 });
    const others = { ...tool, uid: 1000, gid: 1000 };
    expect(entries(await write(agent, others, Buffer.from("x")))[0]).toMatchObject({ uid: 1000, mode: 0o100777 });
    writeFileSync(at("d/listed"), "some");
    chmodSync(at("d/listed"), 0o600);
    execFileSync("setfacl", ["-m", "u:77:rw", at("d/listed")]);
    const rights = () =>
      execFileSync("getfacl", ["-ncp", at("d/listed")], { encoding: "utf8" })
        .trim()
        .split("\n");
    const before = rights();
    expect(before).toContain("group::---");
    await write(agent, { ...tool, path: "/d/listed" }, Buffer.from("x"));
    expect(rights()).toEqual(before);
  });

  test("exclusive, mode, owner and attributes", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    const request = { op: FileOp.write, path: "/f", flags: ["exclusive", "mode", "owner"], mode: 0o4750 } as const;
    const more = ["user.a", "1", "user.b", "two words"];
    const created = await write(agent, { ...request, owner: [7, 8], more }, Buffer.from("x"));
    const entry = { mode: 0o104750, uid: 7, gid: 8, attributes: { "user.a": "1", "user.b": "two words" } };
    expect(entries(created)[0]).toMatchObject(entry);
    for (const flags of [["exclusive"], ["exclusive", "atomic"]] as const) {
      expect((await write(agent, { ...request, flags }, Buffer.from("y"))).error?.errno).toBe(EEXIST);
    }
    expect(readFileSync(at("f"), "utf8")).toBe("x");
    const fresh = { op: FileOp.write, path: "/g", flags: ["exclusive", "atomic"] } as const;
    expect(entries(await write(agent, fresh, Buffer.from("z")))[0]).toMatchObject({ size: 1n, mode: 0o100644 });
    const change = { op: FileOp.attributes, path: "/f", more: ["user.a", null, "user.c", ""] } as const;
    expect(entries(await ask(agent, change))[0]?.attributes).toEqual({ "user.b": "two words", "user.c": "" });
    expect((await ask(agent, { ...change, more: ["trusted.x", "1"] })).error?.errno).toBe(EINVAL);
    expect((await ask(agent, { ...change, more: ["user.gone", null] })).error).toBeNull();
    expect(readdirSync(at(".")).sort()).toEqual(["f", "g"]);
  });

  test("holes stay holes", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    const bytes = Buffer.alloc(1 << 20);
    bytes.write("end of the first block", 4000);
    bytes.write("in the middle", 500_000);
    for (const flags of [[], ["atomic"]] as const) {
      const path = `/holes${flags.length}`;
      await write(agent, { op: FileOp.write, path, flags }, bytes);
      expect(readFileSync(at(path)).equals(bytes)).toBeTrue();
      expect(statSync(at(path)).blocks).toBeLessThanOrEqual(32);
    }
  });

  test("refuse at once what could block or act", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    execFileSync("mkfifo", [at("fifo")]);
    execFileSync("mknod", [at("null"), "c", "1", "3"]);
    execFileSync("python3", ["-c", "import socket,sys,os; os.chdir(sys.argv[1]); socket.socket(1).bind('s')", at(".")]);
    mkdirSync(at("d"));
    symlinkSync("loop2", at("loop"));
    symlinkSync("loop", at("loop2"));
    const refusal = async (path: string) => {
      const read = await ask(agent, { op: FileOp.read, path, flags: ["follow"] });
      const written = await write(agent, { op: FileOp.write, path }, Buffer.from("x"));
      return [read.error?.errno, written.error?.errno];
    };
    for (const path of ["/fifo", "/null", "/s"]) expect(await refusal(path)).toEqual([ENOTSUP, ENOTSUP]);
    expect(await refusal("/d")).toEqual([EISDIR, EISDIR]);
    expect(await refusal("/loop")).toEqual([40, 40]);
  });
});

describe("directories", () => {
  test("a list streams entries to a depth", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    mkdirSync(at("d/e/f"), { recursive: true });
    writeFileSync(at("d/e/f/deep"), "");
    writeFileSync(Buffer.concat([Buffer.from(`${at("d")}/`), Buffer.of(0xff, 0x0a, 0x80)]), "");
    writeFileSync(at(`d/${"n".repeat(255)}`), "");
    symlinkSync("e", at("d/link"));
    const paths = async (depth: number, flags: readonly "follow"[] = []) =>
      entries(await ask(agent, { op: FileOp.list, path: "/d", depth, flags })).map(({ path }) => path);
    expect(await paths(0)).toEqual([""]);
    const first = ["", "e", "link", "n".repeat(255), "\xff\n\x80"];
    expect((await paths(1)).sort()).toEqual([...first].sort());
    expect((await paths(2)).sort()).toEqual([...first, "e/f"].sort());
    expect((await paths(64, ["follow"])).sort()).toEqual([...first, "e/f", "e/f/deep"].sort());
    const list = entries(await ask(agent, { op: FileOp.list, path: "/d", depth: 1, flags: ["follow"] }));
    expect(list.find(({ path }) => path === "link")).toMatchObject({ link: "/d/e", mode: 0o040755 });
    expect(list.every(({ attributes }) => Object.keys(attributes).length === 0)).toBeTrue();
    expect((await ask(agent, { op: FileOp.list, path: "/d", depth: 65 })).error?.errno).toBe(EINVAL);
  });

  test("a list has attributes on request, and those of a symlink's target when it is followed", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    mkdirSync(at("d/e"), { recursive: true });
    writeFileSync(at("d/e/f"), "");
    symlinkSync("e/f", at("d/link"));
    symlinkSync("none", at("d/broken"));
    execFileSync("mkfifo", [at("d/fifo")]);
    for (const path of ["/d", "/d/e", "/d/e/f"])
      await ask(agent, { op: FileOp.attributes, path, more: ["user.at", path] });
    const list = async (flags: readonly ("follow" | "attributes")[]) => {
      const answer = entries(await ask(agent, { op: FileOp.list, path: "/d", depth: 2, flags }));
      return Object.fromEntries(answer.map(({ path, link, attributes }) => [path, [link, attributes["user.at"]]]));
    };
    expect(await list(["attributes"])).toEqual({
      "": ["", "/d"],
      e: ["", "/d/e"],
      "e/f": ["", "/d/e/f"],
      link: ["e/f", undefined],
      broken: ["none", undefined],
      fifo: ["", undefined],
    });
    expect(await list(["attributes", "follow"])).toMatchObject({
      link: ["/d/e/f", "/d/e/f"],
      broken: ["none", undefined],
    });
  });

  test("make, also what is missing above", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    const request = { op: FileOp.directory, path: "/a/b/c", mode: 0o1770 } as const;
    expect((await ask(agent, request)).error?.errno).toBe(ENOENT);
    const created = await ask(agent, { ...request, flags: ["parents", "mode", "owner"], owner: [5, 6] });
    expect(created.done).toBe(1n);
    expect(entries(created)[0]).toMatchObject({ path: "/a/b/c", mode: 0o041770, uid: 5, gid: 6 });
    expect([statSync(at("a/b")).uid, statSync(at("a/b")).mode & 0o777]).toEqual([5, 0o755]);
    const again = await ask(agent, { ...request, flags: ["parents", "mode"], mode: 0o700 });
    expect([again.done, entries(again)[0]?.mode]).toEqual([0n, 0o041770]);
    expect((await ask(agent, { ...request, flags: ["exclusive"] })).error?.errno).toBe(EEXIST);
    for (const path of ["/", "/a/..", "/a/b/."])
      expect((await ask(agent, { op: FileOp.directory, path })).done).toBe(0n);
    writeFileSync(at("f"), "");
    expect((await ask(agent, { op: FileOp.directory, path: "/f" })).error?.errno).toBe(EEXIST);
    expect((await ask(agent, { op: FileOp.directory, path: "/f/x", flags: ["parents"] })).error?.errno).toBe(ENOTDIR);
  });

  test("remove", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    mkdirSync(at("keep"));
    writeFileSync(at("keep/f"), "");
    mkdirSync(at("d/e"), { recursive: true });
    symlinkSync("../keep", at("d/link"));
    symlinkSync("/keep/f", at("d/e/file"));
    for (let index = 0; index < 300; index++) writeFileSync(at(`d/e/${index}`), "");
    expect((await ask(agent, { op: FileOp.remove, path: "/d" })).error?.errno).toBe(ENOTEMPTY);
    expect((await ask(agent, { op: FileOp.remove, path: "/d", flags: ["recursive"] })).done).toBe(304n);
    expect((await ask(agent, { op: FileOp.remove, path: "/keep/f" })).done).toBe(1n);
    expect((await ask(agent, { op: FileOp.remove, path: "/keep" })).done).toBe(1n);
    expect((await ask(agent, { op: FileOp.remove, path: "/keep" })).error?.errno).toBe(ENOENT);
    for (const path of ["/", "/.", "/x/.."])
      expect((await ask(agent, { op: FileOp.remove, path, flags: ["recursive"] })).error?.errno).toBeOneOf([2, EINVAL]);
    expect(readdirSync(at("."))).toEqual([]);
  });

  test("move", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    writeFileSync(at("f"), "f");
    writeFileSync(at("g"), "g");
    const move = { op: FileOp.move, path: "/f", more: ["/g"] } as const;
    expect((await ask(agent, move)).error?.errno).toBe(EEXIST);
    expect(entries(await ask(agent, { ...move, flags: ["replace"] }))[0]?.path).toBe("/g");
    expect([readFileSync(at("g"), "utf8"), existsSync(at("f"))]).toEqual(["f", false]);
    expect((await ask(agent, { ...move, path: "/g", more: ["/new/dir/g"] })).error?.errno).toBe(ENOENT);
    expect((await ask(agent, { ...move, path: "/g", more: ["/new/dir/g"], flags: ["parents"] })).error).toBeNull();
    expect((await ask(agent, { ...move, path: "/new", more: ["/new/dir/x"] })).error?.errno).toBe(EINVAL);
    expect(readFileSync(at("new/dir/g"), "utf8")).toBe("f");
  });

  test("that change where their own path leads are described as they are", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    mkdirSync(at("d"));
    symlinkSync("/d", at("l"));
    const moved = await ask(agent, { op: FileOp.move, path: "/l", more: ["/l/../m"] });
    expect(entries(moved)[0]).toMatchObject({ path: "/l/../m", link: "/d" });
    const path = "/m/../m";
    const written = await write(agent, { op: FileOp.write, path, flags: ["atomic"] }, Buffer.from("abc"));
    expect(entries(written)[0]).toMatchObject({ path, size: 3n });
    expect(readFileSync(at("m"), "utf8")).toBe("abc");
  });

  test("join", async () => {
    await using scene = await open();
    const { agent, at } = scene;
    writeFileSync(at("a"), "a".repeat(5000));
    writeFileSync(at("b"), "");
    writeFileSync(at("c"), "c".repeat(70_000));
    const joined = await ask(agent, { op: FileOp.join, path: "/a", more: ["/a", "/b", "/c", "/a"] });
    expect(joined.done).toBe(80_000n);
    expect(readFileSync(at("a"), "utf8")).toBe(`${"a".repeat(5000)}${"c".repeat(70_000)}${"a".repeat(5000)}`);
    expect((await ask(agent, { op: FileOp.join, path: "/d", more: ["/a", "/none"] })).error?.errno).toBe(ENOENT);
    expect(readdirSync(at(".")).sort()).toEqual(["a", "b", "c"]);
  });
});
