import type { Client } from "../../../client/client.ts";
import { signalProcess, startProcess } from "../../../client/processes.ts";
import type { Sandbox } from "../../../client/types.ts";
import { CliError } from "../../command.ts";
import type { Io } from "../../io.ts";
import { join } from "../../running/processes.ts";
import type { Project, ProjectCommand, ProjectStep } from "./project.ts";

export interface StepContext {
  readonly client: Client;
  readonly io: Io;
  readonly sandbox: Sandbox;
}

/**
 * Runs the commands of a project in a sandbox that has just started.
 * @param isNew true: it was made, and not resumed
 * @throws CliError for a command that fails: those of later steps are not begun
 */
export async function runProject(
  context: StepContext,
  { created, started, served }: Project,
  isNew: boolean,
): Promise<void> {
  for (const step of [...(isNew ? created : []), ...started]) await runStep(context, step);
  for (const step of served) await leaveStep(context, step);
}

/** Runs the commands of a step to their ends. @throws CliError */
async function runStep(context: StepContext, { name, commands }: ProjectStep): Promise<void> {
  const { io, sandbox } = context;
  io.stderr(`coppice up: ${name}\n`);
  const codes = await Promise.all(commands.map((command) => run(context, command)));
  const code = codes.find((each) => each !== 0);
  if (code === undefined) return;
  const hint = sandbox.network === null ? "; it has no network, which --network gives to a new one" : "";
  throw new CliError(`${name} ended with exit code ${code}; sandbox ${sandbox.name} is kept as it is${hint}`);
}

/** Starts the commands of a step, and leaves them. */
async function leaveStep({ client, io, sandbox }: StepContext, { name, commands }: ProjectStep): Promise<void> {
  for (const command of commands) {
    const { spid } = await startProcess(client, { sandbox: sandbox.uuid }, requestOf(command));
    io.stderr(`coppice up: ${name} is process ${spid}; coppice logs -f -p ${spid} ${sandbox.name} shows its output\n`);
  }
}

/** Runs a command, and shows its output on standard error. Returns its exit code. */
async function run({ client, io, sandbox }: StepContext, command: ProjectCommand): Promise<number> {
  const process = await startProcess(client, { sandbox: sandbox.uuid }, requestOf(command));
  return await join({
    client,
    io: { ...io, stdout: (data) => io.stderrBytes(typeof data === "string" ? Buffer.from(data) : data) },
    process,
    input: "none",
    hasTerminal: false,
    isLossless: true,
    replayBytes: 0,
    end: () => signalProcess(client, process, "KILL"),
  });
}

function requestOf(command: ProjectCommand) {
  if (typeof command === "string") return { command, shell: true };
  const [name = "", ...args] = command;
  return { command: name, args };
}
