import { join } from "node:path";
import { run } from "../../system/exec.ts";
import { scratchDirectory } from "../../system/scratch.ts";
import { figureOf, interleaved } from "./measure.ts";
import { remarkOf } from "./report.ts";
import { type Finding, missing, rowOf } from "./row.ts";
import { captureRow } from "./spawns.ts";
import type { BenchTarget } from "./target.ts";

const MIB = 1_048_576;
const LARGE_PATH = "/root/coppice-bench.large";
const RESIDENT_POLL_MS = 50;
const UPLOAD_MIB = 256;
const TOOL_MS = 600_000;

/** Costs of a large image: a capture above it, and reading it. */
export async function* largePart(target: BenchTarget): AsyncGenerator<Finding> {
  const large = await makeLarge(target);
  const small = { name: "the image itself", image: target.image };
  yield await captureRow(target, { name: `capture above ${large.sizeMib} MiB more`, large: large.image, small });
  const { name, from, to } = downloadNames(large);
  const values = await interleaved(target.rounds(9, 3), { ours: () => downloadRate(target, large) });
  yield remarkOf(name, figureOf(values.ours, "MiB/s"), `from ${from} to ${to}`);
  await target.deleteMade();
}

/** An image with a large file at `LARGE_PATH`. */
export interface LargeImage {
  readonly image: string;
  readonly sizeMib: number;
}

/** Makes an image with a large file above the image of the target. */
export async function makeLarge(target: BenchTarget): Promise<LargeImage> {
  const sizeMib = target.options.quick ? 256 : 1024;
  const write = `dd if=/dev/zero of=${LARGE_PATH} bs=1048576 count=${sizeMib}`;
  const { image = "" } = await target.run(target.image, write, { timeout: 600 });
  return { image, sizeMib };
}

export function downloadNames({ sizeMib }: LargeImage) {
  return { name: `download ${sizeMib} MiB from an image`, from: "request sent", to: "last byte read" };
}

/** Downloads the large file, in `MiB` a second. */
export async function downloadRate({ client, options }: BenchTarget, { image, sizeMib }: LargeImage): Promise<number> {
  const download = { query: { path: LARGE_PATH }, deadline: false, signal: options.signal };
  return await rateOfBody(sizeMib, () => client.call("GET", `/inspect/${image}/download`, download));
}

/** Reads an answer of `sizeMib`, in `MiB` a second. */
export async function rateOfBody(sizeMib: number, request: () => Promise<Response>): Promise<number> {
  return await rateOf(sizeMib, async () => {
    const response = await request();
    let bytes = 0;
    for await (const chunk of response.body ?? []) bytes += chunk.byteLength;
    if (bytes !== sizeMib * MIB) throw new Error(`a download gave ${bytes} bytes of ${sizeMib * MIB}`);
  });
}

/** Throughput of `work`, in `MiB` a second. */
export async function rateOf(sizeMib: number, work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  await work();
  return sizeMib / ((performance.now() - startedAt) / 1000);
}

/** An upload that ends with a synced content. */
export function uploadNames(sizeMib: number) {
  return { name: `upload ${sizeMib} MiB`, from: "request sent", to: "201 read, content synced" };
}

/** Uploads of one content, which an appliance stores only once. */
export async function* uploadPart(target: BenchTarget): AsyncGenerator<Finding> {
  await using directory = await scratchDirectory("/tmp", "coppice-bench-");
  const uploads = new Uploads(target, join(directory.path, "source"), UPLOAD_MIB);
  const values = await interleaved(target.rounds(5, 3), { ours: () => uploads.measure("coppice bench") });
  const { name, from, to } = uploadNames(UPLOAD_MIB);
  yield remarkOf(name, figureOf(values.ours, "MiB/s"), `from ${from} to ${to}`);
  yield* uploads.memory("as the appliance was before");
}

/** Uploads of a file of zeros, and the memory of the daemon meanwhile. */
export class Uploads {
  readonly #target: BenchTarget;
  readonly #path: string;
  readonly #sizeMib: number;
  readonly #resident: number[] = [];

  /** @param path of the file, which each upload writes again */
  constructor(target: BenchTarget, path: string, sizeMib: number) {
    this.#target = target;
    this.#path = path;
    this.#sizeMib = sizeMib;
  }

  /** In `MiB` a second. @param head first bytes of the content; an appliance that has the same content stores nothing */
  async measure(head: string): Promise<number> {
    await Bun.write(this.#path, head);
    const zeros = ["dd", "if=/dev/zero", `of=${this.#path}`, "bs=1M", `count=${this.#sizeMib}`, "oflag=append"];
    await run({ argv: [...zeros, "conv=notrunc,fsync"], timeoutMs: TOOL_MS });
    const upload = () => watched(this.#target, this.#resident, () => this.#upload(Bun.file(this.#path)));
    return await rateOf(this.#sizeMib, upload);
  }

  /** Memory during the uploads so far, and during one in chunks. @param history earlier work of the daemon */
  async *memory(history: string): AsyncGenerator<Finding> {
    const chunked: number[] = [];
    const stream = Bun.file(this.#path).stream().pipeThrough(new TransformStream());
    await watched(this.#target, chunked, () => this.#upload(stream));
    if (this.#resident.length === 0 || chunked.length === 0) {
      return void (yield missing("daemon's memory while uploading", "the appliance does not show /metrics"));
    }
    const { from, to } = uploadNames(this.#sizeMib);
    const row = { from, to, unit: "MiB RSS", note: `the most that /metrics showed; ${history}` };
    const most = Math.max(...this.#resident);
    yield rowOf({ ...row, name: "daemon's memory while uploading", values: [most], atMost: 110 });
    yield rowOf({ ...row, name: "the same, chunked", values: [Math.max(...chunked)], atMost: 150 });
  }

  async #upload(body: Blob | ReadableStream<Uint8Array>): Promise<void> {
    const { client, options } = this.#target;
    await client.call("POST", "/files", { body, deadline: false, signal: options.signal });
  }
}

/** Does the work, and samples the daemon's memory meanwhile. */
export async function watched<T>(target: BenchTarget, resident: number[], work: () => Promise<T>): Promise<T> {
  await using _watch = watch(target, resident);
  return await work();
}

function watch(target: BenchTarget, resident: number[]): AsyncDisposable {
  let isDone = false;
  const look = async (): Promise<void> => {
    while (!isDone) {
      const mib = await target.residentMib();
      if (mib !== null) resident.push(mib);
      await Bun.sleep(RESIDENT_POLL_MS);
    }
  };
  const looking = look();
  // Told when it is waited for.
  looking.catch(() => undefined);
  return {
    [Symbol.asyncDispose]: async () => {
      isDone = true;
      await looking;
    },
  };
}
