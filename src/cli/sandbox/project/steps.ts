import type { Client } from "../../../client/client.ts";
import { signalProcess, startProcess } from "../../../client/processes.ts";
import type { Sandbox } from "../../../client/sandboxes.ts";
import { CliError } from "../../command.ts";
import type { Io } from "../../io.ts";
import { join } from "../../running/processes.ts";
import type { ProjectCommand, ProjectStep } from "./project.ts";

export interface StepContext {
  readonly client: Client;
  readonly io: Io;
  readonly sandbox: Sandbox;
}

/** Runs the steps of a project one after another. @throws CliError for a command that fails: the others are not begun */
export async function runSteps(context: StepContext, steps: readonly ProjectStep[]): Promise<void> {
  const { io, sandbox } = context;
  for (const { name, commands } of steps) {
    io.stderr(`coppice up: ${name}\n`);
    const codes = await Promise.all(commands.map((command) => run(context, command)));
    const code = codes.find((each) => each !== 0);
    if (code !== undefined) {
      throw new CliError(
        `${name} ended with exit code ${code}; sandbox ${sandbox.name} is kept, without the steps after it`,
      );
    }
  }
}

/** Runs a command of a project, and shows its output on standard error. Returns its exit code. */
async function run({ client, io, sandbox }: StepContext, command: ProjectCommand): Promise<number> {
  const [name = "", ...args] = typeof command === "string" ? [command] : command;
  const words = typeof command === "string" ? { command: name, shell: true } : { command: name, args };
  const process = await startProcess(client, { sandbox: sandbox.uuid }, words);
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
