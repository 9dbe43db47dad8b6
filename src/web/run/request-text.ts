import type { AskedOperation } from "../../client/types.ts";
import { shellLine } from "./form/shell-words.ts";

/** The request of an operation, in a line. */
export function requestText(asked: AskedOperation): string {
  if (asked.kind === "instance") {
    const { command, args, shell } = asked;
    return shell === true && args.length === 0 ? command : shellLine([command, ...args]);
  }
  if (asked.kind === "checkpoint") return "Checkpoint of a run";
  return asked.registry ?? "An uploaded archive";
}
