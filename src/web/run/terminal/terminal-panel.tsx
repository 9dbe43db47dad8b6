import { useRef, useState } from "preact/hooks";
import { COMMAND_SPID } from "../../../client/processes.ts";
import type { Operation } from "../../../client/types.ts";
import { type Problem, problemOf } from "../../data/problem.ts";
import { Button } from "../../parts/button.tsx";
import { Empty } from "../../parts/empty.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { startShell } from "../processes.tsx";
import { TerminalView } from "./terminal.tsx";

interface TerminalPanelProps {
  readonly operation: Operation;
  readonly isOver: boolean;
  readonly isRunning: boolean;
  /** true: the command itself has a terminal */
  readonly ownPty: boolean;
  /** the process that the link names; null: none */
  readonly spid: number | null;
  readonly onShow: (spid: number) => void;
  readonly onDetach: () => void;
}

/** The terminal of the command or of another process, or a button that starts a shell. */
export function TerminalPanel({ operation, isOver, isRunning, ownPty, spid, onShow, onDetach }: TerminalPanelProps) {
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  /** the process that this panel started: none of its output is a replay */
  const started = useRef<number | null>(null);
  const target = spid ?? (ownPty ? COMMAND_SPID : null);
  if (target !== null) {
    const process = { instance: operation.id, spid: target };
    return <TerminalView process={process} isFresh={started.current === target} onDetach={onDetach} />;
  }
  const start = async () => {
    setBusy(true);
    setProblem(undefined);
    try {
      const shell = await startShell({ instance: operation.id });
      started.current = shell;
      onShow(shell);
    } catch (error) {
      setProblem(problemOf(error));
    }
    setBusy(false);
  };
  if (isOver || !isRunning) {
    return (
      <Empty
        title={isOver ? "The run has ended" : "The run has not started"}
        text={
          isOver
            ? "A terminal needs a running command. Start a shell on the result to look at its files."
            : "A terminal can be opened as soon as the command runs."
        }
        {...(isOver ? { command: "coppice shell IMAGE" } : {})}
      />
    );
  }
  return (
    <>
      {problem === undefined ? null : <ProblemNote problem={problem} title="No shell was started" />}
      <Empty
        title="A shell in the sandbox"
        text="It shares the files, processes and network of the command, and ends with it."
        action={
          <Button tone="primary" icon="terminal" isBusy={isBusy} onClick={() => void start()}>
            Open a shell
          </Button>
        }
      />
    </>
  );
}
