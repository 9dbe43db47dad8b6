import type { Client } from "../../client/client.ts";
import { ResponseError } from "../../client/errors.ts";
import { type ProcessName, signalProcess } from "../../client/processes.ts";
import type { HandledSignal, Io } from "../io.ts";

/** A process that loses its terminal has this long to end by itself, in `milliseconds`. */
const HANG_UP_MS = 5000;

const PASSED = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"] as const;

export interface PassedSignals {
  readonly client: Client;
  readonly io: Io;
  readonly process: ProcessName;
  /** true: the process owns the terminal, whose keys are not signals here; a signal to coppice is a hang-up */
  readonly hasTerminal: boolean;
  /** Ends the process in another way: it does not run, or has got a signal already. */
  readonly end: () => Promise<void>;
  /** Stops waiting for its end. */
  readonly leave: () => void;
  /** true: a process that loses its terminal is left, and not hung up */
  readonly survivesHangUp?: boolean;
}

export interface SignalState extends Disposable {
  /** an interrupt arrived */
  readonly interrupted: boolean;
}

/**
 * Passes signals on to the process group of a process. The first SIGINT or SIGTERM is passed on, the second one ends the
 * process, and the third one does not wait for that. A process that loses its terminal has a few seconds before it is
 * killed, and its files are kept.
 */
export function passSignals(passed: PassedSignals): SignalState {
  const { client, io, process, hasTerminal, end, leave, survivesHangUp = false } = passed;
  let interrupts = 0;
  let hangUp: Timer | undefined;
  const finish = () => {
    end().catch((error: Error) => {
      io.stderr(`coppice: cannot end it: ${error.message}\n`);
      leave();
    });
  };
  const pass = (signal: HandledSignal | "SIGKILL", isHangUp = false) => {
    signalProcess(client, process, signal.replace(/^SIG/, "")).catch((error: Error) => {
      if (!(error instanceof ResponseError && error.status === 409)) {
        io.stderr(`coppice: cannot pass on ${signal}: ${error.message}\n`);
        return;
      }
      // It does not run yet, which the status of its instance shows, or no longer: then a hang-up has nothing to end.
      if (!isHangUp || error.details["status"] !== undefined) finish();
    });
  };
  const onSignal = (signal: HandledSignal) => {
    if (signal === "SIGHUP" || (hasTerminal && signal === "SIGTERM")) {
      if (survivesHangUp) return leave();
      hangUp ??= setTimeout(() => pass("SIGKILL", true), HANG_UP_MS);
      return pass("SIGHUP", true);
    }
    if (signal !== "SIGINT" && signal !== "SIGTERM") return pass(signal);
    interrupts += 1;
    if (interrupts === 1) pass(signal);
    else if (interrupts === 2) finish();
    else leave();
  };
  const handlers = io.onSignal(PASSED, onSignal);
  return {
    get interrupted() {
      return interrupts > 0;
    },
    [Symbol.dispose]() {
      clearTimeout(hangUp);
      handlers[Symbol.dispose]();
    },
  };
}
