import { isAscii } from "node:buffer";
import { stat } from "node:fs/promises";
import { answerOf, type Client } from "../client/client.ts";
import { given } from "../client/given.ts";
import { uploadFile } from "../client/transfers.ts";
import type { InstanceResult, Operation, OutputObject, SpawnRequest } from "../client/types.ts";
import type { Environment } from "../config/config.ts";
import { isTag } from "../domain/image.ts";
import { STDIN_BASE64_PREFIX, STDIN_BYTES_MAX } from "../domain/instance.ts";
import { OUTPUT_BYTES_MAX } from "../domain/output.ts";
import { CLIENT_OPTIONS, exitCodeOf, openClient } from "./client.ts";
import {
  CliError,
  command,
  EXIT_FAILED,
  EXIT_INTERRUPTED,
  EXIT_NOT_RUN,
  integerOption,
  type OptionValues,
  UsageError,
} from "./command.ts";
import type { Io } from "./io.ts";
import { showProgress, waitForOperation } from "./wait.ts";

const OPTIONS = {
  image: { type: "string", value: "IMAGE", doc: "image UUID, or tag:NAME" },
  env: {
    type: "string",
    multiple: true,
    value: "K=V",
    doc: "environment variable; K alone takes the value of this environment",
  },
  file: {
    type: "string",
    multiple: true,
    value: "LOCAL:REMOTE",
    doc: "copy a local file to an absolute path of the sandbox",
  },
  stdin: { type: "string", value: "FILE", doc: "standard input of the command; - means that of coppice" },
  cwd: { type: "string", value: "DIR", doc: "working directory (default: /root)" },
  hostname: { type: "string", value: "NAME", doc: "host name of the sandbox" },
  timeout: { type: "string", value: "SECONDS", doc: "time limit of the command" },
  shell: { type: "boolean", doc: "give the command to /bin/sh -c" },
  disposable: { type: "boolean", doc: "discard the file system after the run" },
  tag: { type: "string", value: "NAME", doc: "tag the resulting image" },
  json: { type: "boolean", doc: "print the operation as JSON instead of the output" },
  ...CLIENT_OPTIONS,
} as const;

export const runCommand = command({
  name: "run",
  summary: "run a command in a new sandbox",
  synopsis: "--image IMAGE [OPTIONS] [--] COMMAND [ARG...]",
  takesCommand: true,
  description:
    "Prints the command's standard output and error, byte for byte, and exits with its exit code. Ctrl-C\n" +
    `cancels the run. Exit code ${EXIT_NOT_RUN} means that the command did not run, or that its end is unknown. Options of\n` +
    "coppice come before COMMAND; everything after it belongs to the command.",
  examples: [
    "coppice run --image tag:busybox -- uname -a",
    "coppice run --image tag:python --file job.py:/root/job.py --tag python-after -- python3 job.py",
    "tar c . | coppice run --image tag:busybox --stdin - --disposable -- tar t",
  ],
  options: OPTIONS,
  async run({ options, positionals, io, environment }) {
    const client = openClient(environment, options.url);
    const request = requestOf(options, positionals, environment);
    try {
      return await runToItsEnd(client, request, options, io);
    } catch (error) {
      // Exit code 1 would look like one of the command in the sandbox.
      if (exitCodeOf(error) === EXIT_FAILED) {
        throw new CliError((error as Error).message, EXIT_NOT_RUN, { cause: error });
      }
      throw error;
    }
  },
});

type Options = OptionValues<typeof OPTIONS>;

async function runToItsEnd(client: Client, request: Request, options: Options, io: Io): Promise<number> {
  const { tag } = options;
  const { placements, fields } = request;
  const operation = await spawnAndWait(
    client,
    {
      ...fields,
      ...(options.stdin === undefined ? {} : { stdin: await stdinOf(options.stdin, io) }),
      ...(placements.length > 0 ? { files: await upload(placements, client, io) } : {}),
    },
    io,
  );
  const result = resultOf(operation);
  if (tag !== undefined && result.image !== undefined) {
    await answerOf(client.v1.images({ uuid: result.image }).tag.patch({ tag }));
  }
  if (options.json === true) await io.stdout(`${JSON.stringify(operation)}\n`);
  else await passOutput(result, io);
  return result.exit_code;
}

interface Request {
  readonly fields: SpawnRequest;
  readonly placements: readonly Placement[];
}

/** The part of the request that the command line gives, before files are read or sent. */
function requestOf(options: Options, positionals: readonly string[], environment: Environment): Request {
  const [name, ...args] = positionals;
  if (options.image === undefined) throw new UsageError("--image is missing");
  if (name === undefined) throw new UsageError("the command is missing");
  if (options.disposable === true && options.tag !== undefined) {
    throw new UsageError("--disposable leaves no image for --tag");
  }
  // Checked now: the tag is set only after the run.
  if (options.tag !== undefined && !isTag(options.tag))
    throw new UsageError(`--tag ${options.tag} is no name of a tag`);
  const timeout = integerOption("timeout", options.timeout, 1);
  const env = options.env && Object.fromEntries(options.env.map((entry) => variable(entry, environment)));
  const placements = (options.file ?? []).map(placement);
  const fields = {
    image: options.image,
    command: name,
    ...(args.length > 0 ? { args } : {}),
    ...(options.shell === true ? { shell: true } : {}),
    ...given({ env, cwd: options.cwd, hostname: options.hostname, timeout }),
    disposable: options.disposable ?? false,
    truncate_output_at: OUTPUT_BYTES_MAX,
  };
  return { fields, placements };
}

function variable(entry: string, environment: Environment): [string, string] {
  const [, name, value] = /^([^=]+)(?:=([\s\S]*))?$/.exec(entry) ?? [];
  if (name === undefined) throw new UsageError(`--env ${entry} must be NAME=VALUE or NAME`);
  const taken = value ?? environment[name];
  if (taken === undefined) throw new UsageError(`--env ${name}: there is no such variable here`);
  return [name, taken];
}

interface Placement {
  readonly local: string;
  readonly remote: string;
}

/** The remote path is absolute, so the last ":/" separates the paths, and the local path may contain colons. */
function placement(entry: string): Placement {
  const at = entry.lastIndexOf(":/");
  if (at < 1) throw new UsageError(`--file ${entry} must be LOCAL:/ABSOLUTE/PATH`);
  return { local: entry.slice(0, at), remote: entry.slice(at + 1) };
}

type Files = Record<string, { readonly uuid: string; readonly mode: string }>;

async function upload(placements: readonly Placement[], client: Client, io: Io): Promise<Files> {
  const files: Files = {};
  for (const { local, remote } of placements) {
    const found = await stat(local).catch((error: NodeJS.ErrnoException) => {
      throw new CliError(`cannot read ${local}: ${error.code}`);
    });
    if (!found.isFile()) throw new CliError(`${local} is not a regular file`);
    using _progress = showProgress(io, `uploading ${local}`);
    files[remote] = {
      uuid: await uploadFile(client, Bun.file(local)),
      mode: (found.mode & 0o777).toString(8).padStart(4, "0"),
    };
  }
  return files;
}

async function stdinOf(source: string, io: Io): Promise<string> {
  const chunks: Uint8Array[] = [];
  let total = 0;
  if (source !== "-" && !(await Bun.file(source).exists())) throw new CliError(`cannot read ${source}`);
  for await (const chunk of source === "-" ? io.stdin() : Bun.file(source).stream()) {
    total += chunk.byteLength;
    if (total > STDIN_BYTES_MAX) throw new CliError(`standard input is over ${STDIN_BYTES_MAX} bytes; use --file`);
    chunks.push(chunk);
  }
  const bytes = Buffer.concat(chunks);
  const text = bytes.toString("latin1");
  return isAscii(bytes) && !text.startsWith(STDIN_BASE64_PREFIX)
    ? text
    : STDIN_BASE64_PREFIX + bytes.toString("base64");
}

async function spawnAndWait(client: Client, request: SpawnRequest, io: Io): Promise<Operation> {
  const { uuid } = await answerOf(client.v1.instances.post(request));
  const { operation, interrupted } = await waitForOperation({
    client,
    io,
    id: uuid,
    label: "running",
    cancelOnInterrupt: true,
  });
  if (operation === null) {
    throw new CliError(`gave up waiting; the operation is ${uuid}`, EXIT_INTERRUPTED);
  }
  if (operation.status === "CANCELLED") {
    throw new CliError(`operation ${uuid} was cancelled`, interrupted === null ? EXIT_NOT_RUN : EXIT_INTERRUPTED);
  }
  if (operation.status !== "SUCCESS") {
    const { error, message } = operation.error ?? { error: "no error object", message: "the run failed" };
    throw new CliError(`${message} (${error}, operation ${uuid})`, EXIT_NOT_RUN);
  }
  return operation;
}

function resultOf(operation: Operation): InstanceResult {
  const { result } = operation;
  if (result === undefined || !("exit_code" in result)) throw new CliError("the operation has no result", EXIT_NOT_RUN);
  return result;
}

async function passOutput(result: InstanceResult, io: Io): Promise<void> {
  const bytes = (output: OutputObject | undefined): Buffer =>
    Buffer.from(output?.content ?? "", output?.encoding === "base64" ? "base64" : "latin1");
  try {
    if (result.stdout !== undefined) await io.stdout(bytes(result.stdout));
  } catch (error) {
    // EPIPE: the reader closed the output; the exit code is still that of the command.
    if ((error as NodeJS.ErrnoException).code !== "EPIPE") throw error;
  }
  if (result.stderr !== undefined) io.stderr(bytes(result.stderr));
  for (const name of ["stdout", "stderr"] as const) {
    if (result[name]?.truncated === true) io.stderr(`coppice run: ${name} was cut at ${OUTPUT_BYTES_MAX} bytes\n`);
  }
  if (result.timed_out) io.stderr("coppice run: the time limit was hit\n");
  if (result.oom_killed === true) io.stderr("coppice run: the sandbox ran out of memory\n");
}
