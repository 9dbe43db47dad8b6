import { constants } from "node:os";
import type { CommandInput } from "../../../domain/spawn.ts";
import { displayName } from "../../../domain/tree/guest-path.ts";
import { errnoOf, type FilesPlace, fileAt } from "../files/place.ts";
import { wireId } from "../ids.ts";
import type { E2bParts } from "../options.ts";
import { RpcError } from "../rpc/errors.ts";
import { optionalMessage, optionalText, type RpcMessage, text, textList, textMap } from "../rpc/message.ts";

const { ENOENT, ENOTDIR, EACCES } = constants.errno;
const MISSING = new Set<number | undefined>([ENOENT, ENOTDIR, EACCES]);

const BASH = "/bin/bash";
const SHELL = "/bin/sh";
const PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/** A program without a directory is looked for in so many directories of PATH. */
const DIRECTORIES_COUNT_MAX = 16;

/** A process as its client describes it. */
export interface ProcessConfig {
  readonly cmd: string;
  readonly args: readonly string[];
  readonly envs: Readonly<Record<string, string>>;
  readonly cwd?: string;
}

/** @throws RpcError `invalid_argument` */
export function configIn(message: RpcMessage): ProcessConfig {
  const config = optionalMessage(message, "process") ?? {};
  const cwd = optionalText(config, "cwd");
  return {
    cmd: text(config, "cmd"),
    args: textList(config, "args"),
    envs: textMap(config, "envs"),
    ...(cwd === null || cwd === "" ? {} : { cwd }),
  };
}

/**
 * The command for a configuration, as a user of the guest. A guest without bash has its shell in its place.
 * @throws RpcError `invalid_argument` when the program or the directory does not exist
 */
export async function commandOf(parts: E2bParts, place: FilesPlace, config: ProcessConfig): Promise<CommandInput> {
  const { envd, user } = place;
  const [command, cwd] = await Promise.all([programOf(parts, place, config), directoryOf(parts, place, config)]);
  const { sandbox, record } = envd;
  const own = { E2B_SANDBOX: "true", E2B_SANDBOX_ID: wireId(sandbox.id), E2B_TEMPLATE_ID: record.templateId };
  return {
    command,
    args: config.args,
    // The sandbox's variables come before those of the request.
    env: { ...own, ...sandbox.env, ...config.envs },
    inherit: "variables",
    // Those are of the user, whatever the image says.
    unset: ["HOME", "USER", "LOGNAME", "SHELL"],
    cwd,
    user: displayName(user.name),
  };
}

async function programOf(parts: E2bParts, place: FilesPlace, { cmd, envs }: ProcessConfig): Promise<string> {
  if (cmd.includes("/")) {
    if ((await typeOf(parts, place, cmd)) !== null) return cmd;
    if (cmd === BASH) return standIn(parts, place);
  } else if (cmd !== "") {
    const path = envs["PATH"] ?? place.envd.sandbox.env["PATH"] ?? PATH_DEFAULT;
    for (const directory of path.split(":").slice(0, DIRECTORIES_COUNT_MAX)) {
      if (directory.startsWith("/") && (await typeOf(parts, place, `${directory}/${cmd}`)) !== null) return cmd;
    }
    if (cmd === "bash") return standIn(parts, place);
  }
  throw new RpcError("invalid_argument", `exec: "${cmd}": executable file not found`);
}

/** Listeners whose operators know that a guest has no bash. */
const warned = new WeakSet<E2bParts>();

/** The shell that stands in for bash, whose features scripts may miss. The operator learns of it once. */
function standIn(parts: E2bParts, { envd: { sandbox, record } }: FilesPlace): string {
  if (!warned.has(parts)) {
    warned.add(parts);
    const fields = { sandbox: sandbox.id, template: record.templateId };
    parts.log.warn(`a sandbox has no ${BASH}: ${SHELL} runs the commands of its clients`, fields);
  }
  return SHELL;
}

/** The directory that a configuration names; undefined: the default one. */
async function directoryOf(parts: E2bParts, place: FilesPlace, { cwd }: ProcessConfig): Promise<string | undefined> {
  if (cwd === undefined) return undefined;
  const type = await typeOf(parts, place, cwd);
  const path = displayName(fileAt(place, cwd).path);
  if (type === null) throw new RpcError("invalid_argument", `cwd '${path}' does not exist`);
  if (type !== "d") throw new RpcError("invalid_argument", `cwd '${path}' is not a directory`);
  return path;
}

/** The type of the file at a path; null: there is none. */
async function typeOf({ service }: E2bParts, place: FilesPlace, path: string): Promise<string | null> {
  try {
    const { type } = await service.guestFiles.stat(place.envd.principal, { ...fileAt(place, path), follow: true });
    return type;
  } catch (error) {
    if (MISSING.has(errnoOf(error))) return null;
    throw error;
  }
}
