import { useState } from "preact/hooks";
import type { Place } from "../../client/place.ts";
import { pathOfProcesses, signalProcess, startProcess } from "../../client/processes.ts";
import type { Process, ProcessRequest } from "../../client/types.ts";
import { api } from "../data/api.ts";
import { problemOf } from "../data/problem.ts";
import { useReload, useResource } from "../data/resource.ts";
import { Button } from "../parts/button.tsx";
import { Confirm } from "../parts/dialog.tsx";
import { Empty } from "../parts/empty.tsx";
import { Checkbox, Field } from "../parts/field.tsx";
import { Age, Bytes, Duration } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { type Column, Table } from "../parts/lists/table.tsx";
import { Menu, type MenuItem } from "../parts/menu.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Skeleton } from "../parts/skeleton.tsx";
import { Badge } from "../parts/status-mark.tsx";
import { useToast } from "../parts/toast.tsx";
import { shellLine } from "./form/shell-words.ts";

/** Largest number of listed processes. */
const LIMIT = 200;
const SIGNALS = ["TERM", "INT", "HUP", "USR1", "USR2", "STOP", "CONT", "KILL"] as const;

const listOf = (place: Place, signal: AbortSignal) =>
  api.exchange<Process[]>("GET", pathOfProcesses(place), { query: { limit: LIMIT }, signal });

interface ProcessPanelProps {
  readonly place: Place;
  readonly isRunning: boolean;
  /** grows when a process begins or ends */
  readonly turns: number;
  /** how long they live, as one sentence */
  readonly about: string;
  readonly onOutput: (spid: number) => void;
  readonly onTerminal: (spid: number) => void;
}

/** The processes of a run: the command, and further ones. */
export function ProcessPanel({ place, isRunning, turns, about, onOutput, onTerminal }: ProcessPanelProps) {
  const list = useResource(pathOfProcesses(place), (signal) => listOf(place, signal));
  const [isStarting, setStarting] = useState(false);
  const toast = useToast();
  useReload(turns, list.reload);
  const send = async (spid: number, signal: string) => {
    try {
      await signalProcess(api, { ...place, spid }, signal);
      toast(`${signal} was sent to process ${spid}`);
      list.reload();
    } catch (error) {
      toast(`${signal} was not sent: ${problemOf(error).message}`, { isProblem: true });
    }
  };
  const startAgain = async (process: Process) => {
    try {
      const { spid } = await startProcess(api, place, requestOf(process));
      toast(`Process ${spid} was started`);
      list.reload();
    } catch (error) {
      toast(`The process was not started: ${problemOf(error).message}`, { isProblem: true });
    }
  };
  const menuOf = menuOfProcesses(isRunning, { onOutput, onTerminal, send, startAgain });
  return (
    <section class="stack gap-3 shrink" aria-label="Processes">
      {isRunning ? (
        <div class="row wrap between gap-2-4">
          <p class="muted">{about}</p>
          <div class="row wrap gap-2">
            <Button icon="plus" isSmall onClick={() => setStarting(true)}>
              Start a process
            </Button>
          </div>
        </div>
      ) : null}
      {list.problem === undefined ? null : (
        <ProblemNote problem={list.problem} title="The processes could not be listed" onRetry={list.reload} />
      )}
      {list.value === undefined && list.problem === undefined ? <Skeleton lines={3} /> : null}
      {list.value?.length === 0 ? <Empty title="No process has started yet" /> : null}
      {list.value === undefined || list.value.length === 0 ? null : (
        <Table label="Processes" columns={columnsOf(menuOf)} rows={list.value} rowKey={({ spid }) => String(spid)} />
      )}
      {isStarting ? (
        <StartQuestion
          place={place}
          onClose={() => setStarting(false)}
          onStarted={(spid, hasTerminal) => (hasTerminal ? onTerminal(spid) : list.reload())}
        />
      ) : null}
    </section>
  );
}

interface ProcessActions extends Pick<ProcessPanelProps, "onOutput" | "onTerminal"> {
  readonly send: (spid: number, signal: string) => Promise<void>;
  readonly startAgain: (process: Process) => Promise<void>;
}

function menuOfProcesses(isRunning: boolean, { onOutput, onTerminal, send, startAgain }: ProcessActions) {
  return (process: Process): MenuItem[] => {
    const { spid, state, pty } = process;
    const canStartAgain = isRunning && state !== "running" && pty === undefined && process.args_truncated !== true;
    return [
      { label: "Output", icon: "file", onSelect: () => onOutput(spid) },
      ...(canStartAgain
        ? [{ label: "Start again", icon: "run" as const, onSelect: () => void startAgain(process) }]
        : []),
      ...(pty === undefined
        ? []
        : [{ label: "Terminal", icon: "terminal" as const, onSelect: () => onTerminal(spid) }]),
      ...(state === "running" && isRunning
        ? SIGNALS.map((signal, index) => ({
            label: SIGNAL_LABELS[signal],
            isApart: index === 0,
            isDangerous: signal === "KILL",
            onSelect: () => void send(spid, signal),
          }))
        : []),
    ];
  };
}

function columnsOf(menuOf: (process: Process) => MenuItem[]): Column<Process>[] {
  return [
    { id: "spid", label: "Number", isFigure: true, cell: ({ spid }) => spid },
    {
      id: "command",
      label: "Command",
      isHeading: true,
      isWide: true,
      cell: ({ command, args }) => <GuestText text={shellLine([command, ...args])} isMono hasTitle />,
    },
    { id: "state", label: "Status", cell: (process) => <StateOf {...process} /> },
    { id: "cpu", label: "CPU time", isFigure: true, cell: ({ cpu_time_ms: time }) => <Duration value={time} /> },
    { id: "memory", label: "Peak memory", isFigure: true, cell: ({ memory_bytes: bytes }) => <Bytes value={bytes} /> },
    { id: "begun", label: "Started", isFigure: true, cell: ({ started_at: at }) => <Age at={at} /> },
    {
      id: "actions",
      label: "Actions",
      isLabelHidden: true,
      cell: (process) => <Menu label={`Process ${process.spid}`} isSmall items={menuOf(process)} />,
    },
  ];
}

/** A request for the same process. Variables of its own are not part of what the appliance shows. */
function requestOf({ command, args, cwd, user, uid, gid }: Process): ProcessRequest {
  return { command, args, cwd, ...(user === undefined ? { uid, gid } : { user }) };
}

const SIGNAL_LABELS: Readonly<Record<(typeof SIGNALS)[number], string>> = {
  TERM: "Terminate (TERM)",
  INT: "Interrupt (INT)",
  HUP: "Hang up (HUP)",
  USR1: "USR1",
  USR2: "USR2",
  STOP: "Pause (STOP)",
  CONT: "Resume (CONT)",
  KILL: "Kill (KILL)",
};

function StateOf({ state, exit_code: exitCode, signal, timed_out: isTimedOut }: Process) {
  if (state === "running") return <Badge tone="accent">Running</Badge>;
  if (state === "lost") return <Badge tone="warning">Lost</Badge>;
  if (isTimedOut === true) return <Badge tone="warning">Time limit</Badge>;
  if (signal !== null) return <Badge tone="warning">Signal {signal}</Badge>;
  return <Badge tone={exitCode === 0 ? "neutral" : "warning"}>{exitCode === 0 ? "Done" : `Exit ${exitCode}`}</Badge>;
}

interface StartQuestionProps {
  readonly place: Place;
  readonly onClose: () => void;
  readonly onStarted: (spid: number, hasTerminal: boolean) => void;
}

function StartQuestion({ place, onClose, onStarted }: StartQuestionProps) {
  const [line, setLine] = useState("");
  const [hasTerminal, setTerminal] = useState(false);
  return (
    <Confirm
      title="Start another process"
      action="Start"
      isReady={line.trim() !== ""}
      onClose={onClose}
      onConfirm={async () => {
        const { spid } = await startProcess(api, place, {
          command: line,
          shell: true,
          ...(hasTerminal ? TERMINAL : {}),
        });
        onStarted(spid, hasTerminal);
      }}
    >
      <Field label="Shell command" isMono value={line} onValue={setLine} />
      <Checkbox label="With a terminal" isChecked={hasTerminal} onChecked={setTerminal} />
    </Confirm>
  );
}

/** Request for a process with a terminal; attaching sets its size to that of the screen. */
const TERMINAL: Partial<ProcessRequest> = {
  pty: { rows: 24, cols: 80 },
  stdin_open: true,
  env: { TERM: "xterm-256color" },
  // Output before the first attachment must be in the log.
  truncate_output_at: 10_485_760,
};

/** Starts a shell with a terminal. @returns its number @throws ResponseError, UnreachableError */
export async function startShell(place: Place): Promise<number> {
  const { spid } = await startProcess(api, place, { command: "/bin/sh", ...TERMINAL });
  return spid;
}
