import { answerOf } from "../../client/client.ts";
import { ResponseError } from "../../client/errors.ts";
import type { LogLine, Operation, OperationsQuery } from "../../client/types.ts";
import { given } from "../../domain/given.ts";
import { OPERATION_KINDS, OPERATION_STATUSES } from "../../domain/operation.ts";
import { shownDuration, shownSize } from "../../domain/text/shown.ts";
import { CLIENT_OPTIONS, openClient } from "../client.ts";
import {
  CliError,
  type Command,
  command,
  EXIT_FAILED,
  EXIT_INTERRUPTED,
  EXIT_USAGE,
  expectPositionals,
  JSON_OPTION,
  secondsOf,
} from "../command.ts";
import { auditOf, networkCommand, refusalsOf } from "../network.ts";
import { listed, PAGING_OPTIONS } from "../paging.ts";
import { printable, table } from "../table.ts";
import { waitForOperation } from "../wait.ts";

export const operationCommands: readonly Command[] = [
  command({
    name: "op ls",
    summary: "list operations, newest first",
    synopsis: "[OPTIONS]",
    examples: ["coppice op ls --status FAILED --since 2h"],
    options: {
      status: {
        type: "string",
        value: "STATUS",
        choices: OPERATION_STATUSES,
        doc: "PENDING, EXECUTING, SUCCESS, FAILED or CANCELLED",
      },
      kind: { type: "string", value: "KIND", choices: OPERATION_KINDS, doc: OPERATION_KINDS.join(", ") },
      ...PAGING_OPTIONS,
      ...JSON_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const client = openClient(environment, options.url);
      const { status, kind } = options;
      // The appliance refuses a status or kind that it does not know.
      const filters = given({ status, kind }) as Pick<OperationsQuery, "status" | "kind">;
      const operations = await listed({
        read: (page) => answerOf(client.v1.operations.get({ query: { ...filters, ...page } })),
        options,
        io,
        keyOf: (operation) => operation.id,
      });
      const text = table(["ID", "KIND", "STATUS", "CREATED", "TOOK", "OUTCOME"], operations.map(row), io.columns);
      await io.stdout(options.json === true ? `${JSON.stringify(operations)}\n` : text);
      return 0;
    },
  }),
  command({
    name: "op show",
    summary: "show one operation",
    synopsis: "ID [--json]",
    description: "coppice logs ID prints the output of an instance's command.",
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [id = ""] = expectPositionals(positionals, "ID");
      const client = openClient(environment, options.url);
      const operation = await answerOf(client.v1.operations({ id: encodeURIComponent(id) }).get());
      await io.stdout(options.json === true ? `${JSON.stringify(operation, null, 2)}\n` : details(operation));
      return 0;
    },
  }),
  command({
    name: "op wait",
    summary: "wait until an operation has ended",
    synopsis: "ID [--json]",
    description: "Prints its final status. The exit code is 0 for SUCCESS, 1 otherwise. Ctrl-C ends only the wait.",
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [id = ""] = expectPositionals(positionals, "ID");
      const client = openClient(environment, options.url);
      const { operation } = await waitForOperation({
        client,
        io,
        id,
        label: `waiting for ${id}`,
        cancelOnInterrupt: false,
      });
      if (operation === null) throw new CliError("", EXIT_INTERRUPTED);
      await io.stdout(options.json === true ? `${JSON.stringify(operation)}\n` : `${operation.status}\n`);
      return operation.status === "SUCCESS" ? 0 : EXIT_FAILED;
    },
  }),
  command({
    name: "op log",
    summary: "show the appliance's log lines about an operation",
    synopsis: "ID [--json]",
    description:
      "The appliance stores the log lines of its latest operations until it restarts; the journal of its machine\n" +
      "has everything. coppice logs shows the output of an instance.",
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [id = ""] = expectPositionals(positionals, "ID");
      const client = openClient(environment, options.url);
      const lines = await answerOf(client.v1.operations({ id: encodeURIComponent(id) }).log.get());
      await io.stdout(
        lines.map((line) => (options.json === true ? `${JSON.stringify(line)}\n` : logLine(line))).join(""),
      );
      if (lines.length === 0) {
        io.stderr(`the appliance no longer has lines about it; on its machine: journalctl -u coppice --grep ${id}\n`);
      }
      return 0;
    },
  }),
  command({
    name: "op extend",
    summary: "give a running instance more time",
    synopsis: "ID DURATION",
    description:
      "Lets the command of an instance run for DURATION from now on: 60 (seconds), 90s, 30m, 2h, 7d. The time\n" +
      "can only grow, up to the longest that the appliance allows.",
    examples: ["coppice op extend 0197a1d0-5a5e-7000-8000-3c6e0b8a9c15 30m"],
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [id = "", duration = ""] = expectPositionals(positionals, "ID", "DURATION");
      const seconds = secondsOf("DURATION", duration);
      const client = openClient(environment, options.url);
      const uuid = encodeURIComponent(id);
      const operation = await answerOf(client.v1.operations({ id: uuid }).get());
      const { started_at: startedAt, finished_at: finishedAt, status } = operation;
      if (finishedAt !== undefined) throw new CliError(`operation ${id} has ended (${status})`);
      // The limit counts from the command's start, a little after the operation's: so the time is at least the requested one.
      const ran = startedAt === undefined ? 0 : Math.max(0, Date.now() - Date.parse(startedAt)) / 1000;
      const timeout = Math.ceil(ran + seconds);
      const extended = await answerOf(client.v1.instances({ uuid }).patch({ timeout })).catch((error: unknown) => {
        throw tooLong(error, ran) ?? error;
      });
      if (options.json === true) await io.stdout(`${JSON.stringify(extended)}\n`);
      else io.stderr(`it may run until ${new Date(Date.now() + seconds * 1000).toISOString()}\n`);
      return 0;
    },
  }),
  networkCommand,
  command({
    name: "op cancel",
    summary: "cancel an operation",
    synopsis: "ID",
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [id = ""] = expectPositionals(positionals, "ID");
      const client = openClient(environment, options.url);
      const operation = await answerOf(client.v1.operations({ id: encodeURIComponent(id) }).delete());
      if (options.json === true) await io.stdout(`${JSON.stringify(operation)}\n`);
      return 0;
    },
  }),
];

/** An error with the time that is left, where the appliance's error counts from the start; null for any other error. */
function tooLong(error: unknown, ranSeconds: number): CliError | null {
  if (!(error instanceof ResponseError) || error.details["field"] !== "timeout") return null;
  const { maximum } = error.details;
  if (typeof maximum !== "number") return null;
  const left = Math.max(0, Math.floor(maximum - ranSeconds));
  return new CliError(`at most ${left}s from now on: the appliance allows ${maximum}s in all`, EXIT_USAGE, {
    cause: error,
  });
}

function logLine({ time, level, message, phases, ...fields }: LogLine): string {
  const pairs = Object.entries(fields).map(([name, value]) => ` ${name}=${value}`);
  const steps = Object.entries(phases ?? {}).map(([name, ms]) => ` ${name}=${ms}`);
  return `${printable(`${time} ${level.toUpperCase().padEnd(5)} ${message}${pairs.join("")}${steps.join("")}`)}\n`;
}

/** One line for each fact that is known. */
function details(operation: Operation): string {
  const { id, kind, status, duration_ms: durationMs, result, error } = operation;
  const facts: [string, string | undefined][] = [
    ["ID", id],
    ["KIND", kind],
    ["STATUS", status],
    ["CREATED", operation.created_at],
    ["STARTED", operation.started_at],
    ["FINISHED", operation.finished_at],
    ["TOOK", durationMs === undefined ? undefined : shownDuration(durationMs)],
    ["ERROR", error === undefined ? undefined : `${error.error}: ${error.message}`],
    ...(result === undefined ? [] : resultFacts(result)),
    ...networkFacts(operation),
  ];
  const rows = facts.filter((fact): fact is [string, string] => fact[1] !== undefined);
  return rows.map(([name, value]) => `${name.padEnd(10)} ${printable(value)}\n`).join("");
}

function networkFacts(operation: Operation): [string, string | undefined][] {
  const audit = auditOf(operation);
  if (audit === null) return [];
  const reached = audit.entries.filter(({ verdict }) => verdict === "allowed").length;
  return [
    ["NETWORK", `reached ${reached}${audit.truncated ? " and more" : ""}`],
    ["REFUSED", refusalsOf(audit) || undefined],
  ];
}

function resultFacts(result: NonNullable<Operation["result"]>): [string, string | undefined][] {
  if (!("exit_code" in result)) {
    const { image, tag } = result;
    return [
      ["IMAGE", image],
      ["TAG", tag],
      ["DIGEST", "digest" in result ? result.digest : undefined],
      ["SIZE", "size_bytes" in result ? shownSize(result.size_bytes) : undefined],
      ["PAUSE", "pause_ms" in result ? `${result.pause_ms} ms` : undefined],
    ];
  }
  const why = [...(result.timed_out ? ["timed out"] : []), ...(result.oom_killed === true ? ["out of memory"] : [])];
  return [
    ["EXIT CODE", `${result.exit_code}${why.length === 0 ? "" : ` (${why.join(", ")})`}`],
    ["CPU TIME", shownDuration(result.cpu_time_ms)],
    ["MEMORY", shownSize(result.memory_bytes)],
    ["ISOLATION", result.isolation],
    ["IMAGE", result.image],
  ];
}

function row(operation: Operation): string[] {
  const { id, kind, status, created_at: createdAt, duration_ms: durationMs } = operation;
  return [id, kind, status, createdAt, durationMs === undefined ? "-" : shownDuration(durationMs), outcome(operation)];
}

function outcome({ status, result, error }: Operation): string {
  if (status === "CANCELLED") return "-";
  if (error !== undefined) return `${error.error}: ${error.message}`;
  if (result === undefined) return "-";
  return "exit_code" in result ? `exit ${result.exit_code}` : `image ${result.image}`;
}
