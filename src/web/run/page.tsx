import { answerOf } from "../../client/client.ts";
import { pathOfOperation } from "../../client/operation-events.ts";
import { hasEnded } from "../../client/operations.ts";
import { COMMAND_SPID } from "../../client/processes.ts";
import type { Operation, OperationRequest } from "../../client/types.ts";
import { given } from "../../domain/given.ts";
import { queryOf } from "../browser/links.ts";
import { navigate, useRoute } from "../browser/router.ts";
import { api } from "../data/api.ts";
import type { Problem } from "../data/problem.ts";
import { useReload, useResource } from "../data/resource.ts";
import { useSession } from "../data/session.ts";
import { endOf } from "../operations/outcome.ts";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { ButtonLink } from "../parts/button.tsx";
import { Identifier } from "../parts/copy-button.tsx";
import { Empty } from "../parts/empty.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { kindLabel, StatusMark } from "../parts/status-mark.tsx";
import { Tabs } from "../parts/tabs.tsx";
import { shortId } from "../text/format.ts";
import { RunActions } from "./actions.tsx";
import { useEventFeed } from "./event-feed.ts";
import { countOfTypes, type EventFeed } from "./event-feed-reader.ts";
import { EventList } from "./events.tsx";
import { Facts } from "./facts.tsx";
import { NetworkPanel } from "./network.tsx";
import { Output } from "./output/output.tsx";
import { ProcessPanel } from "./processes.tsx";
import { ProgressPanel } from "./progress.tsx";
import { requestText } from "./request-text.ts";
import { StandardInput } from "./standard-input.tsx";
import { TerminalPanel } from "./terminal/terminal-panel.tsx";
import { UsageCharts } from "./usage/usage.tsx";
import { useUsage } from "./usage/use-usage.ts";

type ViewName = "output" | "terminal" | "processes" | "usage" | "network" | "events";

/** One operation: a run with its output, its processes and its terminal, or the progress of an import or a checkpoint. */
export function RunPage({ id }: { readonly id: string }) {
  const route = api.v1.operations({ id: encodeURIComponent(id) });
  const operation = useResource(`operation ${id}`, (signal) => answerOf(route.get({ fetch: { signal } })));
  const request = useResource(`operation ${id} request`, (signal) =>
    answerOf(route.request.get({ fetch: { signal } })),
  );
  const feed = useEventFeed(pathOfOperation(id));
  // The events say when there is something new to be read.
  const turns = countOfTypes(feed, TURNS);
  useReload(turns, operation.reload);
  const { value } = operation;
  const heading =
    request.value === undefined ? `${kindLabel(value?.kind ?? "instance")} ${shortId(id)}` : requestText(request.value);
  if (value === undefined && operation.problem !== undefined) {
    return <Missing id={id} problem={operation.problem} onRetry={operation.reload} />;
  }
  return (
    <div class="run-page stack gap-4 fill shrink">
      <PageHeader
        heading={
          <span class="run-heading anywhere">
            <GuestText text={heading} isMono isLong hasTitle />
          </span>
        }
        title={heading.slice(0, 80)}
        crumbs={[{ label: "Runs", href: "/runs" }, { label: <span class="mono">{shortId(id)}</span> }]}
        about={
          value === undefined ? (
            <Skeleton lines={1} />
          ) : (
            <div class="run-about row wrap gap-1-3">
              <StatusMark status={value.status} {...endOf(value)} />
              <Identifier id={id} />
            </div>
          )
        }
        actions={
          value === undefined ? null : (
            <RunActions operation={value} request={request.value} onChange={operation.reload} />
          )
        }
      />
      {operation.problem === undefined ? null : <ProblemNote problem={operation.problem} />}
      {value === undefined ? (
        <Skeleton lines={8} label="Loading the run" />
      ) : value.kind === "instance" ? (
        <Run operation={value} request={request.value} feed={feed} />
      ) : (
        <>
          <Facts operation={value} request={request.value} feed={feed} />
          <ProgressPanel operation={value} feed={feed} />
          <EventList feed={feed} />
        </>
      )}
    </div>
  );
}

/** Events after which the operation reads differently. */
const TURNS = ["init", "spawn", "exit", "shutdown", "completion"] as const;
const PROCESS_TURNS = ["spawn", "exit"] as const;

interface RunProps {
  readonly operation: Operation;
  readonly request: OperationRequest | undefined;
  readonly feed: EventFeed;
}

function Run({ operation, request, feed }: RunProps) {
  const { parameters } = useRoute();
  const { may } = useSession();
  const instance = request?.kind === "instance" ? request : undefined;
  const isOver = hasEnded(operation);
  const isRunning = operation.status === "EXECUTING" && countOfTypes(feed, ["spawn"]) > 0;
  const usage = useUsage(operation.id, isRunning);
  const views = viewsOf({ hasTerminal: may("instances:exec"), hasProcesses: may("instances:exec") });
  const initial: ViewName = instance?.pty !== undefined && may("instances:exec") ? "terminal" : "output";
  const view = views.find(({ name }) => name === parameters.get("view"))?.name ?? initial;
  const spid = Number.parseInt(parameters.get("process") ?? "", 10) || null;
  const linkTo = (name: ViewName, process?: number) => queryOf({ view: name === initial ? undefined : name, process });
  const show = (name: ViewName, process?: number) => navigate(linkTo(name, process));
  const processCount = countOfTypes(feed, ["spawn"]);
  return (
    <>
      <Facts operation={operation} request={request} feed={feed} usage={usage} />
      <Tabs
        label="Parts of the run"
        current={view}
        tabs={views.map(({ name, label }) => {
          const count = name === "processes" && processCount > 0 ? processCount : undefined;
          return { id: name, label, href: linkTo(name), ...given({ count }) };
        })}
      />
      {view === "output" ? <OutputOf operation={operation} spid={spid ?? COMMAND_SPID} feed={feed} /> : null}
      {view === "output" && instance?.stdin_open === true && instance.pty === undefined && isRunning ? (
        <StandardInput process={{ instance: operation.id, spid: COMMAND_SPID }} />
      ) : null}
      {view === "terminal" ? (
        <TerminalPanel
          operation={operation}
          isOver={isOver}
          isRunning={isRunning}
          ownPty={instance?.pty !== undefined}
          spid={spid}
          onShow={(process) => show("terminal", process)}
          onDetach={() => (spid === null ? show("output") : navigate(linkTo("processes")))}
        />
      ) : null}
      {view === "processes" ? (
        <ProcessPanel
          place={{ instance: operation.id }}
          isRunning={isRunning}
          turns={countOfTypes(feed, PROCESS_TURNS)}
          about="They share the files and the network of the command, and end with it."
          onOutput={(process) => show("output", process)}
          onTerminal={(process) => show("terminal", process)}
        />
      ) : null}
      {view === "usage" ? (
        isRunning || usage.samples.latest !== null ? (
          <UsageCharts series={usage} />
        ) : (
          <Empty
            title="No figures"
            text={
              isOver
                ? "Usage is measured while a run is in progress. Its totals are above."
                : "Usage appears when the command starts."
            }
          />
        )
      ) : null}
      {view === "network" ? <NetworkPanel operation={operation} request={instance} feed={feed} /> : null}
      {view === "events" ? <EventList feed={feed} /> : null}
    </>
  );
}

function viewsOf({ hasTerminal, hasProcesses }: { readonly hasTerminal: boolean; readonly hasProcesses: boolean }) {
  const all: readonly { readonly name: ViewName; readonly label: string; readonly isThere: boolean }[] = [
    { name: "output", label: "Output", isThere: true },
    { name: "terminal", label: "Terminal", isThere: hasTerminal },
    { name: "processes", label: "Processes", isThere: hasProcesses },
    { name: "usage", label: "CPU and memory", isThere: true },
    { name: "network", label: "Network", isThere: true },
    { name: "events", label: "Events", isThere: true },
  ];
  return all.filter(({ isThere }) => isThere);
}

function OutputOf({
  operation,
  spid,
  feed,
}: {
  readonly operation: Operation;
  readonly spid: number;
  readonly feed: EventFeed;
}) {
  const problem = feed.problem;
  return (
    <>
      {problem === undefined ? null : <ProblemNote problem={problem} title="The events of the run could not be read" />}
      {spid === COMMAND_SPID ? (
        <Output path={pathOfOperation(operation.id)} spid={spid} feed={feed} emptyText={emptyText(operation, feed)} />
      ) : (
        <OutputOfProcess operation={operation} spid={spid} />
      )}
    </>
  );
}

function OutputOfProcess({ operation, spid }: { readonly operation: Operation; readonly spid: number }) {
  const feed = useEventFeed(pathOfOperation(operation.id), { spid });
  return (
    <>
      <p class="row wrap gap-2">
        Output of process {spid}.{" "}
        <ButtonLink href={`/runs/${operation.id}`} isSmall tone="quiet">
          Show the output of the command
        </ButtonLink>
      </p>
      <Output path={pathOfOperation(operation.id)} spid={spid} feed={feed} emptyText={emptyText(operation, feed)} />
    </>
  );
}

function emptyText(operation: Operation, { isOver }: EventFeed): string {
  if (operation.status === "PENDING") return "The run is waiting. Its output appears here.";
  return isOver ? "Nothing was written." : "Nothing was written yet.";
}

/** The operation does not exist, or cannot be read. */
function Missing({
  id,
  problem,
  onRetry,
}: {
  readonly id: string;
  readonly problem: Problem;
  readonly onRetry: () => void;
}) {
  const isGone = problem.status === 404 || problem.status === 400;
  return (
    <div class="run-page stack gap-4 fill shrink">
      <PageHeader
        heading={isGone ? "Run not found" : "The run cannot be shown"}
        crumbs={[{ label: "Runs", href: "/runs" }, { label: <span class="mono">{shortId(id)}</span> }]}
      />
      {isGone ? (
        <Empty
          title="No such run"
          text={
            "The operator sets how long runs and their output are kept; their images stay among the branches. " +
            "Runs of other accounts are not shown."
          }
          action={<ButtonLink href="/runs">Show all runs</ButtonLink>}
        />
      ) : (
        <ProblemNote problem={problem} onRetry={onRetry} />
      )}
    </div>
  );
}
