import { test } from "bun:test";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { OperationId } from "../../../src/domain/ids.ts";
import { ruleText } from "../../../src/network/rules.ts";
import type { ServiceLimits } from "../../../src/service/parts.ts";
import { eventLogPath } from "../../../src/storage/events/event-file.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { DIE_WITH_PARENT } from "../../../src/system/exec.ts";
import { deadline, until } from "../waiting.ts";

const LISTEN_MS_MAX = 30_000;
const STOP_MS_MAX = 20_000;

/** The built program that the contract is held against; undefined: the sources, in this process. */
export const EXECUTABLE = process.env["COPPICE_TEST_EXECUTABLE"];

const none = Object.assign(() => undefined, { each: () => () => undefined }) as unknown as typeof test;

/**
 * A test that does the supervisor's work itself, or looks at what it was given: only where the interface runs in
 * this process. The program has a supervisor of its own.
 */
export const heldTest: typeof test = EXECUTABLE === undefined ? test : none;

/** A test of the process as a whole, which the sources do not have for themselves. */
export const programTest: typeof test = EXECUTABLE === undefined ? none : test;

export interface Program extends AsyncDisposable {
  readonly pid: number;
  readonly url: string;
}

/**
 * Starts the program on a data directory; no VM is ever used, and no registry is asked. It has swept the directory when
 * this returns: files that a test writes there look like those of a former process.
 */
export async function startProgram(dataDirectory: string, limits: ServiceLimits): Promise<Program> {
  const configFile = join(dataDirectory, "config.toml");
  const toml = [
    `data_dir = "${dataDirectory}"`,
    "[listen]",
    "port = 0",
    "[vm]",
    'emulation = "never"',
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
  // The sweep goes on after the program listens, and logs without an operation are what it removes last.
  const swept = eventLogPath(dataLayout(dataDirectory), Bun.randomUUIDv7() as OperationId);
  await writeFile(swept, "");
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
    await until("the program has swept its directory", async () => !(await Bun.file(swept).exists()));
    return { pid: child.pid, url, [Symbol.asyncDispose]: stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** Reads the log to its end, and tells the address when it comes by; returns what it was. */
async function readLog(stream: ReadableStream<Uint8Array>, listens: (url: string) => void): Promise<string> {
  let log = "";
  for await (const chunk of stream) {
    log = (log + Buffer.from(chunk).toString("utf8")).slice(-65_536);
    const url = /"url":"(http[^"]+)"/.exec(log)?.[1];
    if (url !== undefined) listens(url);
  }
  return log;
}
