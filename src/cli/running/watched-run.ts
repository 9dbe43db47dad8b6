import type { Client } from "../../client/client.ts";
import { Attachment } from "../../client/connections/attachment.ts";
import { OperationError, ResponseError, UnreachableError } from "../../client/errors.ts";
import { commandStart } from "../../client/operation-events.ts";
import { cancelOperation } from "../../client/operations.ts";
import { COMMAND_SPID } from "../../client/processes.ts";
import type { Operation, OperationStatus } from "../../client/types.ts";
import { CliError, EXIT_INTERRUPTED, EXIT_NOT_RUN } from "../command.ts";
import type { Io } from "../io.ts";
import { tellNetwork } from "../network.ts";
import { endOf, QUEUED, showProgress } from "../wait.ts";
import { Session } from "./session.ts";
import { passSignals } from "./signals.ts";
import type { Streams } from "./streams.ts";

/** Time until the end of a run is visible in its status, in `milliseconds`. */
export const LOST_MS = 5000;

export interface WatchOptions {
  readonly client: Client;
  readonly io: Io;
  /** of the instance */
  readonly id: string;
  /** null: the output is not shown */
  readonly streams: Streams | null;
  /** called when the command has begun */
  readonly onStarted?: (startedAtMs: number) => void;
}

/** A run that ended or was left. */
export interface WatchedRun {
  /** null: it was left, and continues */
  readonly operation: Operation | null;
  /** bytes that were passed on; the rest could not be streamed */
  readonly written: Session["written"];
  /** everything was passed on */
  readonly isComplete: boolean;
}

/**
 * Passes the streams of an instance on from its submission to its end, and signals to its command; Ctrl-C once more cancels
 * it.
 * @throws CliError when the run did not succeed, or the person did not wait for its end
 */
export async function watchRun(options: WatchOptions): Promise<WatchedRun> {
  const { client, io, id, streams } = options;
  const stop = new AbortController();
  using progress = showProgress(io, "running");
  using signals = passSignals({
    client,
    io,
    process: { instance: id, spid: COMMAND_SPID },
    hasTerminal: streams?.hasTerminal ?? false,
    end: async () => {
      progress.note("cancelling");
      await cancelOperation(client, id);
    },
    leave: () => stop.abort(),
  });
  let isWhole = true;
  const session =
    streams === null
      ? null
      : await openSession(options, streams, {
          stop: stop.signal,
          onShown: () => progress.hide(),
          onDropped: () => {
            isWhole = false;
          },
        });
  let lost: Timer | undefined;
  using _lost = { [Symbol.dispose]: () => clearTimeout(lost) };
  const passed = session?.run().then((end) => {
    if (end === "detached") stop.abort();
    // The connection may be lost because the run has just ended.
    if (end === "lost" && streams?.input === "keys") lost = setTimeout(() => stop.abort(), LOST_MS);
    return end;
  });
  // A failed write ends the wait; its error is thrown below.
  passed?.catch(() => stop.abort());
  const note = (status: OperationStatus): void =>
    progress.note(status === "PENDING" && !signals.interrupted ? QUEUED : "");
  const operation = await endOf(client, id, {
    signal: stop.signal,
    onStatus: io.stderrLooks.redraws ? note : null,
  });
  // Without an operation there is no output to wait for.
  if (operation === null) session?.detach();
  session?.finish();
  const end = await passed;
  const written = session?.written ?? { stdout: 0, stderr: 0 };
  if (end === "detached" && !signals.interrupted) return { written, isComplete: false, operation: null };
  if (operation === null && end === "lost" && !signals.interrupted) {
    throw new CliError(`the connection is lost; coppice attach ${id} comes back to it`, EXIT_NOT_RUN);
  }
  if (operation === null) throw new CliError(`gave up waiting; the operation is ${id}`, EXIT_INTERRUPTED);
  if (operation.status !== "SUCCESS") {
    tellNetwork(operation, io);
    const isWanted = operation.status === "CANCELLED" && signals.interrupted;
    throw new CliError(new OperationError(operation).message, isWanted ? EXIT_INTERRUPTED : EXIT_NOT_RUN);
  }
  return { written, isComplete: end === "complete" && isWhole, operation };
}

/** A session that may lose its connection: the rest of the output is in the result of the operation then. */
async function openSession(
  { client, io, id, onStarted }: WatchOptions,
  { input, hasTerminal }: Streams,
  {
    stop,
    onShown,
    onDropped,
  }: { readonly stop: AbortSignal; readonly onShown: () => void; readonly onDropped: () => void },
): Promise<Session> {
  const process = { instance: id, spid: COMMAND_SPID };
  const attachment = await Attachment.open(client, process, { lossless: true, onDropped, signal: stop }).catch(
    async (error: Error) => {
      const isLost = error instanceof UnreachableError || error instanceof ResponseError || stop.aborted;
      if (isLost && input !== "keys") return null;
      // Another client cannot return to a terminal that waits for keys.
      await cancelOperation(client, id);
      throw error;
    },
  );
  const isAwaited = input !== "none" || onStarted !== undefined;
  const started = !isAwaited
    ? Promise.resolve()
    : commandStart(client, id, stop).then((at) => {
        if (at === null) throw new CliError("the command did not start");
        if (input === "keys") onShown();
        onStarted?.(at);
      });
  return new Session({ client, io, process, attachment, input, hasTerminal, started, onOutput: onShown });
}
