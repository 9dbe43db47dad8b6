import type { Sandbox } from "../../../client/types.ts";
import type { IconName } from "../../parts/icon.tsx";
import type { StatusLabel } from "../../parts/status-mark.tsx";

export type SandboxState = Sandbox["state"];

/** The label of each state, in all views. */
export const STATE_LABELS: Readonly<Record<SandboxState, StatusLabel>> = {
  starting: { mark: "waiting", tone: "accent", text: "Starting" },
  running: { mark: "running", tone: "accent", text: "Running" },
  pausing: { mark: "waiting", tone: "accent", text: "Pausing" },
  paused: { mark: "paused", tone: "neutral", text: "Paused" },
  resuming: { mark: "waiting", tone: "accent", text: "Resuming" },
  failed: { mark: "failed", tone: "danger", text: "Failed" },
  ended: { mark: "cancelled", tone: "neutral", text: "Ended" },
};

/** True for states that end by themselves, soon. */
export function isPassing(state: SandboxState): boolean {
  return state === "starting" || state === "pausing" || state === "resuming";
}

export type SandboxAction = "pause" | "resume" | "checkpoint" | "fork" | "rollback" | "change" | "end";

interface ActionFacts {
  readonly label: string;
  readonly icon: IconName;
  /** one sentence */
  readonly effect: string;
  readonly from: readonly SandboxState[];
  readonly scope: string;
}

const SPAWN = "instances:spawn";

/** The actions on a sandbox, with the states in which the appliance accepts them. */
export const ACTIONS: Readonly<Record<SandboxAction, ActionFacts>> = {
  resume: {
    label: "Resume",
    icon: "run",
    effect: "Starts a machine with the files of the last saved state.",
    from: ["paused", "failed"],
    scope: SPAWN,
  },
  pause: {
    label: "Pause",
    icon: "pause",
    effect: "Ends the processes, saves the files, and gives the machine back.",
    from: ["running"],
    scope: SPAWN,
  },
  checkpoint: {
    label: "Checkpoint",
    icon: "image",
    effect: "Saves the files, while all processes continue.",
    from: ["running"],
    scope: "instances:exec",
  },
  fork: {
    label: "Fork",
    icon: "branch",
    effect: "Opens further sandboxes with the present files.",
    from: ["running", "paused", "failed"],
    scope: SPAWN,
  },
  rollback: {
    label: "Roll back",
    icon: "clock",
    effect: "Replaces the files by those of a saved state. The name and the addresses stay.",
    from: ["running", "paused", "failed"],
    scope: SPAWN,
  },
  change: {
    label: "More time",
    icon: "clock",
    effect: "Sets how long the sandbox lives, and what happens then.",
    from: ["starting", "running", "pausing", "paused", "resuming", "failed"],
    scope: SPAWN,
  },
  end: {
    label: "End",
    icon: "stop",
    effect: "Ends the sandbox for good. Its saved states stay only as long as images keep them.",
    from: ["starting", "running", "pausing", "paused", "resuming", "failed"],
    scope: SPAWN,
  },
};

/** Whether an action is possible in a state, for a session with these rights. */
export function isPossible(action: SandboxAction, state: SandboxState, may: (scope: string) => boolean): boolean {
  const { from, scope } = ACTIONS[action];
  return from.includes(state) && may(scope);
}
