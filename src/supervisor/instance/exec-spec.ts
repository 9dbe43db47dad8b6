import type { CheckedCommand } from "../../domain/spawn.ts";
import type { AgentExecSpec } from "../../vm/agent/agent.ts";

const PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const HOME_DEFAULT = "/root";

/** What a command has of the instance that it runs in, and of its own time. */
export interface Surroundings {
  readonly hostname: string;
  /** 0: none */
  readonly timeoutMs: number;
  /** what standard input begins with; null: nothing */
  readonly stdin: AsyncIterable<Uint8Array> | null;
}

/** A command as the agent takes it. */
export function execSpec(
  { argv, env, cwd, uid, gid, stdinOpen, terminal }: Omit<CheckedCommand, "stdin">,
  { hostname, timeoutMs, stdin }: Surroundings,
): AgentExecSpec {
  return {
    argv,
    env: { PATH: PATH_DEFAULT, HOME: HOME_DEFAULT, HOSTNAME: hostname, ...env },
    cwd,
    hostname,
    timeoutMs,
    user: { uid, gid },
    ...(terminal === null ? {} : { terminal }),
    ...(stdin !== null ? { stdin: stdinOpen ? { first: stdin } : stdin } : stdinOpen ? { stdin: "open" } : {}),
  };
}
