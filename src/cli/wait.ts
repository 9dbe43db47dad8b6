import { answerOf, type Client } from "../client/client.ts";
import { ResponseError, UnreachableError } from "../client/errors.ts";
import type { Operation } from "../client/types.ts";
import { isTerminal } from "../domain/operation.ts";
import { CliError, EXIT_INTERRUPTED } from "./command.ts";
import type { Io } from "./io.ts";
import { shownDuration } from "./table.ts";

/** One long poll, in `seconds`: short enough for proxies that cut silent connections after a minute. */
const WAIT_SECONDS = 25;
/** The first one, and those while nothing runs yet: whoever looks should see that soon. */
const FIRST_WAIT_SECONDS = 1;
/** A restarting appliance is back within this time, also on a busy host, in `milliseconds`. */
const UNREACHABLE_MS_MAX = 60_000;
const RETRY_MS = 500;
const FRAME_MS = 120;
const FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏";

export interface WaitOptions {
  readonly client: Client;
  readonly io: Io;
  readonly id: string;
  /** what stands in the progress line */
  readonly label: string;
  /** true: Ctrl-C cancels the operation, and only a second one gives up waiting */
  readonly cancelOnInterrupt: boolean;
}

/** An operation that ended, or the interrupt that ended the waiting for it. */
export interface Waited {
  readonly operation: Operation | null;
  readonly interrupted: "SIGINT" | "SIGTERM" | null;
}

/** Waits until an operation has ended; tells on a terminal that it does. */
export async function waitForOperation(options: WaitOptions): Promise<Waited> {
  const { client, io, id } = options;
  const route = client.v1.operations({ id: encodeURIComponent(id) });
  const stop = new AbortController();
  let interrupted: Waited["interrupted"] = null;
  using progress = showProgress(io, options.label);
  using _interrupts = io.onInterrupt((signal) => {
    const giveUp = !options.cancelOnInterrupt || interrupted !== null;
    interrupted = signal;
    if (giveUp) return stop.abort();
    progress.note("cancelling");
    cancel(client, id).catch((error: Error) => {
      io.stderr(`coppice: cannot cancel ${id}: ${error.message}\n`);
      stop.abort();
    });
  });
  const shortWait = io.stderrLooks.redraws ? FIRST_WAIT_SECONDS : WAIT_SECONDS;
  let wait = shortWait;
  for (let unreachableSince: number | null = null; ; ) {
    try {
      const operation = await answerOf(route.get({ query: { wait }, fetch: { signal: stop.signal } }));
      unreachableSince = null;
      if (isTerminal(operation.status)) return { operation, interrupted };
      const isQueued = operation.status === "PENDING";
      wait = isQueued ? shortWait : WAIT_SECONDS;
      if (interrupted === null) progress.note(isQueued ? "waiting for its turn" : "");
    } catch (error) {
      if (stop.signal.aborted) return { operation: null, interrupted };
      unreachableSince ??= performance.now();
      const again = error instanceof UnreachableError || (error instanceof ResponseError && error.status === 503);
      if (!again || performance.now() - unreachableSince > UNREACHABLE_MS_MAX) throw error;
      await Bun.sleep(RETRY_MS);
    }
  }
}

async function cancel(client: Client, id: string): Promise<void> {
  try {
    await answerOf(client.v1.operations({ id: encodeURIComponent(id) }).delete());
  } catch (error) {
    // It ended in the meantime: there is nothing to cancel.
    if (!(error instanceof ResponseError && error.status === 409)) throw error;
  }
}

/**
 * Does work that Ctrl-C ends, so that what is half done is put away.
 * @throws CliError without a message, with the exit code of an interrupt
 */
export async function interruptible<T>(io: Io, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const stop = new AbortController();
  using _interrupts = io.onInterrupt(() => stop.abort());
  try {
    return await work(stop.signal);
  } catch (error) {
    if (stop.signal.aborted) throw new CliError("", EXIT_INTERRUPTED, { cause: error });
    throw error;
  }
}

interface Progress extends Disposable {
  note(state: string): void;
}

/** A line on standard error that turns and counts; nothing where nobody looks. */
export function showProgress(io: Io, label: string): Progress {
  if (!io.stderrLooks.redraws) return { note: () => undefined, [Symbol.dispose]: () => undefined };
  const startedAt = performance.now();
  let state = "";
  let frame = 0;
  const timer = setInterval(() => {
    frame = (frame + 1) % FRAMES.length;
    const suffix = state === "" ? "" : `, ${state}`;
    io.stderr(`\r\x1b[K${FRAMES[frame]} ${label}${suffix} (${shownDuration(performance.now() - startedAt)})`);
  }, FRAME_MS);
  return {
    note: (next) => {
      state = next;
    },
    [Symbol.dispose]() {
      clearInterval(timer);
      io.stderr("\r\x1b[K");
    },
  };
}
