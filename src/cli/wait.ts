import { answerOf, type Client } from "../client/client.ts";
import { ResponseError, UnreachableError } from "../client/errors.ts";
import { RETRY_MS, UNREACHABLE_MS_MAX } from "../client/operation-events.ts";
import type { Operation } from "../client/types.ts";
import { isTerminal } from "../domain/operation.ts";
import { CliError, EXIT_INTERRUPTED } from "./command.ts";
import { INTERRUPTS, type Io } from "./io.ts";
import { reportSteps } from "./operation-steps.ts";
import { shownDuration } from "./table.ts";

/** One long poll, in `seconds`: short enough for proxies that cut silent connections after a minute. */
const WAIT_SECONDS = 25;
/** The first long poll, and each one while the operation is PENDING, so that a terminal soon shows the change. */
const FIRST_WAIT_SECONDS = 1;
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
    const onStep = (text: string): void => {
      step = text;
      note(step);
    };
    void reportSteps(client, id, { signal: ended.signal, onStep });
  }
  const operation = await endOf(client, id, {
    signal: stop.signal,
    isShown: io.stderrLooks.redraws,
    onStatus: (status) => note(status === "PENDING" ? QUEUED : step),
  });
  return { operation, interrupted };
}

/** Waits for the success of an operation, which Ctrl-C cancels. @throws CliError if it ends otherwise */
export async function successOf(
  client: Client,
  { io, id, label }: Pick<WaitOptions, "io" | "id" | "label">,
): Promise<Operation> {
  const { operation } = await waitForOperation({ client, io, id, label, cancelOnInterrupt: true });
  if (operation === null) throw new CliError(`gave up waiting; the operation is ${id}`, EXIT_INTERRUPTED);
  if (operation.status === "CANCELLED") throw new CliError(`operation ${id} was cancelled`, EXIT_INTERRUPTED);
  if (operation.status !== "SUCCESS") {
    const { error, message } = operation.error ?? { error: "no error object", message: "it failed" };
    throw new CliError(`${message} (${error}, operation ${id})`);
  }
  return operation;
}

/** State of a progress line while the operation waits for others. */
export const QUEUED = "waiting for its turn";

export interface EndOptions {
  readonly signal: AbortSignal;
  /** true: somebody looks at `onStatus`, and wants to know soon that an operation no longer waits */
  readonly isShown: boolean;
  /** gets the status after each look at an operation that has not ended */
  readonly onStatus?: (status: Operation["status"]) => void;
}

/**
 * Waits until an operation has ended, also over a restart of the appliance; null when `signal` fired before.
 * @throws UnreachableError that names the operation, when the appliance stays away; ResponseError
 */
export async function endOf(
  client: Client,
  id: string,
  { signal, isShown, onStatus }: EndOptions,
): Promise<Operation | null> {
  const route = client.v1.operations({ id: encodeURIComponent(id) });
  const shortWait = isShown ? FIRST_WAIT_SECONDS : WAIT_SECONDS;
  let wait = shortWait;
  for (let unreachableSince: number | null = null; ; ) {
    try {
      const operation = await answerOf(route.get({ query: { wait }, fetch: { signal } }));
      unreachableSince = null;
      if (isTerminal(operation.status)) return operation;
      wait = operation.status === "PENDING" ? shortWait : WAIT_SECONDS;
      onStatus?.(operation.status);
    } catch (error) {
      if (signal.aborted) return null;
      unreachableSince ??= performance.now();
      const again = error instanceof UnreachableError || (error instanceof ResponseError && error.status === 503);
      if (!again) throw error;
      if (performance.now() - unreachableSince > UNREACHABLE_MS_MAX) {
        const further = `operation ${id} may go on: coppice op wait ${id} comes back to it`;
        throw new UnreachableError(`${(error as Error).message}; ${further}`, { cause: error });
      }
      await Bun.sleep(RETRY_MS);
    }
  }
}

/** Cancels an operation, unless it has ended already. @throws ResponseError, UnreachableError */
export async function cancelOperation(client: Client, id: string): Promise<void> {
  try {
    await answerOf(client.v1.operations({ id: encodeURIComponent(id) }).delete());
  } catch (error) {
    // It has ended in the meantime.
    if (!(error instanceof ResponseError && error.status === 409)) throw error;
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
  /** Takes the line away for good: something else is written now. */
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
