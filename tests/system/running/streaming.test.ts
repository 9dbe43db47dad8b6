import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { type Body, resultOf } from "../../support/runs.ts";
import { pause, until } from "../../support/waiting.ts";

setDefaultTimeout(180_000);

const KIB = 1024;
const MIB = 1_048_576;
const GIB = 1_073_741_824;
const RSS_MIB_MAX = 120;
/** Memory for 20 stalled clients: each has a chunk of 1 MiB in flight, and the allocator holds as much again. */
const STALLED_GROWTH_MIB_MAX = 40;
const RSS_CHUNKED_MIB_MAX = 180;
const FILE_BYTES_MAX = 3 * GIB;
const SAMPLE_MS = 20;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let image: string;

beforeAll(async () => {
  const flags = ["--limits-file-bytes-max", String(FILE_BYTES_MAX)];
  ({ appliance, image } = owned.use(await BusyboxAppliance.start({ poolSize: 0, flags, tag: "busybox" })));
});

afterAll(async () => {
  await owned.disposeAsync();
});

/** Highest resident memory of the daemon during `work`, in MiB. */
async function peakRss<T>(work: () => Promise<T>): Promise<{ value: T; mib: number }> {
  let peakKib = 0;
  const look = async () => {
    const status = await readFile(`/proc/${appliance.pid}/status`, "utf8");
    peakKib = Math.max(peakKib, Number(/VmRSS:\s+(\d+) kB/.exec(status)?.[1]));
  };
  const timer = setInterval(() => void look(), SAMPLE_MS);
  const value = await work();
  clearInterval(timer);
  await look();
  return { value, mib: peakKib / KIB };
}

const descriptors = async () => (await readdir(`/proc/${appliance.pid}/fd`)).length;
const temporary = async () => await readdir(join(appliance.dataDir, "tmp"));
const blobs = async () => (await readdir(join(appliance.dataDir, "blobs"), { recursive: true })).length;
/** Waits until an ended or aborted request has left nothing behind. */
async function nothingLeft(before: { readonly fds: number; readonly blobs: number }): Promise<void> {
  await until("no temporary file is left", async () => (await temporary()).length === 0);
  await until("no descriptor is left", async () => (await descriptors()) <= before.fds);
  expect(await blobs()).toBe(before.blobs);
}
const state = async () => ({ fds: await descriptors(), blobs: await blobs() });

const PIECE = Buffer.alloc(MIB, "The quick brown fox jumps over the lazy dog. ");

/** A raw connection, since HTTP clients hide what happens while they send. */
class RawClient {
  readonly #socket: Socket;
  received = "";
  readonly closed: Promise<void>;

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("data", (chunk) => {
      this.received += chunk.toString("latin1");
    });
    // A reset is one of the ways in which the server may end the connection.
    socket.on("error", () => undefined);
    this.closed = new Promise((resolve) => socket.on("close", () => resolve()));
  }

  static async connect(): Promise<RawClient> {
    const { hostname, port } = new URL(appliance.url);
    const socket = connect(Number(port), hostname);
    await new Promise((resolve) => socket.once("connect", resolve));
    return new RawClient(socket);
  }

  head(method: string, path: string, headers: Record<string, string>): void {
    const all = { host: "localhost.test", authorization: `Bearer ${appliance.token}`, ...headers };
    const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
    this.#socket.write(`${method} /v1${path} HTTP/1.1\r\n${lines.join("")}\r\n`);
  }

  async write(bytes: Uint8Array): Promise<void> {
    if (this.#socket.destroyed || this.#socket.write(bytes)) return;
    await Promise.race([new Promise((resolve) => this.#socket.once("drain", resolve)), this.closed]);
  }

  pause(): void {
    this.#socket.pause();
  }

  leave(): void {
    this.#socket.destroy();
  }

  async answered(): Promise<void> {
    await until("the server answers", () => this.received.includes("\r\n\r\n") || this.#socket.destroyed);
  }

  get status(): number {
    return Number(/^HTTP\/1\.1 (\d+)/.exec(this.received)?.[1]);
  }

  get body(): Body {
    return JSON.parse(this.received.slice(this.received.indexOf("{"), this.received.lastIndexOf("}") + 1)) as Body;
  }
}

/** Uploads `pieces` times PIECE, after 8 random bytes. */
async function upload(pieces: number, mark: string, chunked: boolean): Promise<RawClient & { sha256?: string }> {
  const client: RawClient & { sha256?: string } = await RawClient.connect();
  const first = Buffer.from(mark.padEnd(8).slice(0, 8));
  const length = first.length + pieces * PIECE.length;
  client.head("POST", "/files", {
    "content-type": "application/octet-stream",
    ...(chunked ? { "transfer-encoding": "chunked" } : { "content-length": String(length) }),
  });
  const hash = createHash("sha256").update(first);
  const send = async (bytes: Buffer) => {
    if (chunked) await client.write(Buffer.from(`${bytes.length.toString(16)}\r\n`));
    await client.write(bytes);
    if (chunked) await client.write(Buffer.from("\r\n"));
  };
  await send(first);
  for (let piece = 0; piece < pieces; piece++) {
    hash.update(PIECE);
    await send(PIECE);
  }
  if (chunked) await client.write(Buffer.from("0\r\n\r\n"));
  await client.answered();
  client.sha256 = hash.digest("hex");
  return client;
}

describe("POST /files", () => {
  test.each([
    ["with Content-Length", false, RSS_MIB_MAX],
    ["chunked", true, RSS_CHUNKED_MIB_MAX],
  ])("2 GiB %s keep the daemon's memory flat", async (_name, chunked, limitMib) => {
    const before = await state();
    const startedAt = performance.now();
    const { value, mib } = await peakRss(() => upload(2048, chunked ? "chunked" : "length", chunked));
    const seconds = (performance.now() - startedAt) / 1000;
    expect(value.status).toBe(201);
    expect(value.body["sha256"]).toBe(value.sha256);
    process.stdout.write(`2 GiB upload: ${mib.toFixed(0)} MiB RSS at most, ${(2048 / seconds).toFixed(0)} MiB/s\n`);
    expect(mib).toBeLessThan(limitMib);
    value.leave();
    await nothingLeft({ ...before, blobs: before.blobs + 2 });
  });

  test("an aborted upload leaves no temporary file and no descriptor", async () => {
    const before = await state();
    for (const headers of [{ "content-length": String(GIB) }, { "transfer-encoding": "chunked" }]) {
      const client = await RawClient.connect();
      client.head("POST", "/files", headers);
      const chunk = "transfer-encoding" in headers ? Buffer.from(`${PIECE.length.toString(16)}\r\n`) : Buffer.alloc(0);
      for (let piece = 0; piece < 20; piece++) {
        await client.write(chunk);
        await client.write(PIECE);
        if (chunk.length > 0) await client.write(Buffer.from("\r\n"));
      }
      await until("the upload is under way", async () => (await temporary()).length === 1);
      client.leave();
      await nothingLeft(before);
    }
  });

  test("stalled clients use a temporary file each and no memory, and nothing afterwards", async () => {
    const before = await state();
    const { mib: idleMib } = await peakRss(async () => undefined);
    const { value: clients, mib } = await peakRss(async () => {
      const stalled = await Promise.all(Array.from({ length: 20 }, () => RawClient.connect()));
      for (const client of stalled) {
        client.head("POST", "/files", { "content-length": String(GIB) });
        await client.write(PIECE);
      }
      await until("all are under way", async () => (await temporary()).length === stalled.length);
      // Others are served meanwhile.
      expect((await appliance.fetch("/images")).status).toBe(200);
      await pause("what would be buffered is buffered", 1000);
      return stalled;
    });
    for (const client of clients) client.leave();
    await nothingLeft(before);
    expect(mib - idleMib).toBeLessThan(STALLED_GROWTH_MIB_MAX);
  });

  test("a body that is too large is 413 in our shape, announced or not, and leaves nothing behind", async () => {
    const before = await state();
    const announced = await RawClient.connect();
    announced.head("POST", "/files", { "content-length": String(FILE_BYTES_MAX + 1) });
    await announced.answered();
    expect(announced.status).toBe(413);
    expect(announced.body).toMatchObject({
      error: "payload_too_large",
      message: expect.any(String),
      details: { limit_bytes: FILE_BYTES_MAX },
    });
    announced.leave();
    await nothingLeft(before);
  });

  test("a body without an announced length is refused once it is too large, and leaves nothing behind", async () => {
    await using small = await Appliance.start({ poolSize: 0, flags: ["--limits-file-bytes-max", String(4 * MIB)] });
    const body = new ReadableStream<Uint8Array>({
      pull: (controller) => {
        controller.enqueue(PIECE.slice());
        if (++sent >= 64) controller.close();
      },
    });
    let sent = 0;
    const response = await small.fetch("/files", { method: "POST", body }).catch(() => null);
    // A client that continues to send may see the connection close before the answer.
    if (response !== null) {
      expect(response.status).toBe(413);
      expect(await response.json()).toMatchObject({ error: "payload_too_large", details: { limit_bytes: 4 * MIB } });
    }
    await until("nothing is left", async () => (await small.leftovers()).length === 0);
    const exact = await small.fetch("/files", { method: "POST", body: Buffer.alloc(4 * MIB, 7) });
    expect(exact.status).toBe(201);
    const over = await small.fetch("/files", { method: "POST", body: Buffer.alloc(4 * MIB + 1, 7) });
    expect([over.status, ((await over.json()) as Body)["error"]]).toEqual([413, "payload_too_large"]);
  });
});

describe("GET /inspect/{imageUUID}/download", () => {
  const STEP = 300 * MIB;
  let big: string;
  const url = () => `/inspect/${big}/download?path=/root/big`;

  beforeAll(async () => {
    const seek = "bs=1M seek=$((i*300)) conv=notrunc";
    const command = `for i in 0 1 2 3; do dd if=/bin/busybox of=/root/big ${seek}; done; truncate -s 1G /root/big`;
    big = resultOf(await appliance.run(image, command, { timeout: 120 })).image ?? "";
    // This opens the layers, which then stay open.
    const first = await appliance.fetch(url(), { headers: { range: "bytes=0-3" } });
    expect(await first.text()).toBe("\x7fELF");
  });

  /** Pieces of a program, and holes between them. */
  async function expectedSha256(): Promise<string> {
    const program = await readFile("/bin/busybox");
    const hash = createHash("sha256");
    const rest = Buffer.alloc(STEP - program.length);
    for (let piece = 0; piece < 3; piece++) hash.update(program).update(rest);
    return hash
      .update(program)
      .update(rest.subarray(0, GIB - 3 * STEP - program.length))
      .digest("hex");
  }

  test("1 GiB does not increase the daemon's memory, and arrives whole", async () => {
    const fds = await descriptors();
    const startedAt = performance.now();
    const { value, mib } = await peakRss(async () => {
      const response = await appliance.fetch(url());
      const hash = createHash("sha256");
      let bytes = 0;
      for await (const chunk of response.body ?? []) {
        hash.update(chunk);
        bytes += chunk.byteLength;
      }
      return { bytes, sha256: hash.digest("hex") };
    });
    const seconds = (performance.now() - startedAt) / 1000;
    process.stdout.write(`1 GiB download: ${mib.toFixed(0)} MiB RSS at most, ${(1024 / seconds).toFixed(0)} MiB/s\n`);
    expect(value).toEqual({ bytes: GIB, sha256: await expectedSha256() });
    expect(mib).toBeLessThan(RSS_MIB_MAX);
    await until("no descriptor is left", async () => (await descriptors()) <= fds);
  });

  test("clients that stop reading, or leave, use no memory and no descriptor", async () => {
    const fds = await descriptors();
    const { mib: before } = await peakRss(async () => undefined);
    const { value: clients, mib } = await peakRss(async () => {
      const stalled = await Promise.all(Array.from({ length: 20 }, () => RawClient.connect()));
      for (const client of stalled) {
        client.pause();
        client.head("GET", url(), {});
      }
      await pause("what would be buffered is buffered", 2000);
      expect((await appliance.fetch("/images")).status).toBe(200);
      return stalled;
    });
    process.stdout.write(`20 stalled downloads: ${mib.toFixed(0)} MiB RSS at most\n`);
    expect(mib - before).toBeLessThan(STALLED_GROWTH_MIB_MAX);
    for (const client of clients) client.leave();
    await until("no descriptor is left", async () => (await descriptors()) <= fds);
  });
});
