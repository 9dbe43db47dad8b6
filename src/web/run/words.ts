import type { AskedOperation, Operation } from "../../client/types.ts";
import { lineOf } from "./form/words.ts";

/** What an operation was asked to do, in a line. */
export function askedText(asked: AskedOperation): string {
  if (asked.kind === "instance") {
    const { command, args, shell } = asked;
    return shell === true && args.length === 0 ? command : lineOf([command, ...args]);
  }
  if (asked.kind === "checkpoint") return "Checkpoint of a run";
  return asked.registry ?? "An uploaded archive";
}

/** The image that an operation has made; undefined: none. */
export function resultImage({ result }: Operation): string | undefined {
  return result?.image;
}

/** What a listing and a page show of the end of a command. */
export function endOf({ result }: Operation): { readonly exitCode?: number; readonly isTimedOut?: boolean } {
  return result !== undefined && "exit_code" in result
    ? { exitCode: result.exit_code, isTimedOut: result.timed_out }
    : {};
}

/** How long an operation has taken, in `milliseconds`; so far, while it goes on. */
export function tookMs({ duration_ms: duration, started_at: startedAt }: Operation, now: number): number | undefined {
  if (duration !== undefined) return duration;
  return startedAt === undefined ? undefined : Math.max(0, now - Date.parse(startedAt));
}
