import { test } from "bun:test";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { eq } from "drizzle-orm";
import type { Database } from "../../../src/db/database.ts";
import { layers } from "../../../src/db/schema.ts";
import type { LayerId, OperationId } from "../../../src/domain/ids.ts";
import { ruleText } from "../../../src/network/rules.ts";
import type { ServiceLimits } from "../../../src/service/parts.ts";
import { eventLogPath } from "../../../src/storage/events/event-file.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { DIE_WITH_PARENT } from "../../../src/system/exec.ts";
import { deadline, until } from "../waiting.ts";

const LISTEN_MS_MAX = 30_000;
const STOP_MS_MAX = 20_000;

/** The built program that the contract is checked against; undefined for the sources, in this process. */
export const EXECUTABLE = process.env["COPPICE_TEST_EXECUTABLE"];

const none = Object.assign(() => undefined, { each: () => () => undefined }) as unknown as typeof test;

/**
 * A test that does the supervisor's work itself, or reads the requests that the supervisor gets: only where the interface
 * runs in this process. The program has its own supervisor.
 */
export const heldTest: typeof test = EXECUTABLE === undefined ? test : none;

/** A test of the process as a whole, which the sources alone cannot pass. */
export const programTest: typeof test = EXECUTABLE === undefined ? none : test;

export interface Program extends AsyncDisposable {
  readonly pid: number;
  readonly url: string;
}

/**
 * Starts the program on a data directory, whose database is `db`; it starts no VM, and contacts no registry. The program's
 * initial work is done when this returns: that work would remove files that a test writes as if a former process had left
 * them, and objects that have expired, and it holds layers.
 */
export async function startProgram(dataDirectory: string, db: Database, limits: ServiceLimits): Promise<Program> {
  const configFile = join(dataDirectory, "config.toml");
  const toml = [
    `data_dir = "${dataDirectory}"`,
    "[listen]",
    "port = 0",
    "[vm]",
    'emulation = "never"',
    // Instances wait for a VM as long as a test lasts.
    'probe_give_up = "24h"',
    `vcpus_default = ${limits.vcpusDefault}`,
    `vcpus_max = ${limits.vcpusMax}`,
    `memory_bytes_default = ${limits.memoryBytesDefault}`,
    `memory_bytes_max = ${limits.memoryBytesMax}`,
    `disk_bytes_default = ${limits.diskBytesDefault}`,
    `disk_bytes_max = ${limits.diskBytesMax}`,
    "[limits]",
    `instance_timeout_max = ${limits.instanceTimeoutSecondsMax}`,
    `file_bytes_max = ${limits.fileBytesMax}`,
    `disk_reserve_bytes = ${limits.diskReserveBytes}`,
    "[network]",
    `allow = ${JSON.stringify(limits.network.allow.map(ruleText))}`,
    `record = ${limits.network.record}`,
    '[registries.hosts."registry.example.net"]',
    "allow = false",
    '[registries.hosts."registry.example.net:5000"]',
    "allow = false",
  ];
  await writeFile(configFile, toml.join("\n"));
  const unreferenced = addUnreferencedLayer(db);
  const unreferencedLog = eventLogPath(dataLayout(dataDirectory), Bun.randomUUIDv7() as OperationId);
  await writeFile(unreferencedLog, "");
  const argv = [...DIE_WITH_PARENT, resolve(EXECUTABLE ?? ""), "serve", "--config", configFile, "--log-format", "json"];
  const child = Bun.spawn(argv, {
    cwd: dataDirectory,
    env: { PATH: process.env["PATH"] ?? "", HOME: dataDirectory, TMPDIR: tmpdir() },
    stdin: "ignore",
    stdout: "inherit",
    stderr: "pipe",
  });
  const stop = async (): Promise<void> => {
    child.kill("SIGTERM");
    using _late = deadline(STOP_MS_MAX, () => child.kill("SIGKILL"));
    await child.exited;
  };
  const { promise: listening, resolve: listens, reject } = Promise.withResolvers<string>();
  using _late = deadline(LISTEN_MS_MAX, () => reject(new Error("the program does not listen")));
  void readLog(child.stderr, listens).then((log) => reject(new Error(`the program ended:\n${log.slice(-4000)}`)));
  try {
    const url = await listening;
    // These continue after the program listens. The sweep of the directory reaches event logs last, and the removal of expired
    // objects reaches layers without an image last.
    await until("the directory is swept", async () => !(await Bun.file(unreferencedLog).exists()));
    await until("expired objects are removed", () => !hasLayer(db, unreferenced));
    return { pid: child.pid, url, [Symbol.asyncDispose]: stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

function addUnreferencedLayer(db: Database): LayerId {
  const id = Bun.randomUUIDv7() as LayerId;
  const nothing = { format: "ext4", sizeBytes: 0, diskBytes: 0, entryCount: 0, createdAt: 0 } as const;
  db.orm
    .insert(layers)
    .values({ id, ...nothing })
    .run();
  return id;
}

function hasLayer(db: Database, id: LayerId): boolean {
  return db.orm.select({ id: layers.id }).from(layers).where(eq(layers.id, id)).get() !== undefined;
}

/** Reads the log to its end, and reports the address when it appears; returns the log. */
async function readLog(stream: ReadableStream<Uint8Array>, listens: (url: string) => void): Promise<string> {
  let log = "";
  for await (const chunk of stream) {
    log = (log + Buffer.from(chunk).toString("utf8")).slice(-65_536);
    const url = /"url":"(http[^"]+)"/.exec(log)?.[1];
    if (url !== undefined) listens(url);
  }
  return log;
}
