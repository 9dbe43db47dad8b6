import { interleaved } from "./measure.ts";
import { type Finding, missing, type Row, rowOf } from "./row.ts";
import { captureRow } from "./spawns.ts";
import type { BenchTarget } from "./target.ts";

const MIB = 1_048_576;
const LARGE_PATH = "/root/coppice-bench.large";
const RESIDENT_POLL_MS = 50;

/** What an image costs that is large: a capture above it, and reading it. */
export async function* largePart(target: BenchTarget): AsyncGenerator<Finding> {
  const large = await makeLarge(target);
  const small = { name: "the image itself", image: target.image };
  yield await captureRow(target, { name: `capture above ${large.sizeMib} MiB more`, large: large.image, small });
  yield await downloadRow(target, large);
  await target.deleteMade();
}

/** An image with a large file at `LARGE_PATH`. */
export interface LargeImage {
  readonly image: string;
  readonly sizeMib: number;
}

/** Makes an image that has a large file more than the image of the target. */
export async function makeLarge(target: BenchTarget): Promise<LargeImage> {
  const sizeMib = target.options.quick ? 256 : 1024;
  const write = `dd if=/dev/zero of=${LARGE_PATH} bs=1048576 count=${sizeMib}`;
  const { image = "" } = await target.run(target.image, write, { timeout: 600 });
  return { image, sizeMib };
}

/** A download of the large file, against a plain server. */
export async function downloadRow(target: BenchTarget, { image, sizeMib }: LargeImage): Promise<Row> {
  const { client, options } = target;
  await using files = await options.local.openLocalFiles();
  using peer = await options.local.startFilePeer(await files.make("plain", sizeMib, ""));
  const download = { query: { path: LARGE_PATH }, deadline: false, signal: options.signal };
  const values = await interleaved(target.rounds(9, 3), {
    ours: () => rateOfBody(sizeMib, () => client.call("GET", `/inspect/${image}/download`, download)),
    theirs: () => rateOfBody(sizeMib, () => fetch(peer.url)),
  });
  return rowOf({
    name: `download ${sizeMib} MiB from an image`,
    from: "request sent",
    to: "last byte read",
    values: values.ours,
    unit: "MiB/s",
    against: { name: "Bun.file of a bare Bun server on this machine", values: values.theirs },
    atLeast: 0.9,
  });
}

/** In `MiB` a second. */
async function rateOfBody(sizeMib: number, request: () => Promise<Response>): Promise<number> {
  return await rateOf(sizeMib, async () => {
    const response = await request();
    let bytes = 0;
    for await (const chunk of response.body ?? []) bytes += chunk.byteLength;
    if (bytes !== sizeMib * MIB) throw new Error(`a download gave ${bytes} bytes of ${sizeMib * MIB}`);
  });
}

/** What `work` moves, in `MiB` a second. */
async function rateOf(sizeMib: number, work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  await work();
  return sizeMib / ((performance.now() - startedAt) / 1000);
}

export interface UploadOptions {
  readonly sizeMib: number;
  /** the first bytes of each round's content; a content that the appliance has already is stored only once */
  readonly head: () => string;
}

/** Uploads of a file, against hashing and writing it. */
export async function* uploadPart(target: BenchTarget, { sizeMib, head }: UploadOptions): AsyncGenerator<Finding> {
  const { client, options } = target;
  await using files = await options.local.openLocalFiles();
  let source = "";
  let bodyMib = 0;
  const resident: number[] = [];
  const upload = async (body: Blob | ReadableStream<Uint8Array>): Promise<void> => {
    await client.call("POST", "/files", { body, deadline: false, signal: options.signal });
  };
  const values = await interleaved(target.rounds(5, 3), {
    ours: async () => {
      source = await files.make("source", sizeMib, head());
      bodyMib = Bun.file(source).size / MIB;
      return await rateOf(bodyMib, () => watched(target, resident, () => upload(Bun.file(source))));
    },
    theirs: () => rateOf(bodyMib, () => files.hashAndCopy(source)),
  });
  const ends = { from: "request sent", to: "201 read, content synced" };
  const against = { name: "sha256sum of the file, then a plain synced write, on this machine", values: values.theirs };
  const name = `upload ${sizeMib} MiB`;
  yield rowOf({ ...ends, name, values: values.ours, unit: "MiB/s", against, atLeast: 1 });
  const chunked: number[] = [];
  await watched(target, chunked, () => upload(Bun.file(source).stream().pipeThrough(new TransformStream())));
  if (resident.length === 0 || chunked.length === 0) {
    return void (yield missing("daemon's memory while uploading", "the appliance does not show /metrics"));
  }
  const memory = { ...ends, unit: "MiB RSS", note: "the most that /metrics showed" };
  const most = Math.max(...resident);
  yield rowOf({ ...memory, name: "daemon's memory while uploading", values: [most], atMost: 110 });
  yield rowOf({ ...memory, name: "the same, chunked", values: [Math.max(...chunked)], atMost: 150 });
}

/** Does the work, and looks at the daemon's memory meanwhile. */
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
