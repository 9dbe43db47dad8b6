import { answerOf } from "../client/client.ts";
import type { NetworkAudit, NetworkEntry, Operation } from "../client/types.ts";
import { isTerminal } from "../domain/operation.ts";
import { shownSize } from "../domain/text/shown.ts";
import { CLIENT_OPTIONS, openClient } from "./client.ts";
import { CliError, command, expectPositionals, JSON_OPTION, UsageError } from "./command.ts";
import type { Io } from "./io.ts";
import { printable, table } from "./table.ts";

/** Number of refused hosts that are named where only a few lines fit. */
const NAMED_COUNT_MAX = 5;

export const networkCommand = command({
  name: "op network",
  summary: "show the network connections of an instance",
  synopsis: "ID [--policy] [--json]",
  description:
    "Lists the hosts that an ended instance connected to or tried to, with the outcomes. --policy prints the\n" +
    "rules that a recorded run (coppice run --network record) needed, as a file for --network @FILE.",
  examples: [
    "coppice op network ID --policy > policy.json",
    "coppice run --network @policy.json --image tag:x -- make",
  ],
  options: {
    policy: { type: "boolean", doc: "print the rules of a recorded run, as JSON" },
    ...JSON_OPTION,
    ...CLIENT_OPTIONS,
  },
  async run({ options, positionals, io, environment }) {
    const [id = ""] = expectPositionals(positionals, "ID");
    const { policy = false, json = false } = options;
    if (policy && json) throw new UsageError("--policy and --json exclude each other");
    const client = openClient(environment, options.url);
    const operation = await answerOf(client.v1.operations({ id: encodeURIComponent(id) }).get());
    const audit = auditOf(operation);
    if (audit === null) throw new CliError(withoutAudit(operation));
    if (policy) await io.stdout(policyText(audit, id));
    else await io.stdout(json ? `${JSON.stringify(audit, null, 2)}\n` : entriesTable(audit, io));
    const { policies = [] } = audit;
    if (!policy && !json && policies.length > 0)
      io.stderr(`the network changed ${policies.length - 1} times; --json shows it\n`);
    if (audit.truncated) io.stderr("the appliance did not store all entries\n");
    return 0;
  },
});

/** The network audit of an ended instance; null when it had no network. */
export function auditOf({ network, result }: Operation): NetworkAudit | null {
  return network ?? (result !== undefined && "exit_code" in result ? (result.network ?? null) : null);
}

/** The refused and unreachable hosts of an instance, in a few words; empty for none. */
export function refusalsOf({ entries }: NetworkAudit): string {
  const refused = entries.filter(({ verdict }) => verdict !== "allowed");
  const named = refused.slice(0, NAMED_COUNT_MAX).map((entry) => `${hostOf(entry)} (${entry.verdict})`);
  const rest = refused.length - named.length;
  return printable([...named, ...(rest === 0 ? [] : [`${rest} more`])].join(", "));
}

/** Prints which hosts an ended run did not reach, and how many rules it recorded. */
export function tellNetwork(operation: Operation, io: Io): void {
  const audit = auditOf(operation);
  if (audit === null) return;
  const refused = refusalsOf(audit);
  if (refused !== "") io.stderr(`coppice: not reached: ${refused}; coppice op network ${operation.id} shows all\n`);
  if (audit.policy !== undefined) {
    const { length } = audit.policy;
    io.stderr(
      `coppice: recorded ${length} ${length === 1 ? "rule" : "rules"}; coppice op network ${operation.id} --policy prints the policy\n`,
    );
  }
}

function withoutAudit({ id, status }: Operation): string {
  return isTerminal(status) ? `operation ${id} had no network` : `operation ${id} has not ended (${status})`;
}

function policyText({ policy }: NetworkAudit, id: string): string {
  if (policy === undefined) throw new CliError(`operation ${id} was not recorded (coppice run --network record)`);
  const rules = policy.map((rule) => `    ${JSON.stringify(rule)}`).join(",\n");
  return `{\n  "allow": [${rules === "" ? "" : `\n${rules}\n  `}]\n}\n`;
}

function entriesTable({ entries }: NetworkAudit, io: Io): string {
  const header = ["HOST", "PORT", "VERDICT", "COUNT", "SENT", "RECEIVED", "ADDRESSES"];
  const rows = entries.map(({ host, port, verdict, connections, ...entry }) => [
    ...[host, String(port ?? "-"), verdict, String(connections)],
    ...[shownSize(entry.bytes_sent), shownSize(entry.bytes_received), entry.addresses.join(" ")],
  ]);
  return table(header, rows, io.columns);
}

function hostOf({ host, port }: NetworkEntry): string {
  if (port === null) return host;
  return `${host.includes(":") ? `[${host}]` : host}:${port}`;
}
