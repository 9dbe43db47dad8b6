import { URL_DEFAULT } from "../config/client.ts";
import { ConfigError, type Environment } from "../config/config.ts";
import { DataAccessError } from "../storage/layout.ts";
import { VERSION } from "../version.ts";
import { exitCodeOf } from "./client.ts";
import { type Command, columns, EXIT_FAILED, EXIT_USAGE, UsageError } from "./command.ts";
import type { Io } from "./io.ts";
import { serveCommand } from "./serve.ts";

const GROUPS: Readonly<Record<string, string>> = {
  config: "check and show the settings",
  token: "make, list and revoke access tokens",
  image: "import, load, save, list, tag, trace and delete images",
  sandbox:
    "list and show sandboxes and their saved states; coppice up, down, pause, resume, rollback, fork and url\nchange them",
  e2b: "prepare the appliance for clients of E2B",
  op: "list, show, wait for, extend and cancel operations",
};

/** Runs one command line, given without the program's name, and returns the exit code. Never throws. */
export async function runCommandLine(argv: readonly string[], io: Io, environment: Environment): Promise<number> {
  // The appliance does not load the other commands, which would take a tenth of its start.
  const commands = argv[0] === serveCommand.name ? [serveCommand] : (await import("./commands.ts")).COMMANDS;
  const command = commands.find(({ name }) => argv.slice(0, name.split(" ").length).join(" ") === name);
  try {
    if (command === undefined) return await withoutCommand(commands, argv, io);
    return await command.run(argv.slice(command.name.split(" ").length), io, environment);
  } catch (error) {
    return report(error, command?.name, io);
  }
}

async function withoutCommand(commands: readonly Command[], argv: readonly string[], io: Io): Promise<number> {
  const [first, second] = argv;
  const isGroup = first !== undefined && Object.hasOwn(GROUPS, first);
  if (isHelp(first) || first === "help") {
    await io.stdout(helpAbout(commands, argv.slice(1)));
    return 0;
  }
  if (first === "--version") {
    await io.stdout(`coppice ${VERSION}\n`);
    return 0;
  }
  if (isGroup && isHelp(second)) {
    await io.stdout(groupHelp(commands, first));
    return 0;
  }
  if (isGroup && second !== undefined) throw new UsageError(`${first} has no command ${second}`);
  if (first === undefined || isGroup) {
    io.stderr(isGroup ? groupHelp(commands, first) : overview(commands));
    return EXIT_USAGE;
  }
  throw new UsageError(first.startsWith("-") ? `unknown option ${first}` : `there is no command ${first}`);
}

const isHelp = (word: string | undefined): boolean => word === "--help" || word === "-h";

function helpAbout(commands: readonly Command[], words: readonly string[]): string {
  const [first = ""] = words;
  if (words.length === 0) return overview(commands);
  if (words.length === 1 && Object.hasOwn(GROUPS, first)) return groupHelp(commands, first);
  const about = commands.find(({ name }) => name === words.join(" "));
  if (about === undefined) throw new UsageError(`there is no command ${words.join(" ")}`);
  return about.help();
}

function overview(commands: readonly Command[]): string {
  const rows = commands.map(({ name, summary }) => [name, summary] as const);
  return `Coppice ${VERSION}: code in VM-isolated sandboxes whose file systems branch like Git.

Usage: coppice COMMAND [OPTIONS]

Commands:
${columns(rows)}

coppice COMMAND --help explains each command.

Commands that talk to an appliance read its address from COPPICE_URL (default
${URL_DEFAULT}), the token from COPPICE_TOKEN, and your own certificate authority
from COPPICE_CA_FILE; or from the files url, token and ca.pem in ~/.config/coppice.
`;
}

function groupHelp(commands: readonly Command[], group: string): string {
  const rows = commands
    .filter(({ name }) => name.startsWith(`${group} `))
    .map(({ name, summary }) => [name, summary] as const);
  return `Usage: coppice ${group} COMMAND [OPTIONS]\n\n${GROUPS[group]}\n\nCommands:\n${columns(rows)}\n`;
}

/** Prints a failure and returns its exit code. */
function report(thrown: unknown, name: string | undefined, io: Io): number {
  // The first failure matters; a failure of the clean-up after it usually has the same cause.
  let error = thrown;
  while (error instanceof SuppressedError) error = error.suppressed;
  const program = name === undefined ? "coppice" : `coppice ${name}`;
  if (error instanceof UsageError) {
    io.stderr(`${program}: ${error.message}\nTry '${program} --help'.\n`);
    return EXIT_USAGE;
  }
  if (error instanceof ConfigError) {
    io.stderr(`${program}: ${error.message}:\n${error.problems.map((problem) => `  ${problem}\n`).join("")}`);
    return EXIT_USAGE;
  }
  const exitCode = exitCodeOf(error);
  if (exitCode !== null) {
    const { message } = error as Error;
    if (message !== "") io.stderr(`${program}: ${message}\n`);
    return exitCode;
  }
  // SchemaTooNewError is matched by its name, so that commands of the client need not load the database.
  if (error instanceof DataAccessError || (error instanceof Error && error.name === "SchemaTooNewError")) {
    io.stderr(`${program}: ${error.message}\n`);
    return EXIT_FAILED;
  }
  const { code, syscall, message } = (error ?? {}) as Partial<NodeJS.ErrnoException>;
  // The reader of the output closed it (`coppice image ls | head`).
  if (code === "EPIPE") return 0;
  // The message of a system call names the cause: a full disk, a file without permission to read.
  if (code !== undefined && syscall !== undefined) {
    io.stderr(`${program}: ${message}\n`);
    return EXIT_FAILED;
  }
  io.stderr(`${program}: unexpected failure, please report it: ${Bun.inspect(error)}\n`);
  return EXIT_FAILED;
}
