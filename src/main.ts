import { runGate } from "./network/gate/main.ts";

/** The process exits after this many `milliseconds` even if something still keeps the event loop alive. */
const LINGER_MS = 3000;

// The process that connects to the outside has no business with anything else here; see network/gate.
if (Bun.argv[2] === "gate") {
  runGate();
} else {
  const { runCommandLine } = await import("./cli/command-line.ts");
  const { processIo } = await import("./cli/io.ts");
  const { processEnvironment } = await import("./config/config.ts");
  const environment = processEnvironment();
  process.exitCode = await runCommandLine(Bun.argv.slice(2), processIo(environment), environment);
  setTimeout(() => process.exit(), LINGER_MS).unref();
}
