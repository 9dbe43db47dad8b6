import { describe, expect, test } from "bun:test";
import {
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { AgentFrame, FRAME_PAYLOAD_BYTES_MAX, HostFrame } from "../../src/vm/agent/protocol.ts";
import {
  execFrames,
  type Frame,
  frame,
  NativeAgent,
  parseError,
  putOpen,
  syncFrame,
  u32,
  u64,
} from "../support/agent/native-agent.ts";

function putFrames(session: number, path: string | Uint8Array, content: Uint8Array, mode = 0o644): Buffer {
  const frames = [putOpen(session, path, content.length, mode)];
  for (let at = 0; at < content.length; at += FRAME_PAYLOAD_BYTES_MAX) {
    frames.push(frame(HostFrame.putData, session, content.subarray(at, at + FRAME_PAYLOAD_BYTES_MAX)));
  }
  return Buffer.concat(frames);
}

async function put(agent: NativeAgent, path: string | Uint8Array, text: string, mode?: number): Promise<Frame> {
  agent.send(putFrames(2, path, Buffer.from(text), mode));
  return await agent.next();
}

describe("a file", () => {
  test("belongs to the given owner", async () => {
    await using agent = await NativeAgent.mounted();
    const head = [u32(0o6750), u32(1234), u32(5678), u32(0), u64(0)];
    agent.send(frame(HostFrame.putOpen, 2, ...head, Buffer.from("/mine")));
    expect((await agent.next()).type).toBe(AgentFrame.done);
    const { uid, gid, mode } = statSync(join(agent.directory, "r/mine"));
    expect([uid, gid, mode & 0o7777]).toEqual([1234, 5678, 0o6750]);
  });

  test("is written with its mode, and its missing parents are made", async () => {
    await using agent = await NativeAgent.mounted();
    expect((await put(agent, "/a/b/../b/file", "content", 0o6751)).type).toBe(AgentFrame.done);
    const path = join(agent.directory, "r/a/b/file");
    expect(readFileSync(path, "utf8")).toBe("content");
    expect(statSync(path).mode & 0o7777).toBe(0o6751);
    expect(statSync(join(agent.directory, "r/a")).mode & 0o7777).toBe(0o755);
  });

  test("of 5 MiB and an empty one arrive whole", async () => {
    await using agent = await NativeAgent.mounted();
    const content = Buffer.alloc(5 << 20, "0123456789");
    agent.send(putFrames(2, "/large", content), putFrames(3, "/empty", Buffer.alloc(0)));
    expect([(await agent.next()).session, (await agent.next()).session]).toEqual([2, 3]);
    expect(readFileSync(join(agent.directory, "r/large")).equals(content)).toBe(true);
    expect(statSync(join(agent.directory, "r/empty")).size).toBe(0);
  });

  test("replaces the content of an existing one, under all its names", async () => {
    await using agent = await NativeAgent.mounted();
    const path = join(agent.directory, "r/old");
    writeFileSync(path, "a long content", { mode: 0o600 });
    linkSync(path, `${path}-too`);
    await put(agent, "/old", "new", 0o640);
    expect(readFileSync(`${path}-too`, "utf8")).toBe("new");
    expect(statSync(path).mode & 0o7777).toBe(0o640);
  });

  test("may come in pieces that alternate with those of another", async () => {
    await using agent = await NativeAgent.mounted();
    const open = (session: number) => putOpen(session, `/f${session}`, 4);
    const data = (session: number, text: string) => frame(HostFrame.putData, session, Buffer.from(text));
    agent.send(open(1), open(2), data(1, "ab"), data(2, "cd"), data(2, "ef"), data(1, "gh"));
    expect([(await agent.next()).session, (await agent.next()).session]).toEqual([2, 1]);
    expect(readFileSync(join(agent.directory, "r/f1"), "utf8")).toBe("abgh");
    expect(readFileSync(join(agent.directory, "r/f2"), "utf8")).toBe("cdef");
  });

  test("is resolved within the guest's root", async () => {
    await using agent = await NativeAgent.mounted();
    const root = join(agent.directory, "r");
    mkdirSync(join(root, "real"));
    symlinkSync("/real", join(root, "absolute"));
    symlinkSync("../../../../../real", join(root, "climbing"));
    symlinkSync("/real/target", join(root, "file"));
    for (const path of ["/absolute/one", "/climbing/two", "/../../three", "/file"]) {
      expect((await put(agent, path, path)).type).toBe(AgentFrame.done);
    }
    expect(readFileSync(join(root, "real/one"), "utf8")).toBe("/absolute/one");
    expect(readFileSync(join(root, "real/two"), "utf8")).toBe("/climbing/two");
    expect(readFileSync(join(root, "three"), "utf8")).toBe("/../../three");
    expect(readFileSync(join(root, "real/target"), "utf8")).toBe("/file");
    expect(lstatSync(join(root, "file")).isSymbolicLink()).toBe(true);
  });
});

describe("an impossible file", () => {
  test("is an error that names the path", async () => {
    await using agent = await NativeAgent.mounted();
    const root = join(agent.directory, "r");
    mkdirSync(join(root, "directory"));
    writeFileSync(join(root, "plain"), "");
    symlinkSync("loop", join(root, "loop"));
    symlinkSync("nowhere", join(root, "dangling"));
    expect(Bun.spawnSync(["mkfifo", join(root, "fifo")]).exitCode).toBe(0);
    const cases: [string, RegExp][] = [
      ["/directory", /file \/directory: Is a directory/],
      ["/plain/x", /directory \/plain: Not a directory/],
      ["/loop", /file \/loop: Too many levels/],
      ["/dangling/x", /directory \/dangling: No such file/],
      ["/fifo", /file \/fifo: No such device or address/],
      ["/", /not absolute|Is a directory/],
      ["relative", /not absolute/],
      ["/a\0b", /not absolute, or has a NUL/],
      [`/${"x".repeat(4096)}`, /path of 4097 bytes/],
      [`/${"x".repeat(256)}`, /File name too long/],
    ];
    for (const [path, text] of cases) {
      expect(parseError(await put(agent, path, "x")).text).toMatch(text);
      agent.send(syncFrame());
      expect((await agent.next()).type).toBe(AgentFrame.synced);
    }
    expect(existsSync(join(root, "nowhere"))).toBe(false);
  });

  test("prevents the command after it from running", async () => {
    await using agent = await NativeAgent.mounted();
    mkdirSync(join(agent.directory, "r/d"));
    agent.send(
      putFrames(2, "/d", Buffer.from("x")),
      putFrames(3, "/fine", Buffer.from("x")),
      execFrames(4, { argv: ["true"] }),
    );
    expect(parseError(await agent.next()).text).toContain("Is a directory");
    for (const session of [3, 4]) {
      const error = await agent.next();
      expect(error.session).toBe(session);
      expect(parseError(error).text).toContain("an earlier step failed: file /d: Is a directory");
    }
  });

  test("drops the data that is still sent", async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(putFrames(2, "relative", Buffer.alloc(200_000)), syncFrame(4n));
    expect(parseError(await agent.next()).text).toContain("not absolute");
    expect((await agent.next()).payload.readBigUInt64LE()).toBe(4n);
  });
});
