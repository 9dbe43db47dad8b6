import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { mkdtemp, open, rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Api, LIMITS } from "../../support/api/api.ts";
import { programTest } from "../../support/api/program.ts";
import { pause, until } from "../../support/waiting.ts";

const GIB = 1_073_741_824;
const MIB = 1_048_576;
/** Bars of the interface, in MiB. */
const RSS_MIB_MAX = 120;
const RSS_CHUNKED_MIB_MAX = 180;
const TRANSFER_MS_MAX = 300_000;
const STALLED_CLIENTS_COUNT = 20;

let api: Api;
let directory = "";
beforeAll(async () => {
  api = await Api.start({ limits: { ...LIMITS, fileBytesMax: 3 * GIB } });
  directory = await mkdtemp(join(tmpdir(), "coppice-stream-"));
});
afterAll(async () => {
  await api[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

const authorization = () => ({ authorization: `Bearer ${api.token}` });

/** Highest resident memory of the daemon since the last call, in MiB. */
function peakMib(): number {
  const kib = /VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${api.parts.pid}/status`, "utf8"))?.[1];
  // 5 resets the high-water mark.
  writeFileSync(`/proc/${api.parts.pid}/clear_refs`, "5");
  return Math.round(Number(kib) / 1024);
}

/** A sparse file of that size with content at both ends, and its hash. */
async function sparseFile(sizeBytes: number): Promise<{ path: string; sha256: string }> {
  const path = join(directory, String(sizeBytes));
  {
    await using file = await open(path, "w");
    await file.write("begin", 0);
    await file.write("end", sizeBytes - 3);
  }
  const hash = createHash("sha256");
  for await (const chunk of Bun.file(path).stream()) hash.update(chunk);
  return { path, sha256: hash.digest("hex") };
}

async function upload(body: Bun.BunFile | ReadableStream<Uint8Array>): Promise<string> {
  const response = await fetch(`${api.url}/v1/files`, { method: "POST", headers: authorization(), body });
  expect(response.status).toBe(201);
  return ((await response.json()) as { sha256: string }).sha256;
}

describe("memory of the daemon", () => {
  programTest(
    "an upload of 2 GiB, with its length and without",
    async () => {
      const { path, sha256 } = await sparseFile(2 * GIB);
      peakMib();
      expect(await upload(Bun.file(path))).toBe(sha256);
      expect(peakMib()).toBeLessThanOrEqual(RSS_MIB_MAX);
      expect(await upload(Bun.file(path).stream())).toBe(sha256);
      expect(peakMib()).toBeLessThanOrEqual(RSS_CHUNKED_MIB_MAX);
      expect(await api.garbage()).toEqual([]);
    },
    TRANSFER_MS_MAX,
  );

  programTest(
    "a download of 1 GiB, in one piece on the disk and with gaps",
    async () => {
      const piece = new Uint8Array(8 * MIB).fill(7);
      const parts = (step: number) =>
        Array.from({ length: 128 }, (_, index) => ({ at: index * 8 * MIB, bytes: piece.subarray(0, step) }));
      const image = await api.addImage([
        [
          { path: "whole", type: "f", parts: parts(8 * MIB), size: GIB },
          { path: "gaps", type: "f", parts: parts(8 * MIB - 4096), size: GIB },
        ],
      ]);
      for (const name of ["whole", "gaps"]) {
        peakMib();
        const response = await fetch(`${api.url}/v1/inspect/${image}/download?path=/${name}`, {
          headers: authorization(),
        });
        let bytes = 0;
        for await (const chunk of response.body as ReadableStream<Uint8Array>) bytes += chunk.byteLength;
        expect(bytes).toBe(GIB);
        expect(peakMib()).toBeLessThanOrEqual(RSS_MIB_MAX);
      }
    },
    TRANSFER_MS_MAX,
  );

  programTest("clients that stop reading or sending cost next to nothing", async () => {
    const piece = new Uint8Array(64 * MIB).fill(7);
    const gaps = [
      { at: 0, bytes: piece.subarray(0, 32 * MIB) },
      { at: 48 * MIB, bytes: piece.subarray(0, 16 * MIB) },
    ];
    const image = await api.addImage([
      [
        { path: "whole", type: "f", content: piece },
        { path: "gaps", type: "f", parts: gaps, size: 64 * MIB },
      ],
    ]);
    const before = peakMib();
    const head = `HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${api.token}\r\n`;
    const requests = [
      `GET /v1/inspect/${image}/download?path=/whole ${head}\r\n`,
      `GET /v1/inspect/${image}/download?path=/gaps ${head}\r\n`,
      `POST /v1/files ${head}Content-Length: ${GIB}\r\n\r\nabc`,
    ];
    const sockets = requests.flatMap((request) =>
      Array.from({ length: STALLED_CLIENTS_COUNT }, () => {
        const socket = connect(Number(new URL(api.url).port), "127.0.0.1");
        socket.pause();
        socket.write(request);
        return socket;
      }),
    );
    await until("all uploads are under way", async () => (await api.garbage()).length === STALLED_CLIENTS_COUNT);
    await pause("what would be buffered is buffered", 2000);
    expect((await api.call("GET", "/v1/images?limit=1")).status).toBe(200);
    // Mostly the kernel's buffers of each, and one of ours.
    expect(peakMib() - before).toBeLessThan(requests.length * STALLED_CLIENTS_COUNT * 2);
    for (const socket of sockets) socket.destroy();
    await until("nothing of them is left", async () => (await api.garbage()).length === 0);
  });
});

test("an upload is hashed and stored correctly while others are in progress", async () => {
  const contents = Array.from({ length: 8 }, (_, index) => Buffer.alloc(3 * MIB + index, String(index)));
  const hashes = await Promise.all(contents.map((content) => upload(new Blob([content]).stream())));
  expect(hashes).toEqual(contents.map((content) => createHash("sha256").update(content).digest("hex")));
  expect(await api.garbage()).toEqual([]);
});
