import { command, expectPositionals, secondsOption } from "../command.ts";
import { configOf, DATA_OPTIONS } from "../config/config-options.ts";

/** systemd kills a service that has not stopped after 75 s. */
const TIMEOUT_SECONDS = 90;

export const stopCommand = command({
  name: "stop",
  summary: "stop the appliance, and with --all everything that runs",
  synopsis: "[--all] [--timeout DURATION] [OPTIONS]",
  description:
    "Stops the appliance of this machine, as a signal does. With --all, everything that runs ends first, as\n" +
    "FAILED with the reason: nothing is saved, and a sandbox keeps its last saved state. Waiting operations\n" +
    "run after the next start.",
  examples: ["coppice stop", "coppice stop --all --timeout 5m"],
  options: {
    all: { type: "boolean", doc: "end everything that runs, also what a daemon has left" },
    timeout: { type: "string", value: "DURATION", doc: `longest wait for the end; default ${TIMEOUT_SECONDS}s` },
    ...DATA_OPTIONS,
  },
  async run({ options, positionals, io, environment }) {
    expectPositionals(positionals);
    const { all = false, timeout, ...rest } = options;
    const timeoutMs = (secondsOption("timeout", timeout) ?? TIMEOUT_SECONDS) * 1000;
    const config = configOf(rest, environment);
    // Loaded only here: no other command of the client needs the host's parts.
    const { stopAppliance } = await import("./stop.ts");
    await io.stdout(`${await stopAppliance(config, { all, timeoutMs })}\n`);
    return 0;
  },
});
