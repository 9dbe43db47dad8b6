/** Watches of directories, in the agent's native build, whose root is the directory `r`. */
import { describe, expect, test } from "bun:test";
import { execFileSync, spawn } from "node:child_process";
import { chmodSync, mkdirSync, renameSync, rmdirSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import {
  AgentFrame,
  FILE_WATCHES_COUNT_MAX,
  FileEvent,
  FileOp,
  HostFrame,
  Stream,
} from "../../../src/vm/agent/protocol.ts";
import {
  ask,
  type FileRequest,
  fileOpen,
  parseWatch,
  records,
  startTarget,
  type WatchRecord,
} from "../../support/agent/file-requests.ts";
import { frame, NativeAgent, parseError, u32 } from "../../support/agent/native-agent.ts";

const SESSION = 50;
const ENOSPC = 28;
const ENOTDIR = 20;
const ECANCELED = 125;
const NAMES = Object.fromEntries(Object.entries(FileEvent).map(([name, type]) => [type, name]));

/** A watch of the agent's root, which is ready. */
class Watch implements AsyncDisposable {
  readonly agent: NativeAgent;
  #waiting = Buffer.alloc(0);
  #records: WatchRecord[] = [];
  #last = "";

  private constructor(agent: NativeAgent) {
    this.agent = agent;
  }

  static async open(
    prepare: (at: (path: string) => string) => void,
    request: Partial<FileRequest> = {},
  ): Promise<Watch> {
    const agent = await NativeAgent.mounted();
    const watch = new Watch(agent);
    prepare((path) => watch.at(path));
    await startTarget(agent);
    agent.send(fileOpen(SESSION, { op: FileOp.watch, path: "/", ...request }));
    expect(await watch.next()).toBe("ready");
    return watch;
  }

  at(path: string): string {
    return join(this.agent.directory, "r", path);
  }

  /** The next record, as the name of its type and its path. */
  async record(): Promise<WatchRecord> {
    while (this.#records.length === 0) {
      const { type, payload } = await this.agent.next();
      if (type !== AgentFrame.output) throw new Error(`a frame of type ${type}`);
      this.agent.send(frame(HostFrame.window, SESSION, u32(Stream.stdout), u32(payload.length - 4)));
      this.#waiting = Buffer.concat([this.#waiting, payload.subarray(4)]);
      const whole = this.#wholeBytes();
      this.#records = records(this.#waiting.subarray(0, whole)).records.map(parseWatch);
      this.#waiting = this.#waiting.subarray(whole);
    }
    return this.#records.shift() as WatchRecord;
  }

  /** Skips repetitions, which the kernel merges only while they wait. */
  async next(): Promise<string> {
    const last = this.#last;
    while (this.#last === last) {
      const { type, path } = await this.record();
      this.#last = path === "" ? `${NAMES[type]}` : `${NAMES[type]} ${path}`;
    }
    return this.#last;
  }

  /** The next records, up to one. */
  async until(last: string): Promise<string[]> {
    const list: string[] = [];
    while (list.at(-1) !== last) list.push(await this.next());
    return list;
  }

  #wholeBytes(): number {
    let at = 0;
    while (at + 4 <= this.#waiting.length && at + this.#waiting.readUInt32LE(at) <= this.#waiting.length)
      at += this.#waiting.readUInt32LE(at);
    return at;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.agent[Symbol.asyncDispose]();
  }
}

describe("a watch", () => {
  test("reports what happens to the entries of one directory, until it is ended", async () => {
    await using watch = await Watch.open((at) => mkdirSync(at("d")));
    writeFileSync(watch.at("f"), "");
    expect(await watch.next()).toBe("create f");
    truncateSync(watch.at("f"), 9);
    expect(await watch.next()).toBe("write f");
    chmodSync(watch.at("f"), 0o600);
    renameSync(watch.at("f"), watch.at("g"));
    expect(await watch.next()).toBe("chmod f");
    const [from, to] = [await watch.record(), await watch.record()];
    expect([from.type, from.path, to.type, to.path]).toEqual([FileEvent.renameFrom, "f", FileEvent.renameTo, "g"]);
    expect(from.cookie).toBe(to.cookie);
    writeFileSync(watch.at("d/below"), "");
    rmSync(watch.at("g"));
    expect(await watch.next()).toBe("remove g");
    watch.agent.send(frame(HostFrame.fileEnd, SESSION));
    expect(parseError(await watch.agent.next()).errno).toBe(ECANCELED);
  });

  test("the first write of a new file with an owner is three events", async () => {
    await using watch = await Watch.open(() => undefined);
    const request = { op: FileOp.write, path: "/f", flags: ["owner"], owner: [0, 0] } as const;
    watch.agent.send(
      fileOpen(SESSION + 1, request),
      frame(HostFrame.stdin, SESSION + 1, Buffer.from("some")),
      frame(HostFrame.stdin, SESSION + 1, Buffer.from(" bytes")),
      frame(HostFrame.stdin, SESSION + 1),
    );
    const events: string[] = [];
    for (let done = false; !done; ) {
      const { type, session, payload } = await watch.agent.next();
      done = type === AgentFrame.done;
      if (session !== SESSION || type !== AgentFrame.output) continue;
      for (const record of records(payload.subarray(4)).records.map(parseWatch))
        events.push(`${NAMES[record.type]} ${record.path}`);
    }
    while (events.length < 3) events.push(await watch.next());
    expect(events).toEqual(["create f", "chmod f", "write f"]);
    expect(await watch.agent.quiet(50)).toBeTrue();
  });

  test("reports on request what happened before, in a storm as well", async () => {
    await using watch = await Watch.open((at) => mkdirSync(at("d")), { flags: ["recursive"] });
    const sync = () => watch.agent.send(frame(HostFrame.fileSync, SESSION));
    sync();
    expect(await watch.next()).toBe("synced");
    for (let turn = 0; turn < 40; turn++) {
      writeFileSync(watch.at(`d/${turn}`), "");
      sync();
      expect(await watch.until("synced")).toContain(`create d/${turn}`);
    }
    const storm = spawn("sh", ["-c", "while :; do : > x; : > y; done"], { cwd: watch.at("."), stdio: "ignore" });
    using _storm = { [Symbol.dispose]: () => void storm.kill("SIGKILL") };
    await watch.until("create y");
    for (let turn = 0; turn < 20; turn++) {
      sync();
      while ((await watch.record()).type !== FileEvent.synced);
    }
  });

  test("covers new and moved directories on demand, but nothing that a symlink names", async () => {
    await using watch = await Watch.open(
      (at) => {
        mkdirSync(at("a/b"), { recursive: true });
        mkdirSync(at("away"));
        symlinkSync("away", at("a/link"));
      },
      { path: "/a", flags: ["recursive"] },
    );
    mkdirSync(watch.at("a/b/new/below"), { recursive: true });
    writeFileSync(watch.at("a/b/new/below/f"), "");
    expect(await watch.until("create b/new/below/f")).toContain("create b/new");
    writeFileSync(watch.at("away/f"), "");
    renameSync(watch.at("a/b"), watch.at("a/c"));
    expect(await watch.until("renameTo c")).toContain("renameFrom b");
    writeFileSync(watch.at("a/c/new/below/g"), "");
    expect(await watch.until("create c/new/below/g")).not.toContain("create b/new/below/g");
    renameSync(watch.at("a/c"), watch.at("away/c"));
    await watch.until("renameFrom c");
    writeFileSync(watch.at("away/c/new/h"), "");
    writeFileSync(watch.at("a/last"), "");
    expect(await watch.until("create last")).toEqual(["create last"]);
  });

  test("names the end of a path that is longer than any request", async () => {
    await using watch = await Watch.open(() => undefined, { path: "/", flags: ["recursive"] });
    const script = "import os,sys\nos.chdir(sys.argv[1])\nfor i in range(300):\n os.mkdir('d'*255); os.chdir('d'*255)";
    execFileSync("python3", ["-c", `${script}\nopen('last', 'w')`, watch.at(".")]);
    for (let path = ""; !path.endsWith("last"); ) {
      path = (await watch.record()).path;
      expect(path.length).toBeLessThanOrEqual(4096);
    }
  });

  test("ends when the directory is removed", async () => {
    await using watch = await Watch.open((at) => mkdirSync(at("d")), { path: "/d" });
    rmdirSync(watch.at("d"));
    await watch.until("gone");
    expect((await watch.agent.next()).type).toBe(AgentFrame.done);
  });

  test("refuses another file, and more directories than it can watch", async () => {
    await using agent = await NativeAgent.mounted();
    await startTarget(agent);
    const at = (path: string) => join(agent.directory, "r", path);
    writeFileSync(at("f"), "");
    expect((await ask(agent, { op: FileOp.watch, path: "/f" })).error?.errno).toBe(ENOTDIR);
    for (let index = 0; index < FILE_WATCHES_COUNT_MAX; index++) mkdirSync(at(`d${index}`));
    expect((await ask(agent, { op: FileOp.watch, path: "/", flags: ["recursive"] })).error?.errno).toBe(ENOSPC);
  });

  test("a storm behind a reader that stalls takes no memory of the agent, and says that events were lost", async () => {
    await using watch = await Watch.open(() => undefined);
    for (let turn = 0; turn < 12_000; turn++) {
      writeFileSync(watch.at(`${"n".repeat(200)}${turn % 2}`), "");
      rmSync(watch.at(`${"n".repeat(200)}${turn % 2}`));
    }
    const list = await watch.until("overflow");
    expect(list.length).toBeLessThan(40_000);
    writeFileSync(watch.at("last"), "");
    await watch.until("create last");
  });
});
