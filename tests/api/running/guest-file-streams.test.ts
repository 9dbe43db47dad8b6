/** Files of what runs as streams: long ones, slow and leaving clients, events, and accounts. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout } from "bun:test";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  statSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { Client } from "../../../src/client/client.ts";
import { readFile, watchFiles, writeFile } from "../../../src/client/guest-files.ts";
import type { GuestFileEvent } from "../../../src/client/types.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { ACCOUNT_LIMITS } from "../../../src/domain/account/limits.ts";
import { FILES_COUNT_MAX, WATCHES_COUNT_MAX } from "../../../src/vm/agent/protocol.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { type RunningFixture, runningInstance } from "../../support/api/running.ts";
import { until } from "../../support/waiting.ts";

const MIB = 1_048_576;
/** Larger than all buffers between the ends. */
const LONG_BYTES = 128 * MIB;
/** Buffers of the guest, the daemon and the connection, and what `fetch` reads ahead: up to 22 MiB on a busy host. */
const BUFFERED_BYTES_MAX = 40 * MIB;

// The first test may have to build the agent.
setDefaultTimeout(150_000);

let api: Api;
let accounts: Accounts;
let running: RunningFixture;
let client: Client;
beforeAll(async () => {
  accounts = new Accounts({ guestFiles: { waitMsMax: 100 } });
  api = await Api.start({ accounts });
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
  running = await runningInstance(api, "sleep 1000");
  client = new Client({ url: api.url, token: api.token });
});
afterAll(async () => {
  await running?.[Symbol.asyncDispose]();
  await api[Symbol.asyncDispose]();
});

const at = (path: string) => ({ place: { instance: running.id }, path });
const inUse = () => accounts.used("alice", "guestFiles");
const idle = () => until("no request is under way", () => inUse() === 0);

/** A body that counts the bytes that were read from it. At `stopAt` it waits for `end`. */
function countedBody(bytes: number, stopAt = Number.POSITIVE_INFINITY) {
  let sent = 0;
  const stalled = Promise.withResolvers<void>();
  const body = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        if (sent >= stopAt) await stalled.promise;
        if (sent >= bytes) return controller.close();
        sent += MIB;
        controller.enqueue(new Uint8Array(MIB).fill(sent / MIB));
      },
    },
    { highWaterMark: 0 },
  );
  return { body, sentBytes: () => sent, end: () => stalled.resolve() };
}

describe("a long file", () => {
  heldTest("is written and read whole", async () => {
    const { body } = countedBody(LONG_BYTES);
    expect((await writeFile(client, at("/long"), body)).size).toBe(LONG_BYTES);
    const response = await readFile(client, at("/long"));
    let bytes = 0;
    for await (const chunk of response.body ?? []) {
      for (let offset = 0; offset < chunk.byteLength; offset += 4096) {
        const expected = (Math.floor((bytes + offset) / MIB) + 1) & 0xff;
        if (chunk[offset] !== expected) throw new Error(`byte ${bytes + offset} is ${chunk[offset]}`);
      }
      bytes += chunk.byteLength;
    }
    expect(bytes).toBe(LONG_BYTES);
    await idle();
  });

  heldTest("is sent no faster than the client reads it", async () => {
    const { body } = countedBody(LONG_BYTES);
    await writeFile(client, at("/slow"), body);
    const response = await readFile(client, at("/slow"));
    const reader = (response.body as ReadableStream<Uint8Array>).getReader();
    await reader.read();
    const pid = holderOf("slow");
    if (pid === null) throw new Error("the file is not being read");
    // The guest's process stops where its credit ends, far from the end of the file.
    expect(await settled("the guest waits", () => readBytesOf(pid))).toBeLessThan(BUFFERED_BYTES_MAX);
    await reader.cancel();
    await idle();
    await until("the guest closes the file", () => holderOf("slow") === null);
  });

  heldTest("is taken no faster than the guest writes it", async () => {
    const { body, sentBytes } = countedBody(LONG_BYTES);
    const writing = writeFile(client, at("/stopped"), body);
    const sizeOf = () => statSync(join(running.root, "stopped"), { throwIfNoEntry: false })?.size ?? 0;
    await until("the guest has begun", () => sizeOf() > 0);
    const pid = holderOf("stopped");
    if (pid === null) throw new Error("the file is not being written");
    process.kill(pid, "SIGSTOP");
    const before = await settled("the client waits", sentBytes);
    expect(before - sizeOf()).toBeLessThan(BUFFERED_BYTES_MAX);
    process.kill(pid, "SIGCONT");
    expect((await writing).size).toBe(LONG_BYTES);
    await idle();
  });
});

/** Waits until a number stays the same for a while, and returns it. */
async function settled(what: string, read: () => number): Promise<number> {
  let latest = -1;
  let sameCount = 0;
  await until(what, () => {
    const now = read();
    sameCount = now === latest ? sameCount + 1 : 0;
    latest = now;
    return sameCount > 5;
  });
  return latest;
}

/** The process of the guest that has a file open; null: there is none. */
function holderOf(name: string): number | null {
  for (const pid of readdirSync("/proc").filter((entry) => /^\d+$/.test(entry))) {
    try {
      for (const fd of readdirSync(`/proc/${pid}/fd`)) {
        if (readlinkSync(`/proc/${pid}/fd/${fd}`) === join(running.root, name)) return Number(pid);
      }
    } catch {
      // It has ended.
    }
  }
  return null;
}

/** Number of bytes that a process has read. */
function readBytesOf(pid: number): number {
  return Number(/^rchar: (\d+)$/m.exec(readFileSync(`/proc/${pid}/io`, "latin1"))?.[1]);
}

describe("a client that leaves", () => {
  heldTest("ends a read and a write, and leaves no part of an atomic one", async () => {
    for (const atomic of [false, true]) {
      const directory = join(running.root, `left-${atomic}`);
      mkdirSync(directory);
      const names = () => readdirSync(directory);
      const sizeOf = (name: string) => statSync(join(directory, name), { throwIfNoEntry: false })?.size ?? 0;
      const left = new AbortController();
      const { body, sentBytes } = countedBody(LONG_BYTES, 4 * MIB);
      const file = { ...at(`/left-${atomic}/f`), signal: left.signal };
      const writing = writeFile(client, file, body, { atomic }).catch((error: Error) => error);
      await until("a part has arrived", () => sentBytes() >= 4 * MIB && names().some((name) => sizeOf(name) > 0));
      left.abort(new Error("left"));
      expect(await writing).toBeInstanceOf(Error);
      await idle();
      if (atomic) await until("the guest has ended the write", () => names().length === 0);
      else expect(names()).toEqual(["f"]);
      expect(sizeOf("f")).toBeLessThan(LONG_BYTES);
    }
  });
});

describe("a watch", () => {
  heldTest("reports changes with their entries, and ends with its directory or its client", async () => {
    const here = join(running.root, "watched");
    mkdirSync(join(here, "below"), { recursive: true });
    const left = new AbortController();
    const events: GuestFileEvent[] = [];
    const watching = (async () => {
      const watched = watchFiles(
        client,
        { ...at("/watched"), signal: left.signal },
        { recursive: true, entries: true },
      );
      for await (const event of watched) events.push(event);
    })().catch((error: unknown) => error);
    const seen = (type: string, path: string) =>
      until(`${type} of ${path}`, () => events.some((event) => event.type === type && event.path === path));
    await seen("ready", "/watched");
    writeFileSync(join(here, "below/f"), "12345");
    await seen("write", "/watched/below/f");
    renameSync(join(here, "below/f"), join(here, "g"));
    await seen("rename_to", "/watched/g");
    unlinkSync(join(here, "g"));
    await seen("remove", "/watched/g");
    const [from, to] = events.filter(({ cookie }) => cookie !== undefined);
    expect([from?.type, from?.path, to?.type, from?.cookie]).toEqual([
      "rename_from",
      "/watched/below/f",
      "rename_to",
      to?.cookie,
    ]);
    const written = events.findLast(({ type, entry }) => type === "write" && entry !== undefined);
    expect(written?.entry ?? { path: "/watched/below/f" }).toMatchObject({ path: "/watched/below/f" });
    left.abort(new Error("left"));
    await watching;
    await until("its reader is gone", () => accounts.used("alice", "eventReaders") === 0);
  });

  heldTest("is refused when the guest has too many", async () => {
    const left = new AbortController();
    const watches = Array.from({ length: WATCHES_COUNT_MAX }, () =>
      watchFiles(client, { ...at("/"), signal: left.signal }),
    );
    for (const watch of watches) expect((await watch.next()).value?.type).toBe("ready");
    const refused = await api.call("GET", `${running.path}/files/watch?path=/`);
    errorOf(refused, "too_many_requests");
    left.abort(new Error("left"));
    await Promise.allSettled(watches.map((watch) => watch.next()));
    await until("their readers are gone", () => accounts.used("alice", "eventReaders") === 0);
  });
});

describe("accounts", () => {
  heldTest("have no files of others, and wait only for themselves", async () => {
    expect(ACCOUNT_LIMITS.guestFiles.max).toBe(FILES_COUNT_MAX);
    const foreign = { token: api.foreignToken };
    errorOf(await api.call("GET", `${running.path}/files?path=/`, foreign), "not_found");
    errorOf(await api.call("PUT", `${running.path}/files?path=/foreign`, { ...foreign, body: "x" }), "not_found");
    expect(existsSync(join(running.root, "foreign"))).toBe(false);
    const left = new AbortController();
    const bodies = Array.from({ length: FILES_COUNT_MAX }, () => countedBody(2 * MIB, MIB));
    const writes = bodies.map(({ body }, n) =>
      writeFile(client, { ...at(`/many/${n}`), signal: left.signal }, body).catch((error: Error) => error),
    );
    await until("all are under way", () => inUse() === FILES_COUNT_MAX);
    errorOf(await api.call("GET", `${running.path}/files/stat?path=/`), "too_many_requests");
    for (const { end } of bodies) end();
    expect((await Promise.all(writes)).map((entry) => (entry as { size: number }).size)).toEqual(
      bodies.map(() => 2 * MIB),
    );
    await idle();
    expect((await api.call("GET", `${running.path}/files/stat?path=/`)).status).toBe(200);
  });

  heldTest("get 409 for an instance that does not run", async () => {
    await using ended = await runningInstance(api, "true");
    await ended.command.exit;
    errorOf(await api.call("GET", `${ended.path}/files?path=/`), "conflict");
    await ended.finish();
    errorOf(await api.call("PUT", `${ended.path}/files?path=/f`, { body: "x" }), "conflict");
  });
});
