import type { OperatorCommands } from "../../../src/api/operator/control.ts";

/** The commands of a daemon in which nothing runs; those that a test does not give fail when they are called. */
export function operatorCommands(given: Partial<OperatorCommands>): OperatorCommands {
  const missing = (name: string) => () => Promise.reject(new Error(`the test has no ${name}`));
  return { gc: missing("gc"), running: missing("running"), stop: missing("stop"), hold: missing("hold"), ...given };
}
