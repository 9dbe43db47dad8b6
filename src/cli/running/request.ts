import { stat } from "node:fs/promises";
import type { Client } from "../../client/client.ts";
import { inputText } from "../../client/runs.ts";
import { uploadContent } from "../../client/transfers.ts";
import type { SpawnRequest } from "../../client/types.ts";
import type { Environment } from "../../config/config.ts";
import { given } from "../../domain/given.ts";
import { isTag } from "../../domain/image.ts";
import { STDIN_BYTES_MAX } from "../../domain/instance.ts";
import { OUTPUT_BYTES_MAX } from "../../domain/output.ts";
import { CliError, integerOption, type OptionValues, secondsOption, sizeOption, UsageError } from "../command.ts";
import type { Io } from "../io.ts";
import { showProgress } from "../wait.ts";
import { NETWORK_OPTIONS, networkField } from "./network.ts";

/** Options of every command that starts a process in a sandbox. */
export const PROCESS_OPTIONS = {
  env: {
    type: "string",
    multiple: true,
    value: "K=V",
    doc: "environment variable; K alone has the value of this environment",
  },
  cwd: { type: "string", value: "DIR", doc: "working directory (default: /root)" },
  uid: { type: "string", value: "NUMBER", doc: "user id of the process (default: 0)" },
  gid: { type: "string", value: "NUMBER", doc: "group id of the process (default: 0)" },
  timeout: { type: "string", value: "DURATION", doc: "time limit of the process: 60 (seconds), 90s, 30m, 2h, 7d" },
} as const;

/** Options of every command that starts an instance. */
export const INSTANCE_OPTIONS = {
  ...PROCESS_OPTIONS,
  file: {
    type: "string",
    multiple: true,
    value: "LOCAL:REMOTE",
    doc: "copy a local file to an absolute path of the sandbox",
  },
  hostname: { type: "string", value: "NAME", doc: "host name of the sandbox" },
  cpus: { type: "string", value: "NUMBER", doc: "virtual CPUs of the sandbox" },
  memory: { type: "string", value: "SIZE", doc: "memory of the sandbox, rounded up: 512M, 512MiB, 2G, or bytes" },
  disk: { type: "string", value: "SIZE", doc: "space that the sandbox can write to, rounded up" },
  "output-limit": {
    type: "string",
    value: "SIZE",
    doc: "size of standard output, and of standard error, that the result keeps (default and largest: 10M)",
  },
  disposable: { type: "boolean", doc: "discard the file system after the run" },
  tag: { type: "string", value: "NAME", doc: "tag the resulting image" },
  ...NETWORK_OPTIONS,
} as const;

/** Options of every command that passes the streams of a process on. */
export const STREAM_OPTIONS = {
  interactive: { type: "boolean", short: "i", doc: "pass standard input on, also from a terminal" },
  tty: { type: "boolean", short: "t", doc: "give the process a terminal" },
} as const;

/** The fields of the process options. @throws UsageError */
export function processFields(options: OptionValues<typeof PROCESS_OPTIONS>, environment: Environment) {
  return given({
    env: variablesOf(options.env, environment),
    cwd: options.cwd,
    uid: integerOption("uid", options.uid, 0),
    gid: integerOption("gid", options.gid, 0),
    timeout: secondsOption("timeout", options.timeout),
  });
}

type InstanceValues = OptionValues<typeof INSTANCE_OPTIONS>;

/** The fields of the instance options, without the files, which are uploaded first. @throws UsageError */
export function instanceFields(options: InstanceValues, environment: Environment) {
  if (options.disposable === true && options.tag !== undefined) {
    throw new UsageError("--disposable leaves no image for --tag");
  }
  // Checked now: files are sent before the request.
  if (options.tag !== undefined && !isTag(options.tag)) {
    throw new UsageError(`--tag ${options.tag} is not a tag name`);
  }
  return {
    ...processFields(options, environment),
    ...given({ hostname: options.hostname, tag: options.tag, resources: resourcesOf(options) }),
    ...networkField(options),
    disposable: options.disposable ?? false,
    truncate_output_at: sizeOption("output-limit", options["output-limit"], 0) ?? OUTPUT_BYTES_MAX,
  };
}

/** The resources of the options. @throws UsageError */
export function resourcesOf({
  cpus,
  memory,
  disk,
}: Pick<InstanceValues, "cpus" | "memory" | "disk">): SpawnRequest["resources"] {
  if (cpus === undefined && memory === undefined && disk === undefined) return undefined;
  return given({
    vcpus: integerOption("cpus", cpus, 1),
    memory_bytes: sizeOption("memory", memory, 1),
    disk_bytes: sizeOption("disk", disk, 1),
  });
}

/** The variables of --env. @throws UsageError */
export function variablesOf(
  entries: readonly string[] | undefined,
  environment: Environment,
): Record<string, string> | undefined {
  return entries && Object.fromEntries(entries.map((entry) => variable(entry, environment)));
}

function variable(entry: string, environment: Environment): [string, string] {
  const [, name, value] = /^([^=]+)(?:=([\s\S]*))?$/.exec(entry) ?? [];
  if (name === undefined) throw new UsageError(`--env ${entry} must be NAME=VALUE or NAME`);
  const text = value ?? environment[name];
  if (text === undefined) throw new UsageError(`--env ${name}: there is no such variable here`);
  return [name, text];
}

export interface Placement {
  readonly local: string;
  readonly remote: string;
}

/** The paths of --file. @throws UsageError */
export function placementsOf({ file = [] }: Pick<InstanceValues, "file">): Placement[] {
  return file.map(placement);
}

/** The remote path is absolute, so the last ":/" separates the paths, and the local path may contain colons. */
function placement(entry: string): Placement {
  const at = entry.lastIndexOf(":/");
  if (at < 1) throw new UsageError(`--file ${entry} must be LOCAL:/ABSOLUTE/PATH`);
  return { local: entry.slice(0, at), remote: entry.slice(at + 1) };
}

/** Sends the files, and returns the field of the request for them; nothing for no files. @throws CliError */
export async function filesField(
  placements: readonly Placement[],
  client: Client,
  io: Io,
): Promise<Pick<SpawnRequest, "files">> {
  const files: Record<string, { readonly uuid: string; readonly mode: string }> = {};
  for (const { local, remote } of placements) {
    const stats = await stat(local).catch((error: NodeJS.ErrnoException) => {
      throw new CliError(`cannot read ${local}: ${error.code}`);
    });
    if (!stats.isFile()) throw new CliError(`${local} is not a regular file`);
    using _progress = showProgress(io, `uploading ${local}`);
    files[remote] = {
      uuid: await uploadContent(client, Bun.file(local), { sha256: await hashOf(local) }),
      mode: (stats.mode & 0o777).toString(8).padStart(4, "0"),
    };
  }
  return placements.length === 0 ? {} : { files };
}

/** The content of a file or, for `-`, of standard input, as a request has it. @throws CliError */
export async function stdinOf(source: string, io: Io): Promise<string> {
  const chunks: Uint8Array[] = [];
  let total = 0;
  if (source !== "-" && !(await Bun.file(source).exists())) throw new CliError(`cannot read ${source}`);
  for await (const chunk of source === "-" ? io.stdin() : Bun.file(source).stream()) {
    total += chunk.byteLength;
    if (total > STDIN_BYTES_MAX) throw new CliError(`standard input is over ${STDIN_BYTES_MAX} bytes; use --file`);
    chunks.push(chunk);
  }
  return inputText(Buffer.concat(chunks));
}

/** Lower-case hexadecimal SHA-256 of a file, as fast as the machine computes it. */
async function hashOf(path: string): Promise<string> {
  const hash = new Bun.CryptoHasher("sha256");
  for await (const chunk of Bun.file(path).stream()) hash.update(chunk);
  return hash.digest("hex");
}
