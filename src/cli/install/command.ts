import { existsSync } from "node:fs";
import { chmod, copyFile, mkdir, rename, rm, rmdir, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { type Environment, loadConfig } from "../../config/config.ts";
import { dataLayout } from "../../storage/layout.ts";
import { isActive, isSystemdHost } from "../../system/systemd.ts";
import { VERSION } from "../../version.ts";
import { CliError, type Command, command, expectPositionals, secondsOption, UsageError } from "../command.ts";
import { completionScript, SHELLS, type Shell } from "../completion.ts";
import { MACHINES_SERVICE, SERVICE, START_TIMEOUT_MS, systemd } from "../host/service.ts";
import type { Io } from "../io.ts";
import { CONFIG_PATH, DATA_DIRECTORY, DIRECTORIES, installedFiles, PROGRAM_PATH } from "./files.ts";
import type { Drain } from "./upgrade.ts";

/** Time limit of the end of everything that runs. */
const END_MS_MAX = 120_000;

const ROOT_OPTION = {
  root: { type: "string", value: "DIR", doc: "work below this directory and leave the running system alone" },
} as const;

/** Commands that need the table of all commands, for the completions of shells. */
export function installCommands(table: () => readonly Command[]): readonly Command[] {
  return [
    command({
      name: "install",
      summary: "install this executable as a service, or upgrade it",
      synopsis: "[--start [--drain[=DURATION]]] [--root DIR]",
      description:
        "Installs the program, the systemd units, a configuration with every setting as a comment, and\n" +
        "shell completions. An existing configuration and all data stay unchanged. Instances of a running\n" +
        "service run on during the restart; those that this version cannot take over are printed first.",
      examples: [
        "sudo ./coppice install --start",
        "sudo ./coppice install --start --drain=30m",
        "coppice install --root build/package",
      ],
      options: {
        start: { type: "boolean", doc: "enable and (re)start the service, too" },
        drain: {
          type: "string",
          value: "DURATION",
          isValueOptional: true,
          doc: "first wait until what the restart would end has ended, and let nothing else begin; after that time, give up",
        },
        ...ROOT_OPTION,
      },
      async run({ options, positionals, io, environment }) {
        expectPositionals(positionals);
        const { root, start = false } = options;
        if (root !== undefined && start) throw new UsageError("--start and --root exclude each other");
        const drain = drainOf(options.drain);
        if (drain !== null && !start) throw new UsageError("--drain needs --start");
        requireRoot(root);
        using _held = root === undefined ? await aroundRestart(environment, io, drain) : null;
        await install(root ?? "/", table(), io);
        if (root === undefined) await tellSystemd(start, io);
        return 0;
      },
    }),
    command({
      name: "uninstall",
      summary: "remove the service and the installed files",
      synopsis: "[--force] [--purge] [--root DIR]",
      description:
        "Stops the service first, if no instance runs. Data and configuration stay, unless --purge is given.",
      options: {
        force: { type: "boolean", doc: "end everything that runs" },
        purge: {
          type: "boolean",
          doc: `remove ${DATA_DIRECTORY} and ${dirname(CONFIG_PATH)}, too: all images are lost`,
        },
        ...ROOT_OPTION,
      },
      async run({ options, positionals, io, environment }) {
        expectPositionals(positionals);
        const { root, purge = false, force = false } = options;
        requireRoot(root);
        const kept = purge && root === undefined ? foreignData(environment) : null;
        if (root === undefined && isSystemdHost()) {
          await endInstances(environment, { force, io });
          await stopService(io);
        }
        await uninstall(root ?? "/", { commands: table(), purge, io });
        if (kept !== null) io.stderr(`${kept} is not ${DATA_DIRECTORY} and stays; remove it by hand\n`);
        return 0;
      },
    }),
    command({
      name: "completion",
      summary: "print a script that completes commands in a shell",
      synopsis: SHELLS.join("|"),
      examples: ["source <(coppice completion bash)"],
      choices: SHELLS,
      options: {},
      async run({ positionals, io }) {
        const [shell = ""] = expectPositionals(positionals, "SHELL");
        if (!(SHELLS as readonly string[]).includes(shell)) throw new UsageError(`there is no completion for ${shell}`);
        await io.stdout(completionScript(shell as Shell, table()));
        return 0;
      },
    }),
  ];
}

function requireRoot(root: string | undefined): void {
  if (root === undefined && process.getuid?.() !== 0) throw new CliError("this needs root; --root DIR does not");
}

/** The value of `--drain`; null: it is not given. @throws UsageError */
function drainOf(value: string | undefined): Drain | null {
  if (value === undefined) return null;
  const seconds = value === "" ? null : (secondsOption("drain", value) ?? null);
  return { timeoutMs: seconds === null ? null : seconds * 1000 };
}

/** Prepares the restart of the service if it runs; disposed when that is done. @throws CliError */
async function aroundRestart(environment: Environment, io: Io, drain: Drain | null): Promise<Disposable | null> {
  if (!(await isActive(SERVICE))) return null;
  const { prepareRestart } = await import("./upgrade.ts");
  return await prepareRestart(loadConfig({ environment, flags: {} }), io, drain);
}

/**
 * Ends everything that runs, so that each operation has the reason.
 * @throws CliError when something runs, and `force` is not given
 */
async function endInstances(
  environment: Environment,
  { force, io }: { readonly force: boolean; readonly io: Io },
): Promise<void> {
  const { leftCount } = await import("../host/left-machines.ts");
  const { countedRunning, runningOf } = await import("../host/running.ts");
  const config = loadConfig({ environment, flags: {} });
  const layout = dataLayout(config.dataDir);
  const running = await runningOf(layout);
  // Such a daemon ends everything when it stops.
  if (running === "older" && force) return;
  if (running === "older") throw new CliError("the running appliance cannot tell what runs: --force ends everything");
  const count = running === "none" ? await leftCount(layout) : running.operations.length;
  if (count === 0) return;
  if (!force)
    throw new CliError(
      `${countedRunning(count, running === "none" ? "instance" : "operation")}: --force ends what runs`,
    );
  const { stopAppliance } = await import("../stop/stop.ts");
  io.stderr(`${await stopAppliance(config, { all: true, timeoutMs: END_MS_MAX })}\n`);
}

async function install(root: string, commands: readonly Command[], io: Io): Promise<void> {
  if (!Bun.isStandaloneExecutable)
    throw new CliError("this is not the executable: make install builds and installs it");
  for (const [path, mode] of DIRECTORIES) await makeDirectory(below(root, path), mode);
  await place(below(root, PROGRAM_PATH), 0o755, (path) => copyFile(process.execPath, path));
  for (const { path, content, mode } of installedFiles(commands)) {
    await place(below(root, path), mode, (target) => writeFile(target, content));
  }
  const config = below(root, CONFIG_PATH);
  const template =
    installedFiles(commands).find(({ path }) => path.endsWith("/doc/coppice/config.toml"))?.content ?? "";
  if (existsSync(config)) io.stderr(`${config} exists and stays unchanged\n`);
  else await place(config, 0o640, (path) => writeFile(path, template));
  io.stderr(`coppice ${VERSION} is installed as ${below(root, PROGRAM_PATH)}\n`);
}

/** Writes a file next to the old one and renames it: a running program can be replaced, but not overwritten. */
async function place(path: string, mode: number, write: (temporary: string) => Promise<void>): Promise<void> {
  await mkdir(dirname(path), { recursive: true, mode: 0o755 });
  const temporary = `${path}.new`;
  await rm(temporary, { force: true });
  await write(temporary);
  await chmod(temporary, mode);
  await rename(temporary, path);
}

async function makeDirectory(path: string, mode: number): Promise<void> {
  const existed = existsSync(path);
  await mkdir(path, { recursive: true });
  if (!existed) await chmod(path, mode);
}

async function tellSystemd(start: boolean, io: Io): Promise<void> {
  if (!isSystemdHost()) {
    io.stderr("systemd does not run here: start the appliance with coppice serve\n");
    return;
  }
  await systemd(["systemd-sysusers", "/usr/local/lib/sysusers.d/coppice.conf"]);
  await systemd(["systemd-tmpfiles", "--create", "/usr/local/lib/tmpfiles.d/coppice.conf"]);
  await systemd(["systemctl", "daemon-reload"]);
  if (!start) {
    io.stderr("start it: systemctl enable --now coppice\nand make a token: coppice token create --account me --save\n");
    return;
  }
  await systemd(["systemctl", "enable", SERVICE]);
  await systemd(["systemctl", "restart", SERVICE], START_TIMEOUT_MS);
  io.stderr("the service runs; make a token: coppice token create --account me --save\n");
}

async function stopService(io: Io): Promise<void> {
  try {
    await systemd(["systemctl", "disable", "--now", SERVICE], START_TIMEOUT_MS);
    await systemd(["systemctl", "stop", MACHINES_SERVICE]);
  } catch (error) {
    if (!(error instanceof CliError)) throw error;
    // The service may never have been enabled; its files are removed nevertheless.
    io.stderr(`${error.message}\n`);
  }
}

async function uninstall(
  root: string,
  { commands, purge, io }: { readonly commands: readonly Command[]; readonly purge: boolean; readonly io: Io },
): Promise<void> {
  const paths = [PROGRAM_PATH, ...installedFiles(commands).map(({ path }) => path)].map((path) => below(root, path));
  for (const path of paths) await rm(path, { force: true });
  await removeIfEmpty(below(root, "/usr/local/share/doc/coppice"));
  await rm(below(root, "/run/coppice"), { recursive: true, force: true });
  if (root === "/" && isSystemdHost()) await systemd(["systemctl", "daemon-reload"]);
  const data = [dirname(CONFIG_PATH), DATA_DIRECTORY].map((path) => below(root, path));
  if (purge) for (const path of data) await rm(path, { recursive: true, force: true });
  else io.stderr(`${data.filter((path) => existsSync(path)).join(" and ")} stay; --purge removes them\n`);
}

async function removeIfEmpty(path: string): Promise<void> {
  try {
    await rmdir(path);
  } catch (error) {
    // The directory holds files of another program, or does not exist.
    if (!["ENOTEMPTY", "ENOENT"].includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
  }
}

/** The data directory of the configuration if install did not make it; null if it is the default one. */
function foreignData(environment: Environment): string | null {
  try {
    const { dataDir } = loadConfig({ environment, flags: {} });
    return dataDir === DATA_DIRECTORY ? null : dataDir;
  } catch (error) {
    return `the data directory of ${CONFIG_PATH} (${(error as Error).message})`;
  }
}

function below(root: string, path: string): string {
  return join(resolve(root), path);
}
