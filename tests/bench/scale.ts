import { join } from "node:path";
import Libsql from "libsql";
import { interleaved, type Row, rowOf, timed } from "../../src/cli/bench-figures.ts";
import type { BenchHost } from "./host.ts";

const BATCH_COUNT = 10_000;
const PAGE = "/operations?limit=100";
const REQUESTS_COUNT = 20;

/** The same page of operations in a small and in a large account of one store. */
export async function scaleRows(host: BenchHost): Promise<Row[]> {
  const { appliance } = host;
  const count = host.quick ? 200_000 : 1_000_000;
  const [small, large] = [await appliance.createToken("small"), await appliance.createToken("large")];
  await appliance.down();
  fill(join(appliance.dataDir, "coppice.db"), { small: 1000, large: count });
  const startMs = await timed(() => appliance.up());
  const pages = { plain: PAGE, status: `${PAGE}&status=FAILED`, deep: `${PAGE}&offset=900` };
  const rows: Row[] = [];
  for (const [name, path] of Object.entries(pages)) {
    const page = (token: string) => async () => {
      const times: number[] = [];
      for (let n = 0; n < REQUESTS_COUNT; n++) times.push(await timed(() => read(host, path, token)));
      return times.sort((a, b) => a - b)[REQUESTS_COUNT / 2] ?? 0;
    };
    const values = await interleaved(host.rounds(15, 5), { large: page(large), small: page(small) });
    rows.push(
      rowOf({
        name: `list 100 of ${count} operations, ${name}`,
        from: "request sent",
        to: "answer read",
        values: values.large,
        unit: "ms",
        against: { name: "the same of 1000", values: values.small },
        atMost: 2,
        ...(name === "plain" ? { note: `start of the daemon on this store ${startMs.toFixed(0)} ms` } : {}),
      }),
    );
  }
  return rows;
}

async function read(host: BenchHost, path: string, token: string): Promise<void> {
  const response = await host.appliance.fetch(path, { token });
  if (response.status !== 200) throw new Error(`${path} answered ${response.status}`);
  await response.arrayBuffer();
}

/** Ended operations as the daemon writes them, an eighth of them failed. */
function fill(path: string, accounts: Readonly<Record<string, number>>): void {
  const db = new Libsql(path);
  const account = db.prepare("INSERT OR IGNORE INTO accounts (id, created_at) VALUES (?, ?)");
  const insert = db.prepare(
    `INSERT INTO operations (id, account_id, kind, status, created_at, started_at, finished_at, result, error)
     VALUES (?, ?, 'instance', ?, ?, ?, ?, ?, ?)`,
  );
  const result = JSON.stringify({ exit_code: 0, stdout: { truncated: false }, stderr: { truncated: false } });
  const error = JSON.stringify({ error: "unavailable", message: "made up", details: {} });
  for (const [name, count] of Object.entries(accounts)) {
    const first = Date.now() - count * 1000;
    account.run(name, first);
    for (let start = 0; start < count; start += BATCH_COUNT) {
      db.transaction(() => {
        for (let n = start; n < Math.min(count, start + BATCH_COUNT); n++) {
          const at = first + n * 1000;
          const failed = n % 8 === 0;
          const end = failed ? ["FAILED", at, at, at + 200, null, error] : ["SUCCESS", at, at, at + 200, result, null];
          insert.run(Bun.randomUUIDv7("hex", at), name, ...end);
        }
      })();
    }
  }
  db.close();
}
