import { Connection, check, type LoadTarget } from "../../src/cli/bench/load.ts";
import { interleaved, median, timed } from "../../src/cli/bench/measure.ts";
import { type Finding, type Row, rowOf } from "../../src/cli/bench/row.ts";
import type { BenchHost } from "./host.ts";
import { treeImage } from "./import.ts";
import { startPeer } from "./peers/peer.ts";

const FILES_COUNT = 2000;
const REQUESTS_COUNT = 100;

/** Looking into an image without a machine, over one connection, against a bare route that answers the same bytes. */
export async function* inspectRows(host: BenchHost): AsyncGenerator<Finding> {
  const image = await host.importImage("inspected", await treeImage(FILES_COUNT, -1));
  const file = "path=/data/1/file-1";
  yield await lookRow(host, {
    name: "list a directory of 50 in an image",
    path: `${image}/list?path=/data/1`,
    atMost: 3,
  });
  yield await lookRow(host, { name: "stat a path in an image", path: `${image}/?${file}`, method: "HEAD", atMost: 2 });
  const small = "download a file of 16 KiB from an image";
  yield await lookRow(host, { name: small, path: `${image}/download?${file}`, atMost: 2 });
}

interface Look {
  readonly name: string;
  /** below `/inspect` */
  readonly path: string;
  readonly method?: "HEAD";
  readonly atMost: number;
}

async function lookRow({ appliance, target }: BenchHost, { name, path, method, atMost }: Look): Promise<Row> {
  const load = { ...target.client.target(`/inspect/${path}`), ...(method === undefined ? {} : { method }) };
  const answer = await fetch(load.url, { headers: load.headers, ...(method === undefined ? {} : { method }) });
  if (answer.status !== 200) throw new Error(`${path} answered ${answer.status}`);
  const body = Buffer.from(await answer.arrayBuffer()).toString("base64");
  // The server sets these by itself.
  for (const own of ["content-length", "transfer-encoding", "date", "connection"]) answer.headers.delete(own);
  const headers = Object.fromEntries(answer.headers);
  await using peer = await startPeer({ kind: "bytes", dataDir: appliance.dataDir, body, headers });
  const bare = { ...load, url: new URL(new URL(load.url).pathname, peer.url).href };
  const round = {
    ours: () => medianOf(load),
    theirs: () => medianOf(bare),
  };
  // The code of both is warm after the first round.
  await interleaved(1, round);
  const values = await interleaved(target.rounds(15, 5), round);
  const against = { name: "bare Bun route, same bytes, same tokens", values: values.theirs };
  const ends = { from: "request sent over a connection that is open", to: "answer read", unit: "ms" };
  return rowOf({ ...ends, name, values: values.ours, against, atMost });
}

/** Median of requests one after the other over one connection, in `milliseconds`. */
async function medianOf(load: LoadTarget): Promise<number> {
  const connection = await Connection.open(load);
  const values: number[] = [];
  for (let n = 0; n < REQUESTS_COUNT; n++) values.push(await timed(async () => check(await connection.get())));
  connection.close();
  return median(values);
}
