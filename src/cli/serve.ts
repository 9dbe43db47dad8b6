import { type Config, declareProduction, type Environment } from "../config/config.ts";
import { shownDefault } from "../config/keys.ts";
import type { Daemon } from "../daemon.ts";
import { createLog, type Log } from "../log.ts";
import type { Leave, Stop } from "../service/operator/desk.ts";
import { ServiceManager } from "../system/notify.ts";
import { isHostStopping } from "../system/systemd.ts";
import { VERSION } from "../version.ts";
import { CliError, command, EXIT_FAILED, expectPositionals } from "./command.ts";
import { CONFIG_OPTIONS, configOf } from "./config/config-options.ts";
import { type HandledSignal, type Io, STOP_SIGNALS } from "./io.ts";

/** Shorter than the time after which systemd kills a service; `milliseconds`. */
const SHUTDOWN_MS_MAX = 60_000;

const SERVICE_UMASK_FLAGS = 0o022;
/** Longest wait for the signal that a service manager was about to send; `milliseconds`. */
const SIGNAL_MS_MAX = 30_000;

export const serveCommand = command({
  name: "serve",
  summary: "run the appliance",
  synopsis: "[OPTIONS]",
  description:
    "Runs until SIGTERM or SIGINT; a second signal ends it at once. SIGPWR, and coppice stop --all, end\n" +
    "everything that runs first. Settings come from the file, COPPICE_* variables and flags; later ones win.\n" +
    "The setting listen.port is COPPICE_LISTEN_PORT and --listen-port.",
  examples: ["coppice serve", "coppice serve --data-dir /srv/coppice --vm-emulation allow"],
  options: {
    ...CONFIG_OPTIONS,
    "leave-instances": {
      type: "boolean",
      doc: "leave instances running at a stop, as a service does, for the next start",
    },
  },
  async run({ options, positionals, io, environment }) {
    expectPositionals(positionals);
    const { "leave-instances": leaves, ...settings } = options;
    const config = configOf(settings, environment);
    if (process.getuid?.() !== 0) throw new CliError("this needs root, to make a jail for each VM");
    declareProduction();
    // Machines run as separate users and must read their disks; the data directory keeps other users out.
    process.umask(SERVICE_UMASK_FLAGS);
    const isService = environment["NOTIFY_SOCKET"] !== undefined;
    const leave = leaves === true ? "always" : isService ? "in_unit" : "never";
    return await serve(config, logOf(config, io), { io, environment, leave });
  },
});

function logOf(config: Config, io: Io): Log {
  const format = config.log.format === "auto" ? (io.stderrIsTerminal ? "text" : "json") : config.log.format;
  const { colors } = io.stderrLooks;
  return createLog({ level: config.log.level, format, color: colors, write: (line) => io.stderr(line) });
}

/** Logs the first steps with a new appliance for its operator. */
function sayFirstSteps({ dataDir }: Config, log: Log, page: string): void {
  const place = dataDir === shownDefault("data_dir") ? "" : ` --data-dir ${dataDir}`;
  log.info("this appliance is new: make a token, sign in to the page, import an image, open a sandbox", {
    command: `coppice token create${place} --account me --save`,
    page,
    image: "coppice image import docker.io/library/python:3.12-slim --tag python",
    sandbox: "coppice up tag:python --name dev",
  });
}

async function serve(
  config: Config,
  log: Log,
  { io, environment, leave }: { readonly io: Io; readonly environment: Environment; readonly leave: Leave },
): Promise<number> {
  using manager = new ServiceManager({
    socket: environment["NOTIFY_SOCKET"],
    watchdogUs: environment["WATCHDOG_USEC"],
    watchdogPid: environment["WATCHDOG_PID"],
    onError: (error) => log.warn("the service manager was not notified", { error }),
  });
  const signalled = Promise.withResolvers<HandledSignal>();
  const leaving = Promise.withResolvers<"forced" | "late">();
  let signals = 0;
  // Set before the start: a signal during the start must end it properly, too.
  using _interrupts = io.onSignal(STOP_SIGNALS, (signal) => {
    signals += 1;
    log.info(signals === 1 ? "stopping" : "stopping at once", { signal });
    manager.stopping();
    signalled.resolve(signal);
    if (signals > 1) leaving.resolve("forced");
  });
  const { startDaemon } = await import("../daemon.ts");
  const daemon = await startDaemon(config, log, leave).catch((error: unknown) => {
    log.error("cannot start", { error });
    return null;
  });
  if (daemon === null) return EXIT_FAILED;
  log.info("listening", { url: daemon.url, version: VERSION, dataDir: config.dataDir });
  const { ingress, e2b } = config;
  if (ingress !== null) {
    const { host, port, address } = ingress;
    log.info("serving ports of sandboxes", { listen: `${host}:${port}`, domain: address.domain });
  }
  if (e2b !== null) log.info("serving clients of E2B", { listen: `${e2b.host}:${e2b.port}`, domain: e2b.domain });
  manager.ready(`listening on ${daemon.url}`, () => daemon.isAlive());
  if (daemon.isNew()) sayFirstSteps(config, log, daemon.url);
  const stop = await Promise.race([signalled.promise, daemon.desk.stopRequested]);
  const late = setTimeout(() => leaving.resolve("late"), SHUTDOWN_MS_MAX);
  const outcome = await Promise.race([stopDaemon(daemon, stop, signalled.promise), leaving.promise]);
  clearTimeout(late);
  if (typeof outcome === "object") {
    log.info("stopped", { ...outcome });
    if (outcome.instances !== undefined) {
      // The instances that run on keep the event loop alive.
      io.lingers = false;
      await io.stderrBytes(new Uint8Array(0)).catch(() => undefined);
    }
    return 0;
  }
  log.error("stopped without cleaning up; the next start does it", { why: outcome });
  return EXIT_FAILED;
}

/** A stop that is done. */
interface Stopped {
  /** number of those that run on; absent: nothing is left */
  readonly instances?: number;
}

/** @param stop the signal or the operator's command that ends the daemon */
async function stopDaemon(
  daemon: Daemon,
  stop: HandledSignal | Stop,
  signalled: Promise<HandledSignal>,
): Promise<Stopped> {
  const byHost = stop === "SIGPWR" || (typeof stop === "string" && (await isHostStopping()));
  if (byHost) await daemon.desk.endAll("host");
  else if (typeof stop === "object" && stop.all) await daemon.desk.endAll("operator");
  else {
    const instances = await daemon.desk.leave();
    if (instances !== null) return { instances };
  }
  if (typeof stop === "object" && stop.awaitsSignal) await Promise.race([signalled, Bun.sleep(SIGNAL_MS_MAX)]);
  await daemon[Symbol.asyncDispose]();
  return {};
}
