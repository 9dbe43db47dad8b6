import { loadavg } from "node:os";
import { parseArgs } from "node:util";
import type { Row } from "../../src/cli/bench-figures.ts";
import { type Remark, reportText } from "../../src/cli/bench-report.ts";
import { captureRows } from "./capture.ts";
import { chainRows } from "./chain.ts";
import { densityRemarks, phaseRemark } from "./density.ts";
import { BenchHost } from "./host.ts";
import { idleRows } from "./idle.ts";
import { importRows } from "./import.ts";
import { inspectRows } from "./inspect.ts";
import { rateRows } from "./rates.ts";
import { scaleRows } from "./scale.ts";
import { spawnRows } from "./spawn.ts";
import { transferRows } from "./transfer.ts";

const { values: options } = parseArgs({
  options: {
    json: { type: "boolean", default: false },
    quick: { type: "boolean", default: false },
    only: { type: "string" },
  },
});

interface Measured {
  readonly rows?: readonly Row[];
  readonly remarks?: readonly Remark[];
}

/** In this order: what wants an empty store comes first, what fills it last. */
const PARTS: Readonly<Record<string, (host: BenchHost) => Promise<Measured>>> = {
  idle: async (host) => ({ rows: await idleRows(host) }),
  spawn: async (host) => ({ rows: await spawnRows(host), remarks: [await phaseRemark(host, host.base)] }),
  rates: async (host) => ({ rows: await rateRows(host) }),
  inspect: async (host) => ({ rows: await inspectRows(host) }),
  capture: async (host) => ({ rows: await captureRows(host) }),
  import: async (host) => ({ rows: await importRows(host) }),
  transfer: async (host) => ({ rows: await transferRows(host) }),
  density: async (host) => ({ remarks: await densityRemarks(host) }),
  chain: async (host) => ({ rows: await chainRows(host) }),
  scale: async (host) => ({ rows: await scaleRows(host) }),
};

const wanted = options.only?.split(",") ?? Object.keys(PARTS);
const unknown = wanted.filter((name) => PARTS[name] === undefined);
if (unknown.length > 0)
  throw new Error(`no such part: ${unknown.join(", ")}; there are ${Object.keys(PARTS).join(", ")}`);

const loads: Record<string, number> = {};
const rows: Row[] = [];
const remarks: Remark[] = [];
await using host = await BenchHost.start(options.quick);
for (const [name, measure] of Object.entries(PARTS)) {
  if (!wanted.includes(name)) continue;
  const startedAt = performance.now();
  const measured = await measure(host);
  rows.push(...(measured.rows ?? []));
  remarks.push(...(measured.remarks ?? []));
  loads[name] = loadavg()[0] ?? 0;
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(0);
  process.stderr.write(`measured ${name} in ${seconds} s, load ${loads[name]?.toFixed(1)}\n`);
}
process.stdout.write(
  options.json ? `${JSON.stringify({ rows, remarks, loads }, null, 2)}\n` : reportText(rows, remarks),
);
