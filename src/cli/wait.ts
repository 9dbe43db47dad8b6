import type { Client } from "../client/client.ts";
import { UnreachableError } from "../client/errors.ts";
import { cancelOperation, reportProgress, type Progress as Step, succeeded, waitForEnd } from "../client/operations.ts";
import type { Operation, OperationStatus } from "../client/types.ts";
import { given } from "../domain/given.ts";
import { shownDuration } from "../domain/text/shown.ts";
import { CliError, EXIT_INTERRUPTED } from "./command.ts";
import { INTERRUPTS, type Io } from "./io.ts";
import { stepText } from "./operation/operation-steps.ts";

const FRAME_MS = 120;
const FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏";

export interface WaitOptions {
  readonly client: Client;
  readonly io: Io;
  readonly id: string;
  /** text of the progress line; null: there is none */
  readonly label: string | null;
  /** true: Ctrl-C cancels the operation, and a second Ctrl-C ends the wait; false: it ends the wait */
  readonly cancelOnInterrupt: boolean;
}

/** An operation that ended, or the interrupt that ended the wait for it. */
export interface Waited {
  readonly operation: Operation | null;
  readonly interrupted: "SIGINT" | "SIGTERM" | null;
}

/** Waits until an operation has ended, with a progress line on a terminal. */
export async function waitForOperation(options: WaitOptions): Promise<Waited> {
  const { client, io, id } = options;
  const stop = new AbortController();
  let interrupted: Waited["interrupted"] = null;
  using progress = options.label === null ? NO_PROGRESS : showProgress(io, options.label);
  using _interrupts = io.onSignal(INTERRUPTS, (signal) => {
    const giveUp = !options.cancelOnInterrupt || interrupted !== null;
    interrupted = signal;
    if (giveUp) return stop.abort();
    progress.note("cancelling");
    cancelOperation(client, id).catch((error: Error) => {
      io.stderr(`coppice: cannot cancel ${id}: ${error.message}\n`);
      stop.abort();
    });
  });
  const ended = new AbortController();
  using _reports = { [Symbol.dispose]: () => ended.abort() };
  let step = "";
  const note = (text: string): void => {
    if (interrupted === null) progress.note(text);
  };
  if (options.label !== null && io.stderrLooks.redraws) {
    const onProgress = (reported: Step): void => {
      step = stepText(reported);
      note(step);
    };
    void reportProgress(client, id, { signal: ended.signal, onProgress });
  }
  const operation = await endOf(client, id, {
    signal: stop.signal,
    onStatus: io.stderrLooks.redraws ? (status) => note(status === "PENDING" ? QUEUED : step) : null,
  });
  return { operation, interrupted };
}

/** Waits for the success of an operation, which Ctrl-C cancels. @throws CliError, OperationError if it ends otherwise */
export async function successOf(
  client: Client,
  { io, id, label }: Pick<WaitOptions, "io" | "id" | "label">,
): Promise<Operation> {
  const { operation } = await waitForOperation({ client, io, id, label, cancelOnInterrupt: true });
  if (operation === null) throw new CliError(`gave up waiting; the operation is ${id}`, EXIT_INTERRUPTED);
  return succeeded(operation);
}

/** State of a progress line while the operation waits for others. */
export const QUEUED = "waiting for its turn";

export interface EndOptions {
  readonly signal: AbortSignal;
  /** gets the status after each poll of an operation that has not ended; null: not needed */
  readonly onStatus: ((status: OperationStatus) => void) | null;
}

/**
 * Waits until an operation has ended, also over a restart of the appliance; null when `signal` fired before.
 * @throws UnreachableError with the command that returns to it, when the appliance stays unreachable; ResponseError
 */
export async function endOf(client: Client, id: string, { signal, onStatus }: EndOptions): Promise<Operation | null> {
  try {
    return await waitForEnd(client, id, { signal, ...given({ onStatus }) });
  } catch (error) {
    if (signal.aborted) return null;
    if (!(error instanceof UnreachableError)) throw error;
    throw new UnreachableError(`${error.message}: coppice op wait ${id} comes back to it`, { cause: error });
  }
}

/**
 * Does work that Ctrl-C aborts, so that the work can remove its temporary files.
 * @throws CliError without a message, with the exit code of an interrupt
 */
export async function interruptible<T>(io: Io, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const stop = new AbortController();
  using _interrupts = io.onSignal(INTERRUPTS, () => stop.abort());
  try {
    return await work(stop.signal);
  } catch (error) {
    if (stop.signal.aborted) throw new CliError("", EXIT_INTERRUPTED, { cause: error });
    throw error;
  }
}

interface Progress extends Disposable {
  note(state: string): void;
  /** Removes the line for good, before other output. */
  hide(): void;
}

const NO_PROGRESS: Progress = { note: () => undefined, hide: () => undefined, [Symbol.dispose]: () => undefined };

/** A progress line on standard error, with a spinner and the time; no line if standard error is not a terminal. */
export function showProgress(io: Io, label: string): Progress {
  if (!io.stderrLooks.redraws) return NO_PROGRESS;
  const startedAt = performance.now();
  let state = "";
  let frame = 0;
  const timer = setInterval(() => {
    frame = (frame + 1) % FRAMES.length;
    const suffix = state === "" ? "" : `, ${state}`;
    io.stderr(`\r\x1b[K${FRAMES[frame]} ${label}${suffix} (${shownDuration(performance.now() - startedAt)})`);
  }, FRAME_MS);
  let isShown = true;
  const hide = () => {
    clearInterval(timer);
    if (isShown) io.stderr("\r\x1b[K");
    isShown = false;
  };
  return {
    note: (next) => {
      state = next;
    },
    hide,
    [Symbol.dispose]: hide,
  };
}
