import { given } from "../../domain/given.ts";
import { type ImageDefaults, inheritedVariables } from "../../domain/image-defaults.ts";
import type { CheckedCommand } from "../../domain/spawn.ts";
import type { AgentExecSpec } from "../../vm/agent/agent.ts";

const PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const HOME_DEFAULT = "/root";

/** The part of a command's specification that does not come from its request. */
export interface ExecContext {
  readonly hostname: string;
  /** time limit in `milliseconds`; 0: none */
  readonly timeoutMs: number;
  /** those of the image */
  readonly defaults: ImageDefaults;
  /** the first bytes of standard input; null: none */
  readonly stdin: AsyncIterable<Uint8Array> | null;
}

/** Makes the agent's specification of a command. */
export function execSpec(
  command: Omit<CheckedCommand, "stdin">,
  { hostname, timeoutMs, defaults, stdin }: ExecContext,
): AgentExecSpec {
  const { argv, cwd, isCwdGiven, uid, gid, user, stdinOpen, terminal, lingers } = command;
  // The guest gives a user that it resolves a home, which is also the directory.
  const home = user === undefined ? { HOME: HOME_DEFAULT } : {};
  const own = { PATH: PATH_DEFAULT, ...home, HOSTNAME: hostname };
  return {
    argv,
    env: { ...own, ...inheritedVariables(command, defaults), ...command.env },
    cwd: user === undefined || isCwdGiven ? cwd : "",
    hostname,
    timeoutMs,
    ...(user === undefined ? { user: { uid, gid } } : { userName: user }),
    ...given({ terminal, lingers }),
    ...(stdin !== null ? { stdin: stdinOpen ? { first: stdin } : stdin } : stdinOpen ? { stdin: "open" } : {}),
  };
}
