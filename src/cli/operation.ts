import type { Operation } from "../domain/operation.ts";
import { ApiClient, CLIENT_OPTIONS } from "./client.ts";
import {
  CliError,
  type Command,
  command,
  EXIT_FAILED,
  EXIT_INTERRUPTED,
  expectPositionals,
  integerOption,
} from "./command.ts";
import { shownDuration, table } from "./table.ts";
import { waitForOperation } from "./wait.ts";

const JSON_OPTION = { json: { type: "boolean", doc: "print JSON" } } as const;

export const operationCommands: readonly Command[] = [
  command({
    name: "op ls",
    summary: "list operations, newest first",
    synopsis: "[OPTIONS]",
    examples: ["coppice op ls --status FAILED --since 2h"],
    options: {
      status: { type: "string", value: "STATUS", doc: "PENDING, EXECUTING, SUCCESS, FAILED or CANCELLED" },
      kind: { type: "string", value: "KIND", doc: "image_import or instance" },
      since: { type: "string", value: "TIME", doc: "made at or after this: ISO 8601, or an age such as 15m, 2h, 3d" },
      until: { type: "string", value: "TIME", doc: "made at or before this" },
      limit: { type: "string", value: "COUNT", doc: "at most this many, up to 1000 (default: 100)" },
      ...JSON_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const { status, kind, since, until } = options;
      const client = new ApiClient(environment, options.url);
      const query = { status, kind, since, until, limit: integerOption("limit", options.limit, 1) };
      const operations = await client.json<Operation[]>("GET", "/operations", { query });
      const text = table(["ID", "KIND", "STATUS", "CREATED", "TOOK", "OUTCOME"], operations.map(row));
      await io.stdout(options.json === true ? `${JSON.stringify(operations)}\n` : text);
      return 0;
    },
  }),
  command({
    name: "op show",
    summary: "show one operation as JSON",
    synopsis: "ID",
    options: CLIENT_OPTIONS,
    async run({ options, positionals, io, environment }) {
      const [id = ""] = expectPositionals(positionals, "ID");
      const client = new ApiClient(environment, options.url);
      const operation = await client.json<Operation>("GET", `/operations/${encodeURIComponent(id)}`);
      await io.stdout(`${JSON.stringify(operation, null, 2)}\n`);
      return 0;
    },
  }),
  command({
    name: "op wait",
    summary: "wait until an operation has ended",
    synopsis: "ID [--json]",
    description: "Prints how it ended. The exit code is 0 for SUCCESS, 1 otherwise. Ctrl-C ends only the waiting.",
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [id = ""] = expectPositionals(positionals, "ID");
      const client = new ApiClient(environment, options.url);
      const path = encodeURIComponent(id);
      const { operation } = await waitForOperation({
        client,
        io,
        id: path,
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
    summary: "ask for the end of an operation",
    synopsis: "ID",
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [id = ""] = expectPositionals(positionals, "ID");
      const client = new ApiClient(environment, options.url);
      const operation = await client.json<Operation>("DELETE", `/operations/${encodeURIComponent(id)}`);
      if (options.json === true) await io.stdout(`${JSON.stringify(operation)}\n`);
      return 0;
    },
  }),
];

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
