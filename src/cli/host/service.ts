import { CommandError, run } from "../../system/exec.ts";
import { CliError } from "../command.ts";

/** The unit of the daemon. */
export const SERVICE = "coppice.service";
/** The unit of the machines, which stays when the daemon stops. */
export const MACHINES_SERVICE = "coppice-machines.service";

const SYSTEMD_TIMEOUT_MS = 120_000;
/** systemctl waits until the service reports that it listens, or has stopped. */
export const START_TIMEOUT_MS = 330_000;

/** Runs a program of systemd. @throws CliError with what it said */
export async function systemd(argv: readonly string[], timeoutMs = SYSTEMD_TIMEOUT_MS): Promise<void> {
  try {
    await run({ argv, timeoutMs });
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    throw new CliError(`${argv.join(" ")}: ${error.stderrTail || error.message}`, undefined, { cause: error });
  }
}
