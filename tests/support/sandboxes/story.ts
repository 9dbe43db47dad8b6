import { nextSandboxState, SANDBOX_TRANSITIONS, type SandboxState } from "../../../src/domain/sandbox.ts";

/** The parts of a `state` event. */
export interface StoryStep {
  readonly from: SandboxState | null;
  readonly to: SandboxState;
}

/** The steps of a sandbox's log that could not have happened. */
export function impossibleSteps(steps: readonly StoryStep[]): string[] {
  return steps.flatMap(({ from, to }, index) => {
    const before = steps[index - 1]?.to ?? null;
    const name = `${index}: ${from} -> ${to}`;
    if (from !== before) return [`${name}, after ${before}`];
    if (from === null) return to === "starting" ? [] : [name];
    return SANDBOX_TRANSITIONS.some((transition) => nextSandboxState(from, transition) === to) ? [] : [name];
  });
}
