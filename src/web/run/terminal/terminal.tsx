import type { RefObject } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { SteadyAttachment } from "../../../client/connections/steady-attachment.ts";
import { bytesOf } from "../../../client/operation-events.ts";
import { type ProcessName, readProcess } from "../../../client/processes.ts";
import { isFocusFree } from "../../browser/focus.ts";
import { useColors, useTheme } from "../../browser/theme.ts";
import { api } from "../../data/api.ts";
import { type Problem, problemOf } from "../../data/problem.ts";
import { Button } from "../../parts/button.tsx";
import { Confirm } from "../../parts/dialog.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { ProblemNote } from "../../parts/problem-note.tsx";
import { countOf } from "../../text/format.ts";
import { firstLines } from "./paste.ts";
import type { Screen } from "./screen.ts";

export interface TerminalProps {
  readonly process: ProcessName;
  /** true: the process has just started, and none of its output is a replay */
  readonly isFresh: boolean;
  /** leaves the terminal; the process keeps running */
  readonly onDetach: () => void;
}

type State =
  | { readonly is: "connecting" | "attached" | "lost" }
  | { readonly is: "ended"; readonly exitCode: number | null }
  | { readonly is: "failed"; readonly problem: Problem };

interface Asking {
  readonly text: string;
  readonly answer: (isAllowed: boolean) => void;
}

const COLORS = ["--sunken", "--text", "--accent", "--selected"] as const;

/** The terminal of a process: its output, and input from the keyboard. */
export function TerminalView({ process, isFresh, onDetach }: TerminalProps) {
  const place = useRef<HTMLDivElement>(null);
  const leave = useRef<HTMLButtonElement>(null);
  const [asking, setAsking] = useState<Asking | null>(null);
  const [turn, setTurn] = useState(0);
  const { screen, state, skippedBytes } = useTerminal(
    place,
    { process, isFresh: isFresh && turn === 0, turn },
    {
      onLeave: () => leave.current?.focus(),
      mayPaste: (text) => new Promise((resolve) => setAsking({ text, answer: resolve })),
    },
  );
  const answer = (isAllowed: boolean) => {
    asking?.answer(isAllowed);
    setAsking(null);
    requestAnimationFrame(() => screen.current?.focus());
  };
  const isOver = state.is === "ended" || state.is === "failed";
  return (
    <section class="run-terminal fill stack gap-3 shrink" aria-label={`Terminal of process ${process.spid}`}>
      <div class="row wrap between gap-2-4">
        <p class="run-terminal-state" role="status">
          {stateText(state, process.spid)}
          {skippedBytes === 0 ? "" : ` ${countOf(skippedBytes, "byte")} of output could not be shown.`}
        </p>
        <div class="row wrap gap-2">
          {state.is === "failed" ? (
            <Button isSmall onClick={() => setTurn(turn + 1)}>
              Attach again
            </Button>
          ) : null}
          <button ref={leave} type="button" class="button button-plain button-small" onClick={onDetach}>
            {isOver ? "Close" : "Detach"}
          </button>
        </div>
      </div>
      {state.is === "failed" ? <ProblemNote problem={state.problem} title="The terminal is not attached" /> : null}
      <div ref={place} class="run-screen inset shrink fixed small" />
      <p class="field-hint muted small">
        Ctrl+Alt+Escape moves the focus out of the terminal. Detaching leaves the process running; this link comes back
        to it.
      </p>
      {asking === null ? null : <PasteQuestion text={asking.text} onAnswer={answer} />}
    </section>
  );
}

/** Attaches to a process while the component is shown; another `turn` attaches again. */
function useTerminal(
  place: RefObject<HTMLElement | null>,
  { process, isFresh, turn }: Pick<TerminalProps, "process" | "isFresh"> & { readonly turn: number },
  handlers: Pick<Session, "onLeave" | "mayPaste">,
) {
  const screen = useRef<Screen | null>(null);
  const [state, setState] = useState<State>({ is: "connecting" });
  const [skippedBytes, setSkippedBytes] = useState(0);
  const colors = useColors(COLORS);
  const isDark = useTheme() === "dark";
  const screenColors = useCallback(
    () => ({
      background: colors["--sunken"],
      foreground: colors["--text"],
      cursor: colors["--accent"],
      selection: colors["--selected"],
    }),
    [colors],
  );
  useEffect(() => screen.current?.setColors(screenColors(), isDark), [screenColors, isDark]);

  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const leaving = new AbortController();
    setState({ is: "connecting" });
    setSkippedBytes(0);
    const session: Session = {
      place: element,
      process,
      isFresh,
      signal: leaving.signal,
      colors: screenColors(),
      isDark,
      onScreen: (next) => {
        screen.current = next;
      },
      onState: (next) => {
        if (!leaving.signal.aborted) setState(next);
      },
      onDropped: (bytes) => setSkippedBytes((sum) => sum + bytes),
      ...handlers,
    };
    void runSession(session);
    return () => {
      leaving.abort();
      screen.current = null;
    };
  }, [process.instance, process.spid, turn]);
  return { screen, state, skippedBytes };
}

function stateText(state: State, spid: number): string {
  if (state.is === "connecting") return "Attaching…";
  if (state.is === "attached") return `Attached to process ${spid}.`;
  if (state.is === "lost") return "The connection was lost. Reconnecting.";
  if (state.is !== "ended") return "Not attached.";
  return state.exitCode === null ? "The process has ended." : `The process has ended with exit code ${state.exitCode}.`;
}

function PasteQuestion({ text, onAnswer }: { readonly text: string; readonly onAnswer: (isAllowed: boolean) => void }) {
  const { lines, more } = firstLines(text);
  const isDone = useRef(false);
  return (
    <Confirm
      title={`Paste ${countOf(lines.length + more, "line")}?`}
      action="Paste"
      onConfirm={() => {
        isDone.current = true;
        onAnswer(true);
      }}
      onClose={() => {
        if (!isDone.current) onAnswer(false);
      }}
    >
      <p>A shell runs each line at once.</p>
      <div class="run-paste">
        {lines.map((line, index) => (
          <div key={index}>
            <GuestText text={line} isMono />
          </div>
        ))}
        {more === 0 ? null : <p class="muted">{countOf(more, "more line")}</p>}
      </div>
    </Confirm>
  );
}

interface Session {
  readonly place: HTMLElement;
  readonly process: ProcessName;
  readonly isFresh: boolean;
  readonly signal: AbortSignal;
  readonly colors: ConstructorParameters<typeof Screen>[0]["colors"];
  readonly isDark: boolean;
  readonly onScreen: (screen: Screen) => void;
  readonly onState: (state: State) => void;
  readonly onDropped: (bytes: number) => void;
  readonly onLeave: () => void;
  readonly mayPaste: (text: string) => Promise<boolean>;
}

/** Shows a process until it ends or `signal` fires. Never rejects. */
async function runSession(session: Session): Promise<void> {
  const { place, process, isFresh, signal, onState } = session;
  const held = new DisposableHolder(signal);
  const focusedBefore = document.activeElement;
  try {
    const { Screen: Made } = await import("./screen.ts");
    if (signal.aborted) return;
    // Queries in replayed output were answered before: input is dropped until the replay ends.
    let replayBytes = isFresh ? 0 : await writtenBytes(process);
    if (signal.aborted) return;
    let attachment: SteadyAttachment | null = null;
    const style = getComputedStyle(place);
    const screen = held.use(
      new Made({
        place,
        colors: session.colors,
        isDark: session.isDark,
        fontFamily: style.fontFamily,
        fontSize: Number.parseFloat(style.fontSize),
        mayPaste: session.mayPaste,
        onLeave: session.onLeave,
        onInput: (bytes) => {
          if (replayBytes <= 0) attachment?.type(bytes);
        },
        onSize: (size) => attachment?.resize(size),
      }),
    );
    session.onScreen(screen);
    attachment = held.use(
      await SteadyAttachment.open(api, process, {
        lossless: true,
        onDropped: (_stream, bytes) => session.onDropped(bytes),
        onLost: () => onState({ is: "lost" }),
      }),
    );
    attachment.resize(screen.size);
    // The user may have moved the focus in the meantime.
    if (document.activeElement === focusedBefore || isFocusFree()) screen.focus();
    if (replayBytes <= 0) onState({ is: "attached" });
    for await (const { bytes } of attachment.output()) {
      await screen.write(bytes);
      if (replayBytes > 0) {
        await screen.settled();
        replayBytes -= bytes.byteLength;
      }
      if (replayBytes <= 0) onState({ is: "attached" });
    }
    await screen.settled();
    screen.close();
    onState({ is: "ended", exitCode: attachment.exitCode });
  } catch (error) {
    if (!signal.aborted) onState({ is: "failed", problem: problemOf(error) });
  }
}

/** Disposes of its objects when a signal fires. Until then an ended terminal stays readable. */
class DisposableHolder {
  readonly #signal: AbortSignal;

  constructor(signal: AbortSignal) {
    this.#signal = signal;
  }

  use<T extends Disposable>(held: T): T {
    if (this.#signal.aborted) held[Symbol.dispose]();
    else this.#signal.addEventListener("abort", () => held[Symbol.dispose](), { once: true });
    return held;
  }
}

/** Bytes that a process has written to its terminal so far. */
async function writtenBytes(process: ProcessName): Promise<number> {
  const { stdout } = await readProcess(api, process);
  return bytesOf(stdout).byteLength;
}
