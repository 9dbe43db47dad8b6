import type { Client } from "../../client/client.ts";
import { pathOfProcesses } from "../../client/processes.ts";
import { changeSandbox, openSandbox, readSandbox, resumeSandbox } from "../../client/sandboxes.ts";
import type { Process, Sandbox, SandboxChange, SandboxRequest } from "../../client/types.ts";
import { given } from "../../domain/given.ts";
import { LIMIT_MAX } from "../../domain/tree/listing.ts";
import { CLIENT_OPTIONS, openClient } from "../client.ts";
import { command, integerOption, JSON_OPTION, type OptionValues, secondsOption, UsageError } from "../command.ts";
import { imageOf, orMissing } from "../image-reference.ts";
import type { Io } from "../io.ts";
import { sandboxNamed } from "../place.ts";
import { NETWORK_OPTIONS, networkField } from "../running/network.ts";
import { filesField, INSTANCE_OPTIONS, placementsOf, resourcesOf, variablesOf } from "../running/request.ts";
import { copyProject } from "./project/copy.ts";
import { projectOf } from "./project/find-project.ts";
import type { Project } from "./project/project.ts";
import { runProject } from "./project/steps.ts";
import { printSandbox, untilSettled } from "./shown.ts";

const { env: variables, cwd, file, cpus, memory, disk } = INSTANCE_OPTIONS;

const OPTIONS = {
  name: { type: "string", value: "NAME", doc: "name of the sandbox; one that exists is resumed" },
  config: { type: "string", value: "FILE", doc: "coppice.toml or devcontainer.json of the sandbox" },
  timeout: { type: "string", value: "DURATION", doc: "time that it lives, such as 8h, and again after each resume" },
  idle: { type: "string", value: "DURATION", doc: "pause when nothing used it for this time, such as 30m" },
  "on-timeout": {
    type: "string",
    value: "pause|end",
    choices: ["pause", "end"],
    doc: "what happens at the end of its time (default: pause)",
  },
  user: { type: "string", value: "USER", doc: "user of its processes: a name, or UID[:GID] (default: root)" },
  env: variables,
  cwd: { ...cwd, doc: "working directory of its processes" },
  file,
  cpus,
  memory,
  disk,
  public: { type: "string", multiple: true, value: "PORT", doc: "port that is reached from outside without a token" },
  ...NETWORK_OPTIONS,
  "no-copy": { type: "boolean", doc: "do not copy the files of the project" },
  ...JSON_OPTION,
  ...CLIENT_OPTIONS,
} as const;

type Options = OptionValues<typeof OPTIONS>;

export const upCommand = command({
  name: "up",
  summary: "open a sandbox that lives, or resume it",
  synopsis: "[IMAGE] [OPTIONS]",
  description:
    "IMAGE is a UUID, tag:NAME, or REGISTRY/REPOSITORY:VERSION, which is imported once. Without IMAGE, the\n" +
    "coppice.toml or .devcontainer/devcontainer.json of this directory describes the sandbox: its image,\n" +
    "variables, user, ports and commands; the files of the directory are copied to it when it is made. A sandbox\n" +
    "that exists is resumed, and gets the time, network and public ports of the options; while no process runs in\n" +
    "it, such as after a rollback, the servers of the description are started again. Prints name, state and\n" +
    "addresses.",
  examples: ["coppice up tag:python --name dev --timeout 8h --idle 30m", "coppice up"],
  options: OPTIONS,
  async run({ options, positionals, io, environment }) {
    const [image, ...rest] = positionals;
    if (rest.length > 0) throw new UsageError(`unexpected argument ${rest[0]}`);
    const isDescribed = image === undefined || options.config !== undefined;
    const project = isDescribed ? projectOf(process.cwd(), environment, options.config) : null;
    const reference = image ?? project?.image ?? null;
    if (reference === null) throw new UsageError(withoutImage(project));
    const own = requestOf(options, environment);
    const env = { ...project?.request.env, ...own.env };
    const request = { ...project?.request, ...own, ...(Object.keys(env).length === 0 ? {} : { env }) };
    const placements = placementsOf(options);
    const client = openClient(environment, options.url);
    const name = options.name ?? project?.name;
    const existing = name === undefined ? null : await orMissing(() => readSandbox(client, sandboxNamed(name).sandbox));
    const appearance = { json: options.json, ports: project?.ports ?? [] };
    if (existing !== null) {
      requireChangeable(options, existing.name);
      const sandbox = await awake(client, io, await changed(client, existing, own));
      if (project !== null && !(await hasProcesses(client, sandbox))) {
        await runProject({ client, io, sandbox }, project, false);
      }
      await printSandbox(sandbox, io, appearance);
      return 0;
    }
    for (const note of project?.notes ?? []) io.stderr(`coppice up: ${note}\n`);
    const opened = await openSandbox(client, {
      ...request,
      image: await imageOf(client, io, reference),
      ...given({ name }),
      ...(await filesField(placements, client, io)),
    });
    const sandbox = await untilSettled(client, io, opened);
    if (project !== null) {
      await copyProject({ client, io, sandbox }, project, options["no-copy"] !== true);
      await runProject({ client, io, sandbox }, project, true);
    }
    await printSandbox(sandbox, io, appearance);
    return 0;
  },
});

function withoutImage(project: Project | null): string {
  if (project !== null) return `${project.file} has no image; name it: coppice up IMAGE --config ${project.file}`;
  return "IMAGE is missing, and this directory has no coppice.toml and no .devcontainer/devcontainer.json";
}

/** The fields that the options set. @throws UsageError */
function requestOf(options: Options, environment: Readonly<Record<string, string | undefined>>) {
  const { user, cwd } = options;
  const ports = options.public?.map((port) => integerOption("public", port, 1) as number);
  return {
    ...given({ timeout: secondsOption("timeout", options.timeout), idle_timeout: secondsOption("idle", options.idle) }),
    ...given({ on_timeout: timeoutAction(options["on-timeout"]), user, cwd, public_ports: ports }),
    ...given({ env: variablesOf(options.env, environment), resources: resourcesOf(options) }),
    ...(options.network?.includes("none") === true ? { network: "none" as const } : {}),
    ...networkField(options),
  };
}

/** @throws UsageError */
function timeoutAction(text: string | undefined): SandboxRequest["on_timeout"] {
  if (text === undefined || text === "pause" || text === "end") return text;
  throw new UsageError("--on-timeout must be pause or end");
}

/** Options that change a sandbox which exists, or are not about it. */
const CHANGEABLE: ReadonlySet<string> = new Set([
  ...["name", "config", "timeout", "idle", "on-timeout", "public", "network", "network-tls", "no-copy", "json", "url"],
]);

/** @throws UsageError for an option that is about a new sandbox */
function requireChangeable(options: Options, name: string): void {
  const other = Object.keys(options).find((option) => !CHANGEABLE.has(option));
  if (other !== undefined) throw new UsageError(`--${other} is for a new sandbox, and ${name} exists`);
}

/** The sandbox with the settings of the command line. */
async function changed(client: Client, sandbox: Sandbox, own: SandboxChange): Promise<Sandbox> {
  const { timeout, idle_timeout, on_timeout, network, public_ports } = own;
  const change = given({ timeout, idle_timeout, on_timeout, network, public_ports });
  return Object.keys(change).length === 0 ? sandbox : await changeSandbox(client, sandbox.uuid, change);
}

/** Lets an existing sandbox run. @throws CliError */
async function awake(client: Client, io: Io, existing: Sandbox): Promise<Sandbox> {
  const now = existing.state === "failed" ? existing : await untilSettled(client, io, existing);
  if (now.state === "running") return now;
  return await untilSettled(client, io, await resumeSandbox(client, now.uuid));
}

/** Whether a process runs. None does in a new machine, which a rollback or a connection may have started, too. */
async function hasProcesses(client: Client, { uuid }: Sandbox): Promise<boolean> {
  const path = pathOfProcesses({ sandbox: uuid });
  for (let offset = 0; ; offset += LIMIT_MAX) {
    const page = await client.exchange<Process[]>("GET", path, { query: { limit: LIMIT_MAX, offset } });
    if (page.some(({ state }) => state === "running")) return true;
    if (page.length < LIMIT_MAX) return false;
  }
}
