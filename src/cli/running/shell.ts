import { answerOf, type Client } from "../../client/client.ts";
import { ResponseError } from "../../client/errors.ts";
import { signalProcess, startProcess } from "../../client/processes.ts";
import { instanceResult } from "../../client/runs.ts";
import { readSandbox } from "../../client/sandboxes.ts";
import { imageHas, imageIdOf } from "../../client/transfers.ts";
import type { InstanceResult, ProcessRequest, SpawnRequest } from "../../client/types.ts";
import { parseUuidOrDigits } from "../../domain/ids.ts";
import { CLIENT_OPTIONS, openClient, orNotRun } from "../client.ts";
import { CliError, command, expectPositionals, UsageError } from "../command.ts";
import type { Io } from "../io.ts";
import { tellNetwork } from "../network.ts";
import { isSandbox, placeText, type SandboxPlace, sandboxNamed } from "../place.ts";
import { join } from "./processes.ts";
import {
  filesField,
  INSTANCE_OPTIONS,
  instanceFields,
  PROCESS_OPTIONS,
  placementsOf,
  processFields,
} from "./request.ts";
import { passRest } from "./run.ts";
import { streamsOf, withTerm } from "./streams.ts";
import { TimeWarnings } from "./time-warnings.ts";
import { watchRun } from "./watched-run.ts";

/** Shells in the order in which a person would choose them. */
const SHELLS = ["/bin/bash", "/bin/sh"] as const;

export const shellCommand = command({
  name: "shell",
  summary: "open a shell in a new sandbox, or in one of coppice up",
  synopsis: "IMAGE|NAME [OPTIONS]",
  description:
    "Starts the best shell of the image at this terminal. At its end the files become an image, whose UUID is\n" +
    "printed. Ctrl-P Ctrl-Q leaves the shell, and coppice attach returns to it. It may run as long as the\n" +
    "appliance allows; the terminal shows a warning before that time ends. IMAGE is a UUID or tag:NAME.\n" +
    "NAME is that of a sandbox, in which the shell is an additional process; only --env, --cwd, --uid and --gid\n" +
    "apply to it.",
  examples: ["coppice shell tag:busybox --tag mine", "coppice shell dev"],
  options: { ...INSTANCE_OPTIONS, ...CLIENT_OPTIONS },
  async run({ options, positionals, io, environment }) {
    const [reference = ""] = expectPositionals(positionals, "IMAGE");
    if (io.terminal === null) throw new UsageError("standard input is not a terminal; use coppice run for commands");
    const streams = streamsOf({ interactive: true, tty: true }, io);
    const { env, ...fields } = instanceFields(options, environment);
    const placements = placementsOf(options);
    const client = openClient(environment, options.url);
    const work = async (): Promise<number> => {
      const base = await baseOf(client, reference);
      const common = { ...withTerm(env, streams, environment), ...streams.fields };
      if ("sandbox" in base) {
        requireProcessOptions(options);
        return await shellIn({
          client,
          io,
          place: base,
          request: { ...processFields(options, environment), ...common },
        });
      }
      const { image } = base;
      const request = {
        ...base,
        ...fields,
        ...common,
        ...(await filesField(placements, client, io)),
      };
      const { id, timeout } = await spawnLongest(client, request);
      using warnings = new TimeWarnings({
        client,
        io,
        id,
        limitSeconds: timeout,
        isLongest: fields.timeout === undefined,
      });
      const run = await watchRun({ client, io, id, streams, onStarted: (at) => warnings.start(at) });
      if (run.operation === null) {
        io.stderr(`\r\nleft ${id}; coppice attach ${id} comes back to it\n`);
        return 0;
      }
      const result = instanceResult(run.operation);
      await passRest(result, run, io);
      tellNetwork(run.operation, io);
      tellImage(result, image, io);
      return result.exit_code;
    };
    return await orNotRun(work);
  },
});

interface Base {
  /** uuid */
  readonly image: string;
  readonly command: string;
}

/** The image that a person names, with its shell, or the sandbox. A UUID can be that of either. @throws CliError */
async function baseOf(client: Client, text: string): Promise<Base | SandboxPlace> {
  const uuid = parseUuidOrDigits(text);
  if (uuid === null && !text.startsWith("tag:")) return sandboxNamed(text);
  try {
    const image = await imageIdOf(client, uuid ?? text);
    return { image, command: await shellOf(client, image) };
  } catch (error) {
    const isMissing = uuid !== null && error instanceof ResponseError && error.status === 404;
    if (!isMissing || !(await isSandbox(client, uuid))) throw error;
    return { sandbox: uuid };
  }
}

/** @throws UsageError for options that are about a new sandbox */
function requireProcessOptions(options: object): void {
  const other = Object.keys(options).find((name) => !Object.hasOwn({ ...PROCESS_OPTIONS, ...CLIENT_OPTIONS }, name));
  if (other !== undefined) throw new UsageError(`--${other} is for a new sandbox, and this one exists`);
}

interface SandboxShell {
  readonly client: Client;
  readonly io: Io;
  readonly place: SandboxPlace;
  readonly request: Omit<ProcessRequest, "command">;
}

/** Runs a shell as a process of a sandbox. Returns its exit code; 0 when it was left. */
async function shellIn({ client, io, place, request }: SandboxShell): Promise<number> {
  const { head } = await readSandbox(client, place.sandbox);
  if (head === null) throw new CliError(`sandbox ${placeText(place)} has ended`);
  const command = await shellOf(client, head);
  const process = await startProcess(client, place, { command, ...request });
  const end = () => signalProcess(client, process, "KILL");
  return await join({ client, io, process, input: "keys", hasTerminal: true, isLossless: true, replayBytes: 0, end });
}

/** Prints the image with the files. `base` is the image that the session started from. */
function tellImage({ image, tag }: InstanceResult, base: string, io: Io): void {
  if (image === undefined) return;
  if (image === base) io.stderr(`nothing was changed: the files are those of image ${base}\n`);
  else io.stderr(`the files are image ${image}${tag === undefined ? "" : `, tag:${tag}`}\n`);
}

/** @throws CliError for an image that has none */
async function shellOf(client: Client, image: string): Promise<string> {
  for (const shell of SHELLS) if (await imageHas(client, { image, path: shell })) return shell;
  // An image that does not exist has none either.
  await answerOf(client.v1.images({ uuid: encodeURIComponent(image) }).get());
  throw new CliError(`the image has no shell: none of ${SHELLS.join(", ")}`);
}

/** Starts an instance with the time limit of the request, or with the longest that the appliance allows. */
async function spawnLongest(
  client: Client,
  request: SpawnRequest,
): Promise<{ readonly id: string; readonly timeout: number }> {
  const timeout = request.timeout ?? (await longestTimeout(client, request));
  const { uuid } = await answerOf(client.v1.instances.post({ ...request, timeout }));
  return { id: uuid, timeout };
}

/** The appliance names its limit when it refuses a longer time. */
async function longestTimeout(client: Client, request: SpawnRequest): Promise<number> {
  try {
    await answerOf(client.v1.instances.post({ ...request, timeout: Number.MAX_SAFE_INTEGER }));
  } catch (error) {
    if (!(error instanceof ResponseError)) throw error;
    const { field, maximum } = error.details;
    if (field === "timeout" && typeof maximum === "number") return maximum;
    throw error;
  }
  throw new CliError("the appliance allows any time limit");
}
