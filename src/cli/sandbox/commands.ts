import { forkSandboxMemory } from "../../client/forks.ts";
import {
  endSandbox,
  forkSandbox,
  linkToPort,
  listSandboxes,
  pauseSandbox,
  readSandbox,
  resumeSandbox,
  rollbackSandbox,
  savedStates,
} from "../../client/sandboxes.ts";
import type { Sandbox } from "../../client/types.ts";
import { given } from "../../domain/given.ts";
import { SANDBOX_STATES } from "../../domain/sandbox.ts";
import { CLIENT_OPTIONS, openClient } from "../client.ts";
import {
  type Command,
  command,
  expectPositionals,
  integerOption,
  JSON_OPTION,
  secondsOption,
  UsageError,
} from "../command.ts";
import { sandboxNamed } from "../place.ts";
import { printable, table } from "../table.ts";
import { addressesOf, leftText, printStates, untilSettled } from "./shown.ts";

const PORT_MAX = 65_535;
const NAME_TEXT = "NAME is the name of a sandbox, or its UUID.";
const OPTIONS = { ...JSON_OPTION, ...CLIENT_OPTIONS } as const;

export const sandboxCommands: readonly Command[] = [
  command({
    name: "down",
    summary: "end a sandbox for good",
    synopsis: "NAME [OPTIONS]",
    description: `Its saved states stay as images. ${NAME_TEXT}`,
    examples: ["coppice down dev", "coppice down dev --keep --tag dev-last"],
    options: {
      keep: { type: "boolean", doc: "save the files of a running sandbox first" },
      tag: { type: "string", value: "NAME", doc: "tag the image of the saved files; needs --keep" },
      ...OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [name = ""] = expectPositionals(positionals, "NAME");
      const { keep, tag } = options;
      if (tag !== undefined && keep !== true) throw new UsageError("--tag needs --keep");
      const client = openClient(environment, options.url);
      const sandbox = await endSandbox(client, sandboxNamed(name).sandbox, given({ keep, tag }));
      await printStates(await untilSettled(client, io, sandbox), io, options);
      return 0;
    },
  }),
  command({
    name: "pause",
    summary: "save the files of a sandbox, and end its machine",
    synopsis: "NAME [OPTIONS]",
    description:
      "The processes end; coppice resume and most commands start it again with its files. With --memory the\n" +
      `processes continue then, as if nothing had been, for as long as the appliance keeps their memory.\n${NAME_TEXT}`,
    examples: ["coppice pause dev", "coppice pause dev --memory"],
    options: {
      memory: { type: "boolean", doc: "keep the memory, too; it holds every secret of the processes" },
      ...OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [name = ""] = expectPositionals(positionals, "NAME");
      const client = openClient(environment, options.url);
      const sandbox = await pauseSandbox(client, sandboxNamed(name).sandbox, given({ memory: options.memory }));
      await printStates(await untilSettled(client, io, sandbox), io, options);
      return 0;
    },
  }),
  command({
    name: "resume",
    summary: "continue a paused sandbox, or start it from its last saved state",
    synopsis: "NAME [OPTIONS]",
    description:
      "Its name, addresses and variables are the same. Its processes continue if it was paused with its memory.\n" +
      "Otherwise they have ended: start its servers again, which coppice up does for a project.\n" +
      NAME_TEXT,
    examples: ["coppice resume dev", "coppice resume dev --no-memory"],
    options: {
      "no-memory": { type: "boolean", doc: "give up its memory, and start it from its files" },
      ...OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [name = ""] = expectPositionals(positionals, "NAME");
      const client = openClient(environment, options.url);
      const request = options["no-memory"] === true ? { memory: false } : {};
      const sandbox = await resumeSandbox(client, sandboxNamed(name).sandbox, request);
      await printStates(await untilSettled(client, io, sandbox), io, options);
      return 0;
    },
  }),
  command({
    name: "rollback",
    summary: "give a sandbox the files of an earlier state, in place",
    synopsis: "NAME [HEAD~N|IMAGE] [OPTIONS]",
    description:
      "HEAD, the default, is the last saved state, and HEAD~2 the second one before it: coppice sandbox states\n" +
      "lists them. IMAGE is a UUID or tag:NAME. A running sandbox runs again afterwards, in a new machine: start its\n" +
      `servers again, which coppice up does for a project.\n${NAME_TEXT}`,
    examples: ["coppice rollback dev", "coppice rollback dev HEAD~2 --keep", "coppice rollback dev tag:release"],
    options: {
      keep: { type: "boolean", doc: "save what is given up first" },
      tag: { type: "string", value: "NAME", doc: "tag the image of what is given up; needs --keep" },
      ...OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const names = positionals.length > 1 ? ["NAME", "IMAGE"] : ["NAME"];
      const [name = "", image] = expectPositionals(positionals, ...names);
      const { keep, tag } = options;
      if (tag !== undefined && keep !== true) throw new UsageError("--tag needs --keep");
      const client = openClient(environment, options.url);
      const sandbox = await rollbackSandbox(client, sandboxNamed(name).sandbox, given({ image, keep, tag }));
      await printStates(await untilSettled(client, io, sandbox), io, options);
      return 0;
    },
  }),
  command({
    name: "fork",
    summary: "open sandboxes with the present files of a sandbox, and its memory on request",
    synopsis: "NAME [OPTIONS]",
    description:
      "All of them are made, or none. The sandbox itself continues. With --memory they have its processes,\n" +
      `which continue in each of them, and every secret of its memory. ${NAME_TEXT}`,
    examples: ["coppice fork dev -n 8", "coppice fork dev --name try", "coppice fork dev --memory -n 4 --signal USR1"],
    options: {
      count: { type: "string", short: "n", value: "NUMBER", doc: "number of new sandboxes (default: 1)" },
      name: { type: "string", value: "PREFIX", doc: "their names are PREFIX-1, PREFIX-2 ... (default: NAME)" },
      memory: { type: "boolean", doc: "copy the processes and the memory, too; at most 16 sandboxes" },
      signal: { type: "string", value: "NAME", doc: "signal for the processes of each fork; needs --memory" },
      ...OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [name = ""] = expectPositionals(positionals, "NAME");
      const { memory, signal } = options;
      if (signal !== undefined && memory !== true) throw new UsageError("--signal needs --memory");
      const request = given({ count: integerOption("count", options.count, 1), name: options.name });
      const client = openClient(environment, options.url);
      const { sandbox: parent } = sandboxNamed(name);
      const forks: Sandbox[] = [];
      if (memory === true) {
        const { sandboxes, paused_ms, warning } = await forkSandboxMemory(
          client,
          parent,
          given({ ...request, signal }),
        );
        io.stderr(`${name} stood still for ${paused_ms} ms; ${warning}\n`);
        for (const sandbox of sandboxes) forks.push(await untilSettled(client, io, sandbox));
      } else {
        for (const sandbox of await forkSandbox(client, parent, request)) {
          forks.push(await untilSettled(client, io, sandbox));
        }
      }
      await printStates(forks, io, options);
      return 0;
    },
  }),
  command({
    name: "url",
    summary: "print a link that opens a port of a sandbox in a browser",
    synopsis: "NAME PORT [OPTIONS]",
    description:
      "Every holder of the link can reach this port until the link expires. A program in the sandbox must listen on\n" +
      `the port at its loopback interface. The operator decides whether ports are served.\n${NAME_TEXT}`,
    examples: ["coppice url dev 8080"],
    options: {
      ttl: { type: "string", value: "DURATION", doc: "how long the link is valid, such as 30m or 8h" },
      ...OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [name = "", text = ""] = expectPositionals(positionals, "NAME", "PORT");
      const port = /^\d{1,5}$/.test(text) ? Number(text) : 0;
      if (port < 1 || port > PORT_MAX) throw new UsageError(`${text} is not a port number`);
      const ttl = secondsOption("ttl", options.ttl);
      const client = openClient(environment, options.url);
      const link = await linkToPort(client, sandboxNamed(name).sandbox, { port, ...given({ ttl }) });
      await io.stdout(options.json === true ? `${JSON.stringify(link)}\n` : `${link.url}\n`);
      return 0;
    },
  }),
  command({
    name: "sandbox ls",
    summary: "list sandboxes, newest first",
    synopsis: "[OPTIONS]",
    description: "Lists those that have not ended.",
    examples: ["coppice sandbox ls --state paused"],
    options: {
      state: { type: "string", value: "STATE", choices: SANDBOX_STATES, doc: "only those in this state" },
      ...OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const client = openClient(environment, options.url);
      const state = stateOf(options.state);
      const sandboxes = await Array.fromAsync(listSandboxes(client, given({ state })));
      if (options.json === true) await io.stdout(`${JSON.stringify(sandboxes)}\n`);
      else {
        const rows = sandboxes.map((each) => [each.name, each.state, leftText(each), each.uuid, each.head ?? "-"]);
        await io.stdout(table(["NAME", "STATE", "TIME LEFT", "UUID", "HEAD"], rows, io.columns));
      }
      return 0;
    },
  }),
  command({
    name: "sandbox show",
    summary: "show a sandbox",
    synopsis: "NAME [OPTIONS]",
    description: NAME_TEXT,
    examples: ["coppice sandbox show dev"],
    options: OPTIONS,
    async run({ options, positionals, io, environment }) {
      const [name = ""] = expectPositionals(positionals, "NAME");
      const client = openClient(environment, options.url);
      const sandbox = await readSandbox(client, sandboxNamed(name).sandbox);
      await io.stdout(options.json === true ? `${JSON.stringify(sandbox)}\n` : detailsOf(sandbox));
      return 0;
    },
  }),
  command({
    name: "sandbox states",
    summary: "list the saved states of a sandbox, newest first",
    synopsis: "NAME [OPTIONS]",
    description: `coppice rollback takes what the first column names, or the UUID of the image.\n${NAME_TEXT}`,
    examples: ["coppice sandbox states dev"],
    options: OPTIONS,
    async run({ options, positionals, io, environment }) {
      const [name = ""] = expectPositionals(positionals, "NAME");
      const client = openClient(environment, options.url);
      const states = await savedStates(client, sandboxNamed(name).sandbox);
      const rows = states.map((each) => [
        ...[each.ref ?? "-", each.created_at, each.reason, each.image],
        each.tags.map((tag) => `tag:${tag}`).join(" "),
      ]);
      const header = ["STATE", "SAVED", "WHY", "IMAGE", "TAGS"];
      await io.stdout(options.json === true ? `${JSON.stringify(states)}\n` : table(header, rows, io.columns));
      return 0;
    },
  }),
];

function stateOf(text: string | undefined): Sandbox["state"] | undefined {
  if (text === undefined) return undefined;
  const state = SANDBOX_STATES.find((each) => each === text);
  if (state === undefined) throw new UsageError(`--state must be one of ${SANDBOX_STATES.join(", ")}`);
  return state;
}

function networkText({ default: rest, allow, deny }: NonNullable<Sandbox["network"]>): string {
  return JSON.stringify(rest === "allow" ? { default: rest, allow, deny } : (allow ?? "record"));
}

/** The fields of a sandbox, a line for each that says something. */
function detailsOf(sandbox: Sandbox): string {
  const { network, error, public_ports: ports } = sandbox;
  const rows: (readonly [string, string | null | undefined])[] = [
    ["name", sandbox.name],
    ["state", sandbox.state],
    ["uuid", sandbox.uuid],
    ["error", error?.message],
    ["image", sandbox.image],
    ["head", sandbox.head],
    ["created", sandbox.created_at],
    ["ends", sandbox.ends_at === null ? null : `${sandbox.ends_at} (${sandbox.on_timeout})`],
    ["idle after", sandbox.idle_timeout === null ? null : `${sandbox.idle_timeout} s`],
    ["user", sandbox.user],
    ["directory", sandbox.cwd],
    ["variables", sandbox.env_names.join(" ")],
    ["network", network === null ? null : networkText(network)],
    ["public ports", ports.join(" ")],
    ["address", addressesOf(sandbox, [])[0]],
  ];
  const lines = rows.flatMap(([name, value]) => (value ? [[name, value] as const] : []));
  const width = Math.max(...lines.map(([name]) => name.length));
  return lines.map(([name, value]) => `${name.padEnd(width)}  ${printable(value)}\n`).join("");
}
