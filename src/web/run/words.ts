import type { AskedOperation } from "../../client/types.ts";
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
