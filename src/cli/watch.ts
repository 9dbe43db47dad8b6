import { answerOf, type Client } from "../client/client.ts";
import { ResponseError } from "../client/errors.ts";
import type { LogLine, Operation, OutputObject, Usage } from "../client/types.ts";
import { LIMIT_MAX } from "../domain/listing.ts";
import { CLIENT_OPTIONS, openClient } from "./client.ts";
import { CliError, type Command, command, expectPositionals, JSON_OPTION } from "./command.ts";
import type { Io } from "./io.ts";
import { printable, shownDuration, shownSize, table } from "./table.ts";

type Active = Operation & { readonly usage: Usage | null };

export const watchCommands: readonly Command[] = [
  command({
    name: "ps",
    summary: "list waiting and running operations, with their CPU time and memory",
    synopsis: "[--json]",
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const client = openClient(environment, options.url);
      const now = Date.now();
      const lists = await Promise.all(
        (["EXECUTING", "PENDING"] as const).map((status) =>
          answerOf(client.v1.operations.get({ query: { status, limit: LIMIT_MAX } })),
        ),
      );
      const active = await Promise.all(
        lists
          .flat()
          .map(async (operation): Promise<Active> => ({ ...operation, usage: await usageOf(client, operation) })),
      );
      const rows = active.map((operation) => row(operation, now));
      const text = table(["ID", "KIND", "STATUS", "SINCE", "CPU TIME", "MEMORY"], rows, io.columns);
      await io.stdout(options.json === true ? `${JSON.stringify(active)}\n` : text);
      return 0;
    },
  }),
  command({
    name: "logs",
    summary: "show the log of an operation",
    synopsis: "ID [--output | --json]",
    description:
      "The appliance keeps the log of its latest operations until it restarts; the journal of its machine has\n" +
      "everything. --output prints the output of an instance's command, to standard output and error.",
    options: {
      output: { type: "boolean", doc: "print the output of the command instead" },
      ...JSON_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [id = ""] = expectPositionals(positionals, "ID");
      const client = openClient(environment, options.url);
      const route = client.v1.operations({ id: encodeURIComponent(id) });
      if (options.output === true) return await printOutput(await answerOf(route.get()), io);
      const lines = await answerOf(route.log.get());
      await io.stdout(
        lines.map((line) => (options.json === true ? `${JSON.stringify(line)}\n` : shown(line))).join(""),
      );
      if (lines.length === 0) {
        io.stderr(`the appliance has no lines about it any more; on its machine: journalctl -u coppice --grep ${id}\n`);
      }
      return 0;
    },
  }),
];

/** Null for an import, and for an instance that has no machine yet or has just ended. */
async function usageOf(client: Client, { id, kind, status }: Operation): Promise<Usage | null> {
  if (kind !== "instance" || status !== "EXECUTING") return null;
  try {
    return await answerOf(client.v1.instances({ uuid: id }).stats.get({ query: { once: true } }));
  } catch (error) {
    if (error instanceof ResponseError && (error.status === 409 || error.status === 404)) return null;
    throw error;
  }
}

function row({ id, kind, status, created_at: createdAt, usage }: Active, now: number): string[] {
  const since = shownDuration(Math.max(0, now - Date.parse(createdAt)));
  const figures = usage === null ? ["-", "-"] : [shownDuration(usage.cpu_time_ms), shownSize(usage.memory_bytes)];
  return [id, kind, status, since, ...figures];
}

function shown({ time, level, message, phases, ...fields }: LogLine): string {
  const pairs = Object.entries(fields).map(([name, value]) => ` ${name}=${value}`);
  const steps = Object.entries(phases ?? {}).map(([name, ms]) => ` ${name}=${ms}`);
  return `${printable(`${time} ${level.toUpperCase().padEnd(5)} ${message}${pairs.join("")}${steps.join("")}`)}\n`;
}

async function printOutput({ id, status, result }: Operation, io: Io): Promise<number> {
  if (result === undefined || !("stdout" in result) || result.stdout === undefined || result.stderr === undefined) {
    throw new CliError(`operation ${id} (${status}) has no output`);
  }
  await io.stdout(bytesOf(result.stdout));
  io.stderr(bytesOf(result.stderr));
  return 0;
}

function bytesOf({ content, encoding }: OutputObject): Uint8Array {
  return Buffer.from(content, encoding === "base64" ? "base64" : "utf8");
}
