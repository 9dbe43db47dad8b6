import { interleaved, median, timed } from "../../../src/cli/bench/measure.ts";
import { type Finding, rowOf } from "../../../src/cli/bench/row.ts";
import { connectingPart, idlePart } from "../../../src/cli/bench/spawns.ts";
import { run } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { executableUnderTest } from "../../support/executable.ts";
import type { BenchHost } from "../host.ts";
import { buildBareProgram } from "../peers/bare-program.ts";
import { startServer } from "../peers/peer.ts";

const VERSION_MS_MAX = 60_000;

/** The daemon that has nothing to do, and how soon it is there. */
export async function* idleRows(host: BenchHost): AsyncGenerator<Finding> {
  await host.target.run(host.base, "true", { disposable: true });
  await host.target.poolFull();
  // The import of the image needed it, and a fresh daemon does not have it yet.
  yield* connectingPart(host.target);
  await host.restartFresh();
  yield* idlePart(host.target, host.history);
  await using directory = await scratchDirectory("/tmp", "coppice-bare-");
  const executable = executableUnderTest();
  const program = await buildBareProgram(directory.path, executable);
  const bare = async (): Promise<number> => {
    const startedAt = performance.now();
    await using _server = await startServer([program]);
    return performance.now() - startedAt;
  };
  const values = await interleaved(host.target.rounds(15, 5), {
    ours: async () => {
      const durationMs = await host.restart();
      // The others are measured while the machine rests.
      await host.target.poolFull();
      return durationMs;
    },
    version: () => timed(() => run({ argv: [executable, "version"], timeoutMs: VERSION_MS_MAX })),
    bare,
  });
  const both = values.version.map((versionMs, round) => versionMs + (values.bare[round] ?? Number.NaN));
  const [versionMs, bareMs] = [values.version, values.bare].map((each) => median(each).toFixed(0));
  yield rowOf({
    ...{ name: "start of the daemon on a data directory that it knows" },
    ...{ from: "program started", to: "address told, socket listening", unit: "ms", values: values.ours },
    // The one loads the same program, the other has the same socket.
    against: { name: "`coppice version`, and then a bare Bun server in an executable of the same size", values: both },
    ...{ atMost: 2, note: `the version takes ${versionMs} ms of that, the bare server ${bareMs} ms` },
  });
}
