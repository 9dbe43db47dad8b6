import { interleaved, rowOf } from "./figures.ts";
import { capture } from "./spawns.ts";
import type { BenchTarget, Findings } from "./target.ts";

const MIB = 1_048_576;
const LARGE_PATH = "/root/coppice-bench.large";
/** Always the same bytes, which an appliance keeps once however often they come. */
const UPLOAD_MIB = 256;
const UPLOAD_HEAD = "coppice bench";
const RESIDENT_POLL_MS = 50;

/** What an image costs that is large: a capture above it, and reading it. */
export async function largePart(target: BenchTarget, found: Findings): Promise<void> {
  const { client, image, options } = target;
  const sizeMib = options.quick ? 256 : 1024;
  const write = `dd if=/dev/zero of=${LARGE_PATH} bs=1048576 count=${sizeMib}`;
  const { image: large = "" } = await target.run(image, write, { timeout: 600 });
  await capture(target, large, sizeMib, found);
  await using files = await options.local.openLocalFiles();
  using peer = await options.local.startFilePeer(await files.make("plain", sizeMib, ""));
  const download = { query: { path: LARGE_PATH }, deadline: false, signal: options.signal };
  const values = await interleaved(target.rounds(9, 3), {
    ours: () => rateOfBody(sizeMib, () => client.call("GET", `/inspect/${large}/download`, download)),
    theirs: () => rateOfBody(sizeMib, () => fetch(peer.url)),
  });
  found.rows.push(
    rowOf({
      name: `download ${sizeMib} MiB from an image`,
      from: "request sent",
      to: "last byte read",
      values: values.ours,
      unit: "MiB/s",
      against: { name: "Bun.file of a bare Bun server on this machine", values: values.theirs },
      atLeast: 0.7,
    }),
  );
  await target.deleteMade();
}

/** In `MiB` a second. */
async function rateOfBody(sizeMib: number, request: () => Promise<Response>): Promise<number> {
  const startedAt = performance.now();
  const response = await request();
  let bytes = 0;
  for await (const chunk of response.body ?? []) bytes += chunk.byteLength;
  if (bytes !== sizeMib * MIB) throw new Error(`a download gave ${bytes} bytes of ${sizeMib * MIB}`);
  return sizeMib / ((performance.now() - startedAt) / 1000);
}

/** Uploads of one content, against hashing and writing it. */
export async function uploadPart(target: BenchTarget, { rows, missing }: Findings): Promise<void> {
  const { client, options } = target;
  await using files = await options.local.openLocalFiles();
  const source = await files.make("source", UPLOAD_MIB, UPLOAD_HEAD);
  const sizeMib = Bun.file(source).size / MIB;
  const resident: number[] = [];
  const upload = async (body: Blob | ReadableStream<Uint8Array>): Promise<void> => {
    await client.call("POST", "/files", { body, deadline: false, signal: options.signal });
  };
  const rate = async (work: () => Promise<void>): Promise<number> => {
    const startedAt = performance.now();
    await work();
    return sizeMib / ((performance.now() - startedAt) / 1000);
  };
  const values = await interleaved(target.rounds(7, 3), {
    ours: () => rate(() => watched(target, resident, () => upload(Bun.file(source)))),
    theirs: () => rate(() => files.hashAndCopy(source)),
  });
  const ends = { from: "request sent", to: "201 read, content synced" };
  const against = { name: "sha256sum of the file, then a plain synced write, on this machine", values: values.theirs };
  const name = `upload ${UPLOAD_MIB} MiB`;
  rows.push(rowOf({ ...ends, name, values: values.ours, unit: "MiB/s", against, atLeast: 0.8 }));
  const chunked: number[] = [];
  await watched(target, chunked, () => upload(Bun.file(source).stream().pipeThrough(new TransformStream())));
  if (resident.length === 0 || chunked.length === 0) {
    return void missing.push({ name: "daemon's memory while uploading", text: "the appliance does not show /metrics" });
  }
  const memory = { ...ends, unit: "MiB RSS", note: "the most that /metrics showed" };
  rows.push(
    rowOf({ ...memory, name: "daemon's memory while uploading", values: [Math.max(...resident)], atMost: 120 }),
    rowOf({ ...memory, name: "the same, chunked", values: [Math.max(...chunked)], atMost: 180 }),
  );
}

/** Does the work, and looks at the daemon's memory meanwhile. */
async function watched(target: BenchTarget, resident: number[], work: () => Promise<void>): Promise<void> {
  await using _watch = watch(target, resident);
  await work();
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
