import type { Client } from "../../client/client.ts";
import { SteadyAttachment } from "../../client/connections/steady-attachment.ts";
import { ResponseError } from "../../client/errors.ts";
import { bytesOf, commandStart, onceStarted } from "../../client/operation-events.ts";
import { isGone } from "../../client/operations.ts";
import type { Place } from "../../client/place.ts";
import { COMMAND_SPID, type ProcessName, readProcess, signalProcess, startProcess } from "../../client/processes.ts";
import type { ProcessDetails, ProcessRequest } from "../../client/types.ts";
import { given } from "../../domain/given.ts";
import { OUTPUT_BYTES_MAX } from "../../domain/output.ts";
import { CLIENT_OPTIONS, openClient, orNotRun } from "../client.ts";
import { CliError, type Command, command, EXIT_INTERRUPTED, EXIT_NOT_RUN, UsageError } from "../command.ts";
import type { Io } from "../io.ts";
import { attachText, inPlace, placeText } from "../place.ts";
import { endOf } from "../wait.ts";
import { ReplayFilter } from "./replay-filter.ts";
import { PROCESS_OPTIONS, processFields, STREAM_OPTIONS } from "./request.ts";
import { type InputSource, Session } from "./session.ts";
import { passSignals } from "./signals.ts";
import { streamsOf, withTerm } from "./streams.ts";
import { LOST_MS } from "./watched-run.ts";

export const processCommands: readonly Command[] = [
  command({
    name: "exec",
    summary: "run an additional process in a running instance, or in a sandbox",
    synopsis: "[OPTIONS] ID|NAME [--] COMMAND [ARG...]",
    takesCommand: true,
    description:
      "The process sees the same files, processes and network as the instance's command. Its streams and its exit\n" +
      "code are passed on as with coppice run; Ctrl-C interrupts it, and twice kills it. It ends with the instance.\n" +
      "NAME is that of a sandbox, which is resumed when it is paused.",
    examples: ["coppice exec 0197a1d0-5a5e-7000-8000-3c6e0b8a9c15 -- ps", "coppice exec -it dev -- sh"],
    options: {
      ...STREAM_OPTIONS,
      detach: { type: "boolean", short: "d", doc: "print the number of the process, and leave it" },
      shell: { type: "boolean", doc: "give the command to /bin/sh -c" },
      user: {
        type: "string",
        value: "USER",
        doc: "user of the process, with its groups and home: a name, or UID[:GID]",
      },
      ...PROCESS_OPTIONS,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [target, ...words] = positionals;
      // `--` after ID is optional.
      const [name, ...args] = words[0] === "--" ? words.slice(1) : words;
      if (target === undefined) throw new UsageError("ID is missing");
      if (name === undefined) throw new UsageError("the command is missing");
      // Without this, an option in the wrong place would be a program that does not exist.
      if (words[0]?.startsWith("-") === true && words[0] !== "--") {
        throw new UsageError(`options come before ${target}: coppice exec ${words[0]} ... ${target} -- COMMAND`);
      }
      const streams = streamsOf(options, io);
      const { env, ...fields } = processFields(options, environment);
      const client = openClient(environment, options.url);
      const request = {
        command: name,
        ...(args.length > 0 ? { args } : {}),
        ...(options.shell === true ? { shell: true } : {}),
        ...fields,
        ...given({ user: options.user }),
        ...withTerm(env, streams, environment),
        ...streams.fields,
        // Output before the attachment is read from the log.
        truncate_output_at: OUTPUT_BYTES_MAX,
      };
      return await orNotRun(async () => {
        const process = await inPlace(client, target, (place) => startedIn(client, place, request));
        if (options.detach === true) {
          await io.stdout(`${process.spid}\n`);
          return 0;
        }
        const end = async () => {
          await signalProcess(client, process, "KILL").catch((error: unknown) => {
            // It has ended meanwhile.
            if (!(error instanceof ResponseError && error.status === 409)) throw error;
          });
        };
        const code = await join({ client, io, process, ...streams, isLossless: true, replayBytes: 0, end });
        // Its exit code alone would look like that of any kill.
        if (fields.timeout !== undefined && (await hasTimedOut(client, process))) {
          io.stderr("coppice exec: the time limit was hit\n");
        }
        return code;
      });
    },
  }),
  command({
    name: "attach",
    summary: "join the streams of a process of a running instance or sandbox",
    synopsis: "ID|NAME [SPID]",
    description:
      "Shows the past and new output of the command of an instance, or of the process with number SPID, and sends it\n" +
      "standard input. Ctrl-P Ctrl-Q at a terminal, and Ctrl-C twice elsewhere, leave it. The exit code is that of\n" +
      "the process. A sandbox has no command: its processes have the numbers from 2.",
    examples: ["coppice attach 0197a1d0-5a5e-7000-8000-3c6e0b8a9c15"],
    options: CLIENT_OPTIONS,
    async run({ options, positionals, io, environment }) {
      const [target, number, ...rest] = positionals;
      if (target === undefined) throw new UsageError("ID is missing");
      if (rest.length > 0) throw new UsageError(`unexpected argument ${rest[0]}`);
      const spid = number === undefined ? null : spidOf(number);
      const client = openClient(environment, options.url);
      return await orNotRun(async () => {
        const { process, details } = await inPlace(client, target, (place) => existing(client, place, spid));
        const { pty, stdout } = details;
        const hasTerminal = pty !== undefined;
        const piped = io.stdinIsEmpty ? "none" : "stream";
        const input = io.terminal === null ? piped : hasTerminal ? "keys" : "stream";
        const replayBytes = input === "keys" ? bytesOf(stdout).byteLength : 0;
        return await join({ client, io, process, input, hasTerminal, isLossless: false, replayBytes, end: null });
      });
    },
  }),
];

interface Joined {
  readonly client: Client;
  readonly io: Io;
  readonly process: ProcessName;
  readonly input: InputSource;
  readonly hasTerminal: boolean;
  readonly isLossless: boolean;
  /** size of the output of a terminal that is shown once more */
  readonly replayBytes: number;
  /** handler of a second interrupt; null: it leaves the process */
  readonly end: (() => Promise<void>) | null;
}

/** Passes the streams of a process on until its end, and returns its exit code; 0 when it was left. */
export async function join({
  client,
  io,
  process,
  input,
  hasTerminal,
  isLossless,
  replayBytes,
  end,
}: Joined): Promise<number> {
  // In raw mode a line feed alone leaves the cursor where it is.
  const tell = (text: string): void => io.stderr(input === "keys" ? `\r\ncoppice: ${text}\r\n` : `coppice: ${text}\n`);
  const attachment = await SteadyAttachment.open(client, process, {
    lossless: isLossless,
    onDropped: (stream, bytes) => tell(`${bytes} bytes of ${stream} were not stored`),
    onGap: (events) => tell(`${events} earlier events of the log are gone`),
    onLost: () => tell("the connection is lost; trying to reconnect"),
  });
  const replay = new ReplayFilter(replayBytes);
  const session = new Session({
    client,
    io,
    process,
    attachment,
    input,
    hasTerminal,
    started: Promise.resolve(),
    filter: (bytes) => replay.take(bytes),
  });
  using signals = passSignals({
    client,
    io,
    process,
    hasTerminal,
    end: end ?? (async () => session.detach()),
    leave: () => session.detach(),
    survivesHangUp: end === null,
  });
  session.finish();
  const how = await session.run();
  if (how === "complete") return attachment.exitCode ?? EXIT_NOT_RUN;
  if (how === "lost") throw await lossOf(client, process);
  if (signals.interrupted) throw new CliError(`left process ${process.spid}`, EXIT_INTERRUPTED);
  io.stderr(`\r\nleft process ${process.spid}; ${attachText(process)} comes back to it\n`);
  return 0;
}

/** @throws UsageError */
function spidOf(text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new UsageError(`${text} is not a process number; the command has 1`);
  return Number(text);
}

/** False also when the appliance no longer answers: the exit code is enough then. */
async function hasTimedOut(client: Client, process: ProcessName): Promise<boolean> {
  return (await readProcess(client, process).catch(() => null))?.timed_out === true;
}

/** The reason of a lost connection: the end of the instance closes it, and is visible a moment later. */
async function lossOf(client: Client, process: ProcessName): Promise<CliError> {
  const { instance, sandbox, spid } = process;
  const lost = `the connection is lost; ${attachText(process)} comes back to process ${spid}`;
  if (sandbox !== undefined) {
    return new CliError((await isGone(client, process)) ? `sandbox ${placeText(process)} no longer runs` : lost);
  }
  const signal = AbortSignal.timeout(LOST_MS);
  const ended = await endOf(client, instance, { signal, onStatus: null });
  return new CliError(ended === null ? lost : `instance ${instance} has ended (${ended.status})`);
}

interface Existing {
  readonly process: ProcessName;
  readonly details: ProcessDetails;
}

/** @param number null: the command of an instance @throws CliError */
async function existing(client: Client, place: Place, number: number | null): Promise<Existing> {
  if (place.sandbox !== undefined && number === null) {
    throw new CliError(`a sandbox has no command: coppice attach ${placeText(place)} SPID`);
  }
  const spid = number ?? COMMAND_SPID;
  // The command may be queued; additional processes are not.
  const mustWait = place.sandbox === undefined && spid === COMMAND_SPID;
  if (mustWait && (await commandStart(client, place.instance)) === null) {
    throw new CliError(`the command of ${place.instance} did not start`);
  }
  const process = { ...place, spid };
  return { process, details: await readProcess(client, process) };
}

/** Starts a process. The command of an instance may be about to start; a sandbox waits for its machine by itself. */
async function startedIn(client: Client, place: Place, request: ProcessRequest): Promise<ProcessName> {
  const start = () => startProcess(client, place, request);
  return place.sandbox === undefined ? await onceStarted(client, place.instance, start) : await start();
}
