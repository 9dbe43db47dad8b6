import { join } from "node:path";
import { interleaved } from "../../src/cli/bench/measure.ts";
import { type Finding, rowOf } from "../../src/cli/bench/row.ts";
import {
  downloadNames,
  downloadRate,
  makeLarge,
  rateOf,
  rateOfBody,
  Uploads,
  uploadNames,
} from "../../src/cli/bench/transfers.ts";
import { run } from "../../src/system/exec.ts";
import { scratchDirectory } from "../../src/system/scratch.ts";
import type { BenchHost } from "./host.ts";
import { startPeer } from "./peers/peer.ts";

const TOOL_MS = 600_000;

/** A download of a large file, against a plain server of such a file. */
export async function* downloadRows({ target }: BenchHost): AsyncGenerator<Finding> {
  const large = await makeLarge(target);
  const { sizeMib } = large;
  await using directory = await scratchDirectory("/tmp", "coppice-bench-");
  const path = join(directory.path, "plain");
  await tool(["dd", "if=/dev/zero", `of=${path}`, "bs=1M", `count=${sizeMib}`, "conv=fsync"]);
  await using peer = await startPeer({ kind: "file", path });
  const values = await interleaved(target.rounds(9, 3), {
    ours: () => downloadRate(target, large),
    theirs: () => rateOfBody(sizeMib, () => fetch(peer.url)),
  });
  const against = { name: "Bun.file of a bare Bun server", values: values.theirs };
  yield rowOf({ ...downloadNames(large), values: values.ours, unit: "MiB/s", against, atLeast: 0.95 });
  await target.deleteMade();
}

/** Uploads of a file to a fresh daemon, against hashing and writing it. Every content is a new one. */
export async function* uploadRows(host: BenchHost): AsyncGenerator<Finding> {
  await host.restartFresh();
  const { target } = host;
  const sizeMib = host.quick ? 512 : 2048;
  await using directory = await scratchDirectory("/tmp", "coppice-bench-");
  const source = join(directory.path, "source");
  const uploads = new Uploads(target, source, sizeMib);
  const values = await interleaved(target.rounds(5, 3), {
    ours: () => uploads.measure(crypto.randomUUID()),
    theirs: () =>
      rateOf(sizeMib, async () => {
        await tool(["sha256sum", source]);
        await tool(["dd", `if=${source}`, `of=${source}.copy`, "bs=1M", "conv=fsync"]);
      }),
  });
  const against = { name: "sha256sum of the file, then a plain synced write", values: values.theirs };
  yield rowOf({ ...uploadNames(sizeMib), values: values.ours, unit: "MiB/s", against, atLeast: 1.1 });
  yield* uploads.memory(host.history);
}

async function tool(argv: readonly string[]): Promise<void> {
  await run({ argv, timeoutMs: TOOL_MS });
}
