import { useRef, useState } from "preact/hooks";
import { resumeSandbox } from "../../client/sandboxes.ts";
import type { Sandbox } from "../../client/types.ts";
import { navigate } from "../browser/router.ts";
import { api } from "../data/api.ts";
import { type Problem, problemOf } from "../data/problem.ts";
import { useSession } from "../data/session.ts";
import { Button } from "../parts/button.tsx";
import { Empty } from "../parts/empty.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { startShell } from "../run/processes.tsx";
import { TerminalView } from "../run/terminal/terminal.tsx";
import { linkTo, type SandboxLink } from "./link.ts";
import { STATE_LABELS } from "./model/states.ts";

interface TerminalProps {
  readonly sandbox: Sandbox;
  readonly link: SandboxLink;
  /** called when a shell may have resumed the sandbox */
  readonly onChange: () => void;
}

/** Longest wait for a machine, in `seconds`. */
const WAIT_SECONDS = 60;

/** The terminal of a process, or a button that starts a shell, which resumes a paused sandbox first. */
export function TerminalPanel({ sandbox, link, onChange }: TerminalProps) {
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  /** the process that this panel started: none of its output is a replay */
  const started = useRef<number | null>(null);
  const { may } = useSession();
  const { uuid, state, instance } = sandbox;
  const { process } = link;
  if (process !== null && instance !== null) {
    return (
      <TerminalView
        process={{ instance, sandbox: uuid, spid: process }}
        isFresh={started.current === process}
        onDetach={() => navigate(linkTo(link.id, "terminal"))}
      />
    );
  }
  const start = async () => {
    setBusy(true);
    setProblem(undefined);
    try {
      const ready = state === "running" ? sandbox : await resumeSandbox(api, uuid, { wait: WAIT_SECONDS });
      const spid = await startShell({ instance: ready.instance ?? "", sandbox: uuid });
      started.current = spid;
      navigate(linkTo(link.id, "terminal", { process: spid }));
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
    onChange();
  };
  const isPaused = state === "paused" || state === "failed";
  if (!may("instances:exec")) {
    return <Empty title="No terminal" text="The token of this session lacks the scope instances:exec." />;
  }
  return (
    <>
      {problem === undefined ? null : <ProblemNote problem={problem} title="No shell was started" />}
      {state === "running" || isPaused ? (
        <Empty
          title={process === null ? "A shell in the sandbox" : "The process has ended"}
          text={
            isPaused
              ? "The sandbox has no machine now: a shell resumes it first, from its head."
              : "It ends with the sandbox, or when the sandbox pauses."
          }
          action={
            <Button tone="primary" icon="terminal" isBusy={isBusy} onClick={() => void start()}>
              {isPaused ? "Resume and open a shell" : "Open a shell"}
            </Button>
          }
        />
      ) : (
        <Empty
          title={`The sandbox is ${STATE_LABELS[state].text.toLowerCase()}`}
          text={state === "ended" ? "It has no terminal." : "A terminal can be opened as soon as it runs."}
        />
      )}
    </>
  );
}
