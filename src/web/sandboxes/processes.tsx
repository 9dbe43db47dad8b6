import { useState } from "preact/hooks";
import type { Sandbox } from "../../client/types.ts";
import { navigate } from "../browser/router.ts";
import { useInterval } from "../browser/use-interval.ts";
import { useSession } from "../data/session.ts";
import { ButtonLink } from "../parts/button.tsx";
import { Empty } from "../parts/empty.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { useEventFeed } from "../run/event-feed.ts";
import { Output } from "../run/output/output.tsx";
import { ProcessPanel } from "../run/processes.tsx";
import { linkTo, type SandboxLink } from "./link.ts";

/** Time between two readings of the processes, in `milliseconds`: the appliance reads them from the whole log. */
const READ_MS = 15_000;

interface ProcessesProps {
  readonly sandbox: Sandbox;
  readonly link: SandboxLink;
}

/** The processes of a sandbox, or the output of one. */
export function ProcessesPanel({ sandbox, link }: ProcessesProps) {
  const { may } = useSession();
  const [turns, setTurns] = useState(0);
  useInterval(READ_MS, () => setTurns((count) => count + 1));
  const { uuid, instance, state } = sandbox;
  if (link.process !== null) return <ProcessOutput link={link} uuid={uuid} spid={link.process} />;
  if (!may("instances:exec")) {
    return <Empty title="No processes" text="The token of this session lacks the scope instances:exec." />;
  }
  return (
    <ProcessPanel
      place={{ instance: instance ?? "", sandbox: uuid }}
      isRunning={state === "running"}
      turns={turns}
      about="They share the files and the network of the sandbox, and end when it pauses."
      onOutput={(process) => navigate(linkTo(link.id, "processes", { process }))}
      onTerminal={(process) => navigate(linkTo(link.id, "terminal", { process }))}
    />
  );
}

function ProcessOutput(props: { readonly link: SandboxLink; readonly uuid: string; readonly spid: number }) {
  const { link, uuid, spid } = props;
  const path = `/sandboxes/${uuid}`;
  const feed = useEventFeed(path, { spid });
  return (
    <>
      <p class="row wrap gap-2">
        Output of process {spid}.{" "}
        <ButtonLink href={linkTo(link.id, "processes")} isSmall tone="quiet">
          Show all processes
        </ButtonLink>
      </p>
      {feed.problem === undefined ? null : <ProblemNote problem={feed.problem} title="The output could not be read" />}
      <Output path={path} spid={spid} feed={feed} emptyText="Nothing was written yet." />
    </>
  );
}
