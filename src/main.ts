import { runCommandLine } from "./cli/command-line.ts";
import { processIo } from "./cli/io.ts";
import { processEnvironment } from "./config/config.ts";

/** Something that still holds the event loop after this many `milliseconds` must not keep the process. */
const LINGER_MS = 3000;

const environment = processEnvironment();
process.exitCode = await runCommandLine(Bun.argv.slice(2), processIo(environment), environment);
setTimeout(() => process.exit(), LINGER_MS).unref();
