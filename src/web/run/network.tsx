import type { InstanceOperationRequest, NetworkEntry, Operation } from "../../client/types.ts";
import { CopyButton } from "../parts/copy-button.tsx";
import { Empty } from "../parts/empty.tsx";
import { Bytes } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { type Column, Table } from "../parts/lists/table.tsx";
import { Badge } from "../parts/status-mark.tsx";
import type { EventFeed } from "./event-feed-reader.ts";
import { restText, ruleText } from "./form/network-rules.ts";

interface NetworkPanelProps {
  readonly operation: Operation;
  readonly request: InstanceOperationRequest | undefined;
  readonly feed: EventFeed;
}

/** The network rules of a run, and its allowed and refused connections. */
export function NetworkPanel({ operation, request, feed }: NetworkPanelProps) {
  const { result } = operation;
  const audit = operation.network ?? (result !== undefined && "exit_code" in result ? result.network : undefined);
  const network = request?.network;
  if (audit === undefined && (network === undefined || network === "none")) {
    return (
      <Empty
        title="This run has no network"
        text="A sandbox can connect to nothing unless its run asks for hosts that the operator allows."
        command="coppice run --image tag:python --network allow=*.example.org:443 -- python3 job.py"
      />
    );
  }
  const rows = audit?.entries.map(rowOf) ?? liveRows(feed);
  return (
    <section class="stack gap-3 shrink" aria-label="Network">
      {typeof network === "object" ? <Rules network={network} /> : null}
      {rows.length === 0 ? (
        <p class="muted">No connections{audit === undefined ? " yet" : ""}.</p>
      ) : (
        <Table
          label="Hosts"
          columns={audit === undefined ? COLUMNS.slice(0, 3) : COLUMNS}
          rows={rows}
          rowKey={({ key }) => key}
        />
      )}
      {audit?.truncated === true ? <p class="muted">Some connections are missing from this list.</p> : null}
      {audit?.policy === undefined ? null : <Policy rules={audit.policy.map(ruleText)} />}
    </section>
  );
}

function Rules({ network }: { readonly network: Exclude<InstanceOperationRequest["network"], "none" | undefined> }) {
  if (network.record === true) {
    return <p>It may connect to everything that the operator allows, and its connections are recorded.</p>;
  }
  const { allow = [] } = network;
  const rest = restText(network);
  return (
    <div>
      {rest === null ? null : (
        <p>
          <GuestText text={rest} />
        </p>
      )}
      {allow.length === 0 ? null : (
        <>
          <h2 class="row gap-2 text-size strong">Rules</h2>
          <ul class="run-rules">
            {allow.map((rule) => (
              <li key={ruleText(rule)}>
                <GuestText text={ruleText(rule)} isMono />
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}

function Policy({ rules }: { readonly rules: readonly string[] }) {
  const text = rules.join("\n");
  return (
    <div>
      <h2 class="row gap-2 text-size strong">
        Rules that would have been enough <CopyButton text={text} label="Copy the rules" />
      </h2>
      <ul class="run-rules">
        {rules.map((rule) => (
          <li key={rule}>
            <GuestText text={rule} isMono />
          </li>
        ))}
      </ul>
    </div>
  );
}

interface Row {
  readonly key: string;
  readonly host: string;
  readonly port: number | null;
  readonly verdict: string;
  readonly entry: NetworkEntry | null;
}

function rowOf(entry: NetworkEntry): Row {
  const { host, port, verdict } = entry;
  return { key: `${host} ${port} ${verdict}`, host, port, verdict, entry };
}

/** During the run, the first connection of each kind is reported. */
function liveRows({ events }: EventFeed): Row[] {
  return events
    .filter(({ type }) => type === "network")
    .map(({ data }) => {
      const { host, port, verdict } = data as { host: string; port: number | null; verdict: string };
      return { key: `${host} ${port} ${verdict}`, host, port, verdict, entry: null };
    });
}

/** Outcomes of connections, in words. */
const VERDICTS: Readonly<Record<string, string>> = {
  allowed: "Reached",
  denied: "Refused by the rules",
  denied_private: "Refused: not a public address",
  denied_sni: "Refused: no TLS for that name",
  no_such_name: "There is no such name",
  refused: "The host refused it",
  unreachable: "Not reachable",
  timed_out: "The host did not answer",
  limited: "A limit of the operator",
};

function outcome({ port, verdict }: Row): string {
  return verdict === "allowed" && port === null ? "Looked up" : (VERDICTS[verdict] ?? verdict);
}

const COLUMNS: readonly Column<Row>[] = [
  {
    id: "host",
    label: "Host",
    isHeading: true,
    isWide: true,
    cell: ({ host }) => <GuestText text={host} isMono hasTitle />,
  },
  { id: "port", label: "Port", isFigure: true, cell: ({ port }) => port ?? "–" },
  {
    id: "verdict",
    label: "Outcome",
    cell: (row) => <Badge tone={row.verdict === "allowed" ? "neutral" : "warning"}>{outcome(row)}</Badge>,
  },
  { id: "count", label: "Connections", isFigure: true, cell: ({ entry }) => entry?.connections ?? "–" },
  { id: "sent", label: "Sent", isFigure: true, cell: ({ entry }) => <Bytes value={entry?.bytes_sent} /> },
  { id: "received", label: "Received", isFigure: true, cell: ({ entry }) => <Bytes value={entry?.bytes_received} /> },
  {
    id: "addresses",
    label: "Addresses",
    cell: ({ entry }) => <span class="mono">{entry?.addresses.join(" ") || "–"}</span>,
  },
];
