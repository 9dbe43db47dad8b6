import { runCommandLine } from "./cli/command-line.ts";
import { processIo } from "./cli/io.ts";
import { processEnvironment } from "./config/config.ts";

/** The process exits after this many `milliseconds` even if something still keeps the event loop alive. */
const LINGER_MS = 3000;

const environment = processEnvironment();
const io = processIo(environment);
process.exitCode = await runCommandLine(Bun.argv.slice(2), io, environment);
setTimeout(() => process.exit(), io.lingers ? LINGER_MS : 0).unref();
