import { interleaved, timed } from "../../src/cli/bench/measure.ts";
import { type Finding, type Row, rowOf } from "../../src/cli/bench/row.ts";
import { dataLayout } from "../../src/storage/layout.ts";
import { fillStore } from "./fill.ts";
import type { BenchHost } from "./host.ts";

const REQUESTS_COUNT = 20;
const SMALL_COUNT = 1000;
const PAGE_COUNT = 100;
const ENDS = { from: "request sent", to: "answer read", unit: "ms", atMost: 1.2 };

/** The same looks into a small and into a large account of one store, and the start of the daemon on it. */
export async function* scaleRows(host: BenchHost): AsyncGenerator<Finding> {
  const { appliance } = host;
  const operations = host.quick ? 200_000 : 1_000_000;
  const images = host.quick ? 20_000 : 100_000;
  const [small, large] = [await appliance.createToken("small"), await appliance.createToken("large")];
  const before: number[] = [];
  for (let round = 0; round < host.target.rounds(7, 3); round++) before.push(await host.restart());
  await appliance.down();
  fillStore(dataLayout(appliance.dataDir), [
    { account: "small", operations: SMALL_COUNT, images: SMALL_COUNT },
    { account: "large", operations, images },
  ]);
  await appliance.up();
  const after: number[] = [];
  for (let round = 0; round < host.target.rounds(7, 3); round++) after.push(await host.restart());
  const store = `${operations} operations and ${images} images`;
  yield rowOf({
    name: `start of the daemon on ${store}`,
    from: "program started",
    to: "address told, socket listening",
    values: after,
    unit: "ms",
    against: { name: "on next to none", values: before },
    atMost: 2,
  });
  // A daemon that has just started boots a template, and its code is not warm yet.
  await host.target.poolFull();
  const looks: Looks = { host, rounds: host.target.rounds(15, 5), tokens: { large, small } };
  for (const [what, query] of OPERATION_LOOKS) {
    yield await lookRow(looks, `list 100 of ${operations} operations, ${what}`, `/operations?limit=100${query}`);
  }
  for (const [what, query] of IMAGE_LOOKS) {
    yield await lookRow(looks, `list 100 of ${images} images, ${what}`, `/images?limit=100${query}`);
  }
  yield await farRow(host, operations, large);
}

/** Every filter of the operations, which all but the first find as many as a page has in either account. */
const OPERATION_LOOKS: readonly (readonly [string, string])[] = [
  ["plain", ""],
  ["status", "&status=FAILED"],
  ["kind", "&kind=instance"],
  ["since", "&since=365d"],
  ["until", "&until=1s"],
  ["status and kind", "&status=FAILED&kind=instance"],
  ["about", "&about=true"],
  ["deep", "&offset=900"],
];

/** Every filter of the images. */
const IMAGE_LOOKS: readonly (readonly [string, string])[] = [
  ["plain", ""],
  ["tagged", "&tagged=true"],
  ["untagged", "&tagged=false"],
  ["by a prefix that half of them have", "&tag=tag-"],
  ["since", "&since=365d"],
  ["until", "&until=1s"],
];

interface Looks {
  readonly host: BenchHost;
  readonly rounds: number;
  readonly tokens: { readonly large: string; readonly small: string };
}

async function lookRow({ host, rounds, tokens }: Looks, name: string, path: string): Promise<Row> {
  // An empty page says nothing about a full one.
  for (const token of [tokens.large, tokens.small]) {
    const items = JSON.parse(await read(host, path, token)) as unknown[];
    if (items.length !== PAGE_COUNT) throw new Error(`${path} answered ${items.length} items`);
  }
  const page = (token: string) => async () => {
    const times: number[] = [];
    for (let n = 0; n < REQUESTS_COUNT; n++) times.push(await timed(() => read(host, path, token)));
    return times.sort((a, b) => a - b)[REQUESTS_COUNT / 2] ?? 0;
  };
  const subjects = { large: page(tokens.large), small: page(tokens.small) };
  await interleaved(1, subjects);
  const values = await interleaved(rounds, subjects);
  const against = { name: `the same of ${SMALL_COUNT}`, values: values.small };
  return rowOf({ ...ENDS, name, values: values.large, against });
}

/** A slow request of one client must not delay those of the others. */
async function farRow(host: BenchHost, operations: number, token: string): Promise<Row> {
  const path = `/operations?limit=100&offset=${operations - 200}`;
  const look = () => timed(() => read(host, "/operations?limit=1", token));
  await read(host, path, token);
  const meanwhile: number[] = [];
  const pages: number[] = [];
  for (let round = 0; round < host.target.rounds(15, 5); round++) {
    let reading = true;
    const page = timed(() => read(host, path, token)).then((durationMs) => {
      reading = false;
      pages.push(durationMs);
    });
    while (reading) meanwhile.push(await look());
    await page;
  }
  return rowOf({
    name: `a look-up while another client reads page ${operations - 200} of ${operations}`,
    from: "request sent",
    to: "answer read",
    values: meanwhile,
    unit: "ms",
    atMost: 5,
    note: `the page itself takes ${Math.min(...pages).toFixed(0)}-${Math.max(...pages).toFixed(0)} ms`,
  });
}

async function read(host: BenchHost, path: string, token: string): Promise<string> {
  const response = await host.appliance.fetch(path, { token });
  if (response.status !== 200) throw new Error(`${path} answered ${response.status}`);
  return await response.text();
}
