import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { listenForOperator, type OperatorCommands } from "../../../src/api/operator/control.ts";
import { prepareRestart } from "../../../src/cli/install/upgrade.ts";
import { looksOf } from "../../../src/cli/io.ts";
import { openDatabase } from "../../../src/db/database.ts";
import type { AccountId, OperationId } from "../../../src/domain/ids.ts";
import type { OperationKind } from "../../../src/domain/operation.ts";
import type { RunningOperation, RunningWork } from "../../../src/domain/operator/restart.ts";
import { silentLog } from "../../../src/log.ts";
import { type DataLayout, dataLayout } from "../../../src/storage/layout.ts";
import { hostBootId } from "../../../src/supervisor/survivors/instance-record.ts";
import { writeRecordFile } from "../../../src/supervisor/survivors/record-file.ts";
import { type ScratchDirectory, scratchDirectory } from "../../../src/system/scratch.ts";
import { PROTOCOL_VERSION } from "../../../src/vm/agent/protocol.ts";
import { operatorCommands } from "../../support/api/operator-commands.ts";
import { throwing } from "../../support/failures.ts";
import { until } from "../../support/waiting.ts";

let directory: ScratchDirectory;
let layout: DataLayout;
let said: string;
beforeEach(async () => {
  directory = await scratchDirectory(tmpdir(), "coppice-upgrade-");
  layout = dataLayout(directory.path);
  await layout.ensure();
  openDatabase(layout.database)[Symbol.dispose]();
  said = "";
});
afterEach(async () => await directory[Symbol.asyncDispose]());

const io = {
  stderr(text: Uint8Array | string) {
    said += text.toString();
  },
  stderrLooks: looksOf(false, {}),
  onSignal: () => ({ [Symbol.dispose]: () => undefined }),
} as unknown as Parameters<typeof prepareRestart>[1];
const prepare = (drain: Parameters<typeof prepareRestart>[2] = null) =>
  prepareRestart({ dataDir: directory.path }, io, drain);

const operation = (kind: OperationKind, sandbox: string | null = null): RunningOperation => ({
  ...{ id: Bun.randomUUIDv7() as OperationId, accountId: "me" as AccountId },
  kind,
  sandbox,
});
/** A daemon that runs `operations`, which a test may end, and the number of present holds. */
function daemon(operations: RunningOperation[], given: Partial<RunningWork> = {}) {
  const state = { holds: 0 };
  const commands: Partial<OperatorCommands> = {
    running: async () => ({ version: "0.9.0", pid: process.pid, leavesInstances: true, operations, ...given }),
    hold: async () => {
      state.holds += 1;
      return {
        [Symbol.dispose]: () => {
          state.holds -= 1;
        },
      };
    },
  };
  return { state, listening: listenForOperator(layout.control, operatorCommands(commands), silentLog) };
}

/** Writes the record of an operation's machine, of which this version can read no more than its head. */
async function record({ id }: RunningOperation, head: Readonly<Record<string, unknown>>): Promise<void> {
  const home = join(layout.vms, Bun.randomUUIDv7());
  await mkdir(home);
  writeRecordFile(join(home, "machine.json"), JSON.stringify({ operationId: id, bootId: hostBootId(), ...head }));
}

describe("before the restart of an upgrade", () => {
  test("every operation that it ends is printed with the reason", async () => {
    const old = operation("sandbox", "dev");
    const newer = operation("instance");
    const imported = operation("image_import");
    await record(old, { format: 1, protocol: PROTOCOL_VERSION - 2 });
    await record(newer, { format: 99, protocol: PROTOCOL_VERSION });
    await using _daemon = await daemon([old, newer, imported]).listening;
    using _prepared = await prepare();
    expect(said.split("\n")).toEqual([
      "the restart ends 3 operations:",
      `  sandbox dev of me: its agent speaks protocol version ${PROTOCOL_VERSION - 2}, and this service ${PROTOCOL_VERSION}`,
      `  run ${newer.id} of me: the record of its machine has another format`,
      `  import ${imported.id} of me: an import cannot continue without the daemon`,
      "",
    ]);
  });

  test("a long list is cut, and instances of a daemon that leaves none all end", async () => {
    const operations = Array.from({ length: 60 }, () => operation("instance"));
    await using _daemon = await daemon(operations, { leavesInstances: false }).listening;
    using _prepared = await prepare();
    expect(said).toContain("the restart ends 60 operations:\n");
    expect(said).toContain(": the running daemon ends its instances when it stops\n");
    expect(said).toEndWith("\n  and 10 more\n");
  });

  test("nothing is printed when nothing runs, and when no daemon does", async () => {
    using _without = await prepare({ timeoutMs: null });
    await using _daemon = await daemon([]).listening;
    using _idle = await prepare({ timeoutMs: null });
    expect(said).toBe("");
  });
});

describe("a drain", () => {
  test("holds new work until what would end has ended, and on until the restart", async () => {
    const operations = [operation("image_import")];
    const { state, listening } = daemon(operations);
    await using _daemon = await listening;
    const prepared = prepare({ timeoutMs: null });
    await until("it waits", () => state.holds === 1 && said !== "");
    operations.length = 0;
    const held = await prepared;
    expect(state.holds).toBe(1);
    held[Symbol.dispose]();
    await until("work may begin", () => state.holds === 0);
  });

  test("that takes too long is given up, and work begins again", async () => {
    const { state, listening } = daemon([operation("checkpoint")]);
    await using _daemon = await listening;
    expect(await throwing(prepare({ timeoutMs: 1 }))).toThrow("1 operation did not end in time: nothing is installed");
    await until("work may begin", () => state.holds === 0);
  });
});

test("a daemon of a version that cannot be asked ends its instances, and cannot be drained", async () => {
  using _daemon = Bun.serve({ unix: layout.control, fetch: () => new Response(null, { status: 404 }) });
  using _prepared = await prepare();
  expect(said).toContain("of an older version: its instances end when it stops");
  expect(await throwing(prepare({ timeoutMs: null }))).toThrow("cannot tell when none is left");
});
