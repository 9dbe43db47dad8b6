import { readSandbox } from "../../client/sandboxes.ts";
import type { Sandbox } from "../../client/types.ts";
import { useSeconds } from "../browser/clock.ts";
import { useRoute } from "../browser/router.ts";
import { useInterval } from "../browser/use-interval.ts";
import { api } from "../data/api.ts";
import { Problem } from "../data/problem.ts";
import { useReload, useResource } from "../data/resource.ts";
import { useSession } from "../data/session.ts";
import { ImageLink } from "../operations/image-link.tsx";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { Button, ButtonLink } from "../parts/button.tsx";
import { Identifier } from "../parts/copy-button.tsx";
import { Empty } from "../parts/empty.tsx";
import { Age, Duration, Figure } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { Menu } from "../parts/menu.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { LabelMark } from "../parts/status-mark.tsx";
import { Tabs } from "../parts/tabs.tsx";
import { useEventFeed } from "../run/event-feed.ts";
import { countOfTypes, type EventFeed } from "../run/event-feed-reader.ts";
import { restText, ruleText } from "../run/form/network-rules.ts";
import { bytesText, shortId } from "../text/format.ts";
import { type Asking, Question, useAsking } from "./actions/questions.tsx";
import { Files } from "./files/files.tsx";
import { HistoryPanel } from "./history.tsx";
import { linkTo, parseLink, type SandboxLink, type SandboxViewName, VIEWS } from "./link.ts";
import { leftMs, lifeText } from "./model/life.ts";
import { ACTIONS, isPassing, isPossible, STATE_LABELS } from "./model/states.ts";
import { PortsPanel } from "./ports.tsx";
import { ProcessesPanel } from "./processes.tsx";
import { Story } from "./story.tsx";
import { TerminalPanel } from "./terminal.tsx";

/** Process number of events that belong to no process: changes of the state among them, and no output. */
const AGENT_SPID = 0;
const TURNS = ["state", "ends_soon", "checkpoint", "adopted"] as const;
/** Time between two readings, in `milliseconds`: no event reports a changed name or deadline. */
const READ_MS = 10_000;
const READ_SOON_MS = 1_000;

const LABELS: Readonly<Record<SandboxViewName, string>> = {
  files: "Files",
  terminal: "Terminal",
  history: "Saved states",
  processes: "Processes",
  ports: "Ports",
  events: "Events",
};

/** One sandbox: its state, files, terminal, saved states, processes, ports and events. */
export function SandboxPage({ id }: { readonly id: string }) {
  useRoute();
  // The raw query: paths are bytes, which its decoded form would lose.
  const link = parseLink(id, location.search);
  const feed = useEventFeed(`/sandboxes/${encodeURIComponent(id)}`, { spid: AGENT_SPID });
  const { value, problem, reload } = useResource(`sandbox ${id}`, (signal) => readSandbox(api, id, signal));
  const turns = countOfTypes(feed, TURNS);
  useReload(turns, reload);
  useInterval(value !== undefined && isPassing(value.state) ? READ_SOON_MS : READ_MS, reload);
  const asking = useAsking(reload);
  if (value === undefined && problem !== undefined) return <Missing id={id} problem={problem} onRetry={reload} />;
  const name = value?.name ?? shortId(id);
  return (
    <div class="image stack gap-4 fill shrink">
      <PageHeader
        heading={<GuestText text={name} isMono />}
        title={name}
        crumbs={[{ label: "Sandboxes", href: "/sandboxes" }, { label: <GuestText text={name} /> }]}
        about={value === undefined ? <Skeleton lines={1} label="Loading the sandbox" /> : <About sandbox={value} />}
        actions={value === undefined ? null : <Actions sandbox={value} asking={asking} />}
      />
      {problem === undefined ? null : <ProblemNote problem={problem} onRetry={reload} />}
      <Question asking={asking} />
      {value === undefined ? null : <Sections sandbox={value} link={link} feed={feed} turns={turns} asking={asking} />}
    </div>
  );
}

function About({ sandbox }: { readonly sandbox: Sandbox }) {
  return (
    <div class="row wrap gap-1-5">
      <LabelMark label={STATE_LABELS[sandbox.state]} />
      <Identifier id={sandbox.uuid} />
      <span>
        opened <Age at={sandbox.created_at} />
      </span>
    </div>
  );
}

/** The likely actions as buttons, each with its effect as its title, and the others in a menu. */
function Actions({ sandbox, asking }: { readonly sandbox: Sandbox; readonly asking: Asking }) {
  const { may } = useSession();
  const buttons = (["pause", "checkpoint", "resume"] as const).filter((action) =>
    isPossible(action, sandbox.state, may),
  );
  const labels: readonly string[] = buttons.map((action) => ACTIONS[action].label);
  const items = asking.itemsFor(sandbox).filter(({ label, href }) => href === undefined && !labels.includes(label));
  return (
    <>
      {buttons.map((action) => (
        <Button
          key={action}
          icon={ACTIONS[action].icon}
          tone={action === "resume" ? "primary" : "plain"}
          title={ACTIONS[action].effect}
          onClick={() => asking.ask({ sandbox, action })}
        >
          {ACTIONS[action].label}
        </Button>
      ))}
      {items.length === 0 ? null : <Menu label="More about this sandbox" items={items} />}
    </>
  );
}

interface SectionsProps {
  readonly sandbox: Sandbox;
  readonly link: SandboxLink;
  readonly feed: EventFeed;
  /** grows with the story of the sandbox */
  readonly turns: number;
  readonly asking: Asking;
}

function Sections({ sandbox, link, feed, turns, asking }: SectionsProps) {
  const { error } = sandbox;
  const tabs = VIEWS.map((view) => ({ id: view, label: LABELS[view], href: linkTo(link.id, view) }));
  return (
    <>
      {error === undefined ? null : (
        <ProblemNote title="The sandbox failed" problem={new Problem(error.message, { code: error.error })} />
      )}
      <Figures sandbox={sandbox} asking={asking} />
      <Tabs label="Parts of the sandbox" tabs={tabs} current={link.view} />
      <Section sandbox={sandbox} link={link} feed={feed} turns={turns} asking={asking} />
    </>
  );
}

function Section({ sandbox, link, feed, turns, asking }: SectionsProps) {
  switch (link.view) {
    case "files":
      return <Files sandbox={sandbox} link={link} />;
    case "terminal":
      return <TerminalPanel sandbox={sandbox} link={link} onChange={asking.changed} />;
    case "history":
      return <HistoryPanel sandbox={sandbox} turns={turns} asking={asking} />;
    case "processes":
      return <ProcessesPanel sandbox={sandbox} link={link} />;
    case "ports":
      return <PortsPanel sandbox={sandbox} onChange={asking.changed} />;
    case "events":
      return <Story feed={feed} />;
  }
}

function Figures({ sandbox, asking }: { readonly sandbox: Sandbox; readonly asking: Asking }) {
  const { may } = useSession();
  const now = useSeconds(sandbox.ends_at !== null);
  const { resources, network, image, head } = sandbox;
  return (
    <dl class="figures flex wrap">
      <Figure
        label="Time left"
        value={<Duration value={leftMs(sandbox, now)} />}
        note={
          <>
            {lifeText(sandbox)}{" "}
            {isPossible("change", sandbox.state, may) ? (
              <button class="text-button" type="button" onClick={() => asking.ask({ sandbox, action: "change" })}>
                {ACTIONS.change.label}
              </button>
            ) : null}
          </>
        }
      />
      <Figure
        label="Machine"
        value={`${resources.vcpus} CPU, ${bytesText(resources.memory_bytes)}`}
        note={`disk ${bytesText(resources.disk_bytes)}`}
      />
      <Figure
        label="Network"
        value={network === null ? "None" : "By its rules"}
        note={
          network === null ? undefined : (
            <GuestText
              text={[restText(network) ?? [], ...(network.allow ?? []).map(ruleText)].flat().join(", ")}
              isMono
              hasTitle
            />
          )
        }
      />
      {image === null ? null : <Figure label="Began with" value={<ImageLink id={image} />} />}
      {head === null ? null : <Figure label="Head" value={<ImageLink id={head} />} />}
    </dl>
  );
}

interface MissingProps {
  readonly id: string;
  readonly problem: Problem;
  readonly onRetry: () => void;
}

function Missing({ id, problem, onRetry }: MissingProps) {
  const isGone = problem.status === 404 || problem.status === 400;
  return (
    <>
      <PageHeader
        heading={isGone ? "Sandbox not found" : "The sandbox cannot be shown"}
        crumbs={[{ label: "Sandboxes", href: "/sandboxes" }, { label: <span class="mono">{shortId(id)}</span> }]}
      />
      {isGone ? (
        <Empty
          title="No such sandbox"
          text="Sandboxes of other accounts are not shown."
          action={<ButtonLink href="/sandboxes">Show all sandboxes</ButtonLink>}
        />
      ) : (
        <ProblemNote problem={problem} onRetry={onRetry} />
      )}
    </>
  );
}
