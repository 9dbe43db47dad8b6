import { readFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { interleaved, rowOf } from "../../src/cli/bench/figures.ts";
import { run } from "../../src/system/exec.ts";
import { scratchDirectory } from "../../src/system/scratch.ts";
import type { BenchHost } from "./host.ts";
import type { Finding } from "./part.ts";
import { startBareServer } from "./server.ts";

const MIB = 1_048_576;
const TOOL_MS = 300_000;
const RSS_INTERVAL_MS = 20;
const CHUNK = new Uint8Array(MIB);

/** Gigabytes through the HTTP interface. */
export async function* transferRows(host: BenchHost): AsyncGenerator<Finding> {
  await using directory = await scratchDirectory("/tmp", "coppice-transfer-");
  yield* downloadRow(host, directory.path);
  yield* uploadRows(host, directory.path);
}

async function* downloadRow(host: BenchHost, directory: string): AsyncGenerator<Finding> {
  const sizeMib = host.quick ? 256 : 1024;
  const { image = "" } = await host.run(host.base, `dd if=/dev/zero of=/root/big bs=1M count=${sizeMib}`, {
    timeout: 600,
  });
  const plain = join(directory, "plain");
  await run({ argv: ["dd", "if=/dev/zero", `of=${plain}`, "bs=1M", `count=${sizeMib}`], timeoutMs: TOOL_MS });
  await using bare = await startBareServer(["file", plain]);
  const headers = { authorization: `Bearer ${host.appliance.token}` };
  const url = `${host.appliance.url}/v1/inspect/${image}/download?path=/root/big`;
  const values = await interleaved(host.rounds(9, 5), {
    ours: () => downloadRate(url, sizeMib, headers),
    theirs: () => downloadRate(bare.url, sizeMib, {}),
  });
  yield rowOf({
    name: `download ${sizeMib} MiB from an image`,
    from: "request sent",
    to: "last byte read",
    values: values.ours,
    unit: "MiB/s",
    against: { name: "Bun.file of a bare Bun server", values: values.theirs },
    atLeast: 0.7,
  });
}

async function downloadRate(url: string, sizeMib: number, headers: Record<string, string>): Promise<number> {
  const startedAt = performance.now();
  const response = await fetch(url, { headers });
  let bytes = 0;
  for await (const chunk of response.body ?? []) bytes += chunk.byteLength;
  if (bytes !== sizeMib * MIB) throw new Error(`${url} gave ${bytes} bytes, status ${response.status}`);
  return sizeMib / ((performance.now() - startedAt) / 1000);
}

async function* uploadRows(host: BenchHost, directory: string): AsyncGenerator<Finding> {
  const sizeMib = host.quick ? 512 : 2048;
  const source = join(directory, "source");
  const copy = join(directory, "copy");
  let resident = 0;
  const rate = async (work: () => Promise<unknown>): Promise<number> => {
    const startedAt = performance.now();
    await work();
    return sizeMib / ((performance.now() - startedAt) / 1000);
  };
  const values = await interleaved(host.rounds(3, 3), {
    ours: async () => {
      // Every round has contents of its own, which are not there yet.
      await writeContent(source, sizeMib);
      const watch = watchResident(host.appliance.pid);
      const result = await rate(() => upload(host, Bun.file(source)));
      resident = Math.max(resident, watch.stop());
      return result;
    },
    theirs: () =>
      rate(async () => {
        await run({ argv: ["sha256sum", source], timeoutMs: TOOL_MS });
        await run({ argv: ["dd", `if=${source}`, `of=${copy}`, "bs=1M", "conv=fsync"], timeoutMs: TOOL_MS });
      }),
  });
  const ends = { from: "request sent", to: "201 read, content synced" };
  yield rowOf({
    ...ends,
    name: `upload ${sizeMib} MiB`,
    values: values.ours,
    unit: "MiB/s",
    against: { name: "sha256sum of the file, then a plain synced write", values: values.theirs },
    atLeast: 0.8,
  });
  yield rowOf({ ...ends, name: "daemon's memory while uploading", values: [resident], unit: "MiB RSS", atMost: 120 });
  const watch = watchResident(host.appliance.pid);
  await upload(host, chunked(sizeMib));
  const residentChunked = watch.stop();
  yield rowOf({ ...ends, name: "the same, chunked", values: [residentChunked], unit: "MiB RSS", atMost: 180 });
}

async function writeContent(path: string, sizeMib: number): Promise<void> {
  const argv = ["dd", "if=/dev/zero", `of=${path}`, "bs=1M", `count=${sizeMib}`, "conv=fsync"];
  await run({ argv, timeoutMs: TOOL_MS });
  await using file = await open(path, "r+");
  await file.write(crypto.getRandomValues(new Uint8Array(4096)), 0, 4096, 0);
}

async function upload(host: BenchHost, body: Blob | ReadableStream<Uint8Array>): Promise<void> {
  const response = await host.appliance.fetch("/files", { method: "POST", body });
  if (response.status !== 201) throw new Error(`upload answered ${response.status}: ${await response.text()}`);
  await response.arrayBuffer();
}

function chunked(sizeMib: number): ReadableStream<Uint8Array> {
  let left = sizeMib;
  const first = crypto.getRandomValues(new Uint8Array(4096));
  return new ReadableStream({
    pull(controller) {
      if (left === sizeMib) controller.enqueue(first);
      if (left-- > 0) controller.enqueue(CHUNK);
      else controller.close();
    },
  });
}

/** The most resident memory of a process, in `MiB`. */
function watchResident(pid: number): { stop(): number } {
  let peak = 0;
  const look = () => {
    peak = Math.max(peak, residentMib(pid));
  };
  const timer = setInterval(look, RSS_INTERVAL_MS);
  return {
    stop: () => {
      look();
      clearInterval(timer);
      return peak;
    },
  };
}

export function residentMib(pid: number): number {
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1] ?? 0) / 1024;
}
