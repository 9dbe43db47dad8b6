import { backupCommands } from "./backup/command.ts";
import { benchCommand } from "./bench/command.ts";
import type { Command } from "./command.ts";
import { configCommands } from "./config/config.ts";
import { doctorCommand } from "./doctor/command.ts";
import { templateBaseCommand } from "./e2b/template-base.ts";
import { fileCommands } from "./files/commands.ts";
import { gcCommand } from "./gc/command.ts";
import { historyCommands } from "./history.ts";
import { imageCommands } from "./image.ts";
import { installCommands } from "./install/command.ts";
import { mcpCommand } from "./mcp/command.ts";
import { operationCommands } from "./operation/operation.ts";
import { pathHistoryCommands } from "./path-history.ts";
import { receiptCommands } from "./receipts/commands.ts";
import { checkpointCommand } from "./running/checkpoint.ts";
import { forwardCommand } from "./running/forward.ts";
import { logsCommand } from "./running/logs.ts";
import { processCommands } from "./running/processes.ts";
import { runCommand } from "./running/run.ts";
import { shellCommand } from "./running/shell.ts";
import { sandboxCommands } from "./sandbox/commands.ts";
import { upCommand } from "./sandbox/up.ts";
import { searchCommands } from "./search.ts";
import { serveCommand } from "./serve.ts";
import { stopCommand } from "./stop/command.ts";
import { tokenCommands } from "./token.ts";
import { versionCommand } from "./version.ts";
import { watchCommands } from "./watch.ts";

/** All commands, in the order of the help, in which a new user needs them. */
export const COMMANDS: readonly Command[] = [
  doctorCommand,
  ...installCommands(() => COMMANDS),
  serveCommand,
  stopCommand,
  gcCommand,
  ...configCommands,
  ...backupCommands,
  ...tokenCommands,
  ...imageCommands,
  ...historyCommands,
  ...pathHistoryCommands,
  ...receiptCommands,
  runCommand,
  upCommand,
  ...sandboxCommands,
  shellCommand,
  ...processCommands,
  logsCommand,
  checkpointCommand,
  forwardCommand,
  ...fileCommands,
  ...searchCommands,
  ...operationCommands,
  ...watchCommands,
  templateBaseCommand,
  mcpCommand,
  benchCommand,
  versionCommand,
];
