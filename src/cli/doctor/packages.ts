import { missingPackages } from "../../supervisor/health/programs.ts";
import { CommandError, run } from "../../system/exec.ts";
import { CliError } from "../command.ts";
import type { Io } from "../io.ts";
import { showProgress } from "../wait.ts";

/** Time limit of one call of apt-get, in `milliseconds`: QEMU is a large download. */
const APT_MS_MAX = 900_000;

/**
 * Installs the Debian packages of all missing programs. Reads the package lists first if apt does not know a package.
 * @throws CliError when this process is not root, or when apt-get fails
 */
export async function installMissingPackages(io: Io, signal: AbortSignal): Promise<void> {
  const missing = missingPackages();
  if (missing.length === 0) return;
  if (process.getuid?.() !== 0) throw new CliError(`only root can install packages: ${missing.join(", ")}`);
  using _progress = showProgress(io, `installing ${missing.join(" ")}`);
  const install = ["install", "-y", "--no-install-recommends", ...missing];
  try {
    await aptGet(install, signal).catch(async () => {
      signal.throwIfAborted();
      await aptGet(["update"], signal);
      await aptGet(install, signal);
    });
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    throw new CliError(`${error.message}\n${error.stderrTail}`.trimEnd());
  }
}

async function aptGet(args: readonly string[], signal: AbortSignal): Promise<void> {
  const env = { DEBIAN_FRONTEND: "noninteractive" };
  await run({ argv: ["apt-get", "-qq", ...args], env, timeoutMs: APT_MS_MAX, stdoutBytesMax: 16_777_216, signal });
}
