import { answerOf } from "../client/client.ts";
import { given } from "../client/given.ts";
import type { Operation, OperationsQuery } from "../client/types.ts";
import { OPERATION_KINDS, OPERATION_STATUSES } from "../domain/operation.ts";
import { CLIENT_OPTIONS, openClient } from "./client.ts";
import {
  CliError,
  type Command,
  command,
  EXIT_FAILED,
  EXIT_INTERRUPTED,
  expectPositionals,
  JSON_OPTION,
} from "./command.ts";
import { listed, PAGING_OPTIONS } from "./paging.ts";
import { printable, shownDuration, shownSize, table } from "./table.ts";
import { waitForOperation } from "./wait.ts";

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
      kind: { type: "string", value: "KIND", choices: OPERATION_KINDS, doc: "image_import, instance or checkpoint" },
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
    description: "coppice logs ID --output prints the output of an instance's command.",
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
    description: "Prints its final status. The exit code is 0 for SUCCESS, 1 otherwise. Ctrl-C ends only the waiting.",
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
  ];
  const known = facts.filter((fact): fact is [string, string] => fact[1] !== undefined);
  return known.map(([name, value]) => `${name.padEnd(10)} ${printable(value)}\n`).join("");
}

function resultFacts(result: NonNullable<Operation["result"]>): [string, string | undefined][] {
  if (!("exit_code" in result)) {
    const { image, tag, size_bytes: sizeBytes } = result;
    return [
      ["IMAGE", image],
      ["TAG", tag],
      ["DIGEST", "digest" in result ? result.digest : undefined],
      ["SIZE", shownSize(sizeBytes)],
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
