import { answerOf, type Client } from "../../client/client.ts";
import { bytesOf } from "../../client/operation-events.ts";
import { instanceResult } from "../../client/runs.ts";
import type { InstanceResult, OutputObject } from "../../client/types.ts";
import { OUTPUT_BYTES_MAX } from "../../domain/output.ts";
import { CLIENT_OPTIONS, openClient, orNotRun } from "../client.ts";
import { command, EXIT_NOT_RUN, type OptionValues, UsageError } from "../command.ts";
import type { Io } from "../io.ts";
import { tellNetwork } from "../network.ts";
import { filesField, INSTANCE_OPTIONS, instanceFields, placementsOf, STREAM_OPTIONS, stdinOf } from "./request.ts";
import { type Streams, streamsOf, withTerm } from "./streams.ts";
import { type WatchedRun, watchRun } from "./watched-run.ts";

const OPTIONS = {
  image: { type: "string", value: "IMAGE", doc: "image UUID, or tag:NAME" },
  ...INSTANCE_OPTIONS,
  stdin: {
    type: "string",
    value: "FILE",
    doc: "send this as standard input with the request, at most 10 MiB; - means standard input of coppice",
  },
  shell: { type: "boolean", doc: "give the command to /bin/sh -c" },
  ...STREAM_OPTIONS,
  detach: { type: "boolean", short: "d", doc: "print the ID of the run, and leave it" },
  json: { type: "boolean", doc: "print the operation as JSON instead of the output" },
  ...CLIENT_OPTIONS,
} as const;

export const runCommand = command({
  name: "run",
  summary: "run a command in a new sandbox",
  synopsis: "--image IMAGE [OPTIONS] [--] COMMAND [ARG...]",
  takesCommand: true,
  description:
    "Prints the command's standard output and error as they arrive, byte for byte, and exits with its exit code.\n" +
    "Standard input is passed on, unless it is a terminal: -i passes that on, too, and -it is a session at the\n" +
    "terminal, which Ctrl-P Ctrl-Q leaves. Ctrl-C interrupts the command, and twice cancels the run. Exit code\n" +
    `${EXIT_NOT_RUN} means that the command did not run, or that its end is unknown. Options of coppice come before\n` +
    "COMMAND; everything after it belongs to the command.",
  examples: [
    "coppice run --image tag:busybox -- uname -a",
    "coppice run --image tag:python --file job.py:/root/job.py --tag python-after -- python3 job.py",
    "tar c . | coppice run --image tag:busybox --disposable -- tar t",
    "coppice run --image tag:busybox -it -- sh",
    "coppice run --image tag:python --network allow=*.example.org:443,10.0.7.5:5432 -- python3 job.py",
  ],
  options: OPTIONS,
  async run({ options, positionals, io, environment }) {
    const client = openClient(environment, options.url);
    const [name, ...args] = positionals;
    if (options.image === undefined) throw new UsageError("--image is missing");
    if (name === undefined) throw new UsageError("the command is missing");
    const streams = streamsFor(options, io);
    const { env, ...fields } = instanceFields(options, environment);
    const placements = placementsOf(options);
    const request = {
      image: options.image,
      command: name,
      ...(args.length > 0 ? { args } : {}),
      ...(options.shell === true ? { shell: true } : {}),
      ...fields,
      ...withTerm(env, streams, environment),
      ...streams.fields,
    };
    const work = async () => {
      const stdin = options.stdin === undefined ? {} : { stdin: await stdinOf(options.stdin, io) };
      const files = await filesField(placements, client, io);
      const { uuid } = await answerOf(client.v1.instances.post({ ...request, ...stdin, ...files }));
      return await afterSpawn(uuid, { client, io, options, streams });
    };
    return await orNotRun(work);
  },
});

type Options = OptionValues<typeof OPTIONS>;

/** @throws UsageError for options that exclude each other */
function streamsFor(options: Options, io: Io): Streams {
  const { json = false, stdin, tty = false } = options;
  if (json && tty) throw new UsageError("--json and --tty exclude each other");
  if (stdin !== undefined && options.interactive === true) throw new UsageError("--stdin and -i exclude each other");
  const streams = streamsOf(options, io);
  if (stdin === undefined) return streams;
  const { stdin_open: _open, ...fields } = streams.fields;
  return { ...streams, input: "none", fields };
}

interface Spawned {
  readonly client: Client;
  readonly io: Io;
  readonly options: Options;
  readonly streams: Streams;
}

/** Follows a run to its end, according to the options. */
async function afterSpawn(id: string, { client, io, options, streams }: Spawned): Promise<number> {
  const { json = false } = options;
  if (options.detach === true) {
    await io.stdout(json ? `${JSON.stringify({ uuid: id })}\n` : `${id}\n`);
    return 0;
  }
  const isShown = !json || streams.input !== "none";
  const shownIo = json ? { ...io, stdout: async () => undefined, stderrBytes: async () => undefined } : io;
  const run = await watchRun({ client, io: shownIo, id, streams: isShown ? streams : null });
  if (run.operation === null) {
    io.stderr(`\r\nleft ${id}; coppice attach ${id} comes back to it\n`);
    return 0;
  }
  const result = instanceResult(run.operation);
  if (json) await io.stdout(`${JSON.stringify(run.operation)}\n`);
  else await passRest(result, run, io);
  tellNetwork(run.operation, io);
  return result.exit_code;
}

/** Prints the output that could not be streamed, and what ended the run early. */
export async function passRest(result: InstanceResult, { isComplete, written }: WatchedRun, io: Io): Promise<void> {
  const bytes = (output: OutputObject | undefined): Uint8Array => bytesOf(output ?? { content: "", encoding: "ascii" });
  if (!isComplete) {
    try {
      await io.stdout(bytes(result.stdout).subarray(written.stdout));
    } catch (error) {
      // EPIPE: the reader closed the output; the exit code is still that of the command.
      if ((error as NodeJS.ErrnoException).code !== "EPIPE") throw error;
    }
    io.stderr(bytes(result.stderr).subarray(written.stderr));
    for (const name of ["stdout", "stderr"] as const) {
      if (result[name]?.truncated === true) io.stderr(`coppice run: ${name} was cut at ${OUTPUT_BYTES_MAX} bytes\n`);
    }
  }
  if (result.timed_out) io.stderr("coppice run: the time limit was hit\n");
  if (result.oom_killed === true) io.stderr("coppice run: the sandbox ran out of memory\n");
}
