import { ApiError } from "./errors.ts";
import type { ImageId } from "./ids.ts";
import type { NetworkRequest } from "./network.ts";
import type { CheckedCommand, CheckedSpawn, SubmittedFile } from "./spawn.ts";

/**
 * States of a sandbox: a branch made live. It has an instance while it is `starting`, `running`, `pausing` or `resuming`.
 * `paused`: its files are in its head. `failed`: its last instance ended by itself; its head is whole, and `resume` starts
 * from there. `ended` never changes.
 */
export const SANDBOX_STATES = ["starting", "running", "pausing", "paused", "resuming", "failed", "ended"] as const;
export type SandboxState = (typeof SANDBOX_STATES)[number];

export const SANDBOX_TRANSITIONS = [
  /** its machine runs */
  "start",
  /** its files are being captured */
  "pause",
  /** its files were captured, and its machine is gone */
  "paused",
  /** a new machine starts from its head */
  "resume",
  /** its machine ends without a capture, and a new one starts from another head */
  "restart",
  /** without a machine, its head moves to an image */
  "rollback",
  /** its machine could not start, died, or could not be captured */
  "fail",
  /** its machine could not start, and its pause lasts */
  "stay",
  "end",
] as const;
export type SandboxTransition = (typeof SANDBOX_TRANSITIONS)[number];

/** A row of the life cycle in which no transition is allowed. */
const NONE = {
  ...{ start: null, pause: null, paused: null, resume: null },
  ...{ restart: null, rollback: null, fail: null, stay: null, end: null },
} as const;

/** The complete life cycle, which begins with `starting`: the compiler requires every state and transition. */
const LIFE_CYCLE = {
  starting: { ...NONE, start: "running", fail: "failed", end: "ended" },
  running: { ...NONE, pause: "pausing", restart: "resuming", fail: "failed", end: "ended" },
  pausing: { ...NONE, paused: "paused", fail: "failed", end: "ended" },
  paused: { ...NONE, resume: "resuming", rollback: "paused", end: "ended" },
  resuming: { ...NONE, start: "running", fail: "failed", stay: "paused", end: "ended" },
  failed: { ...NONE, resume: "resuming", rollback: "paused", end: "ended" },
  ended: NONE,
} as const satisfies Record<SandboxState, Record<SandboxTransition, SandboxState | null>>;

/** The state after `transition`; null when it is not allowed. */
export function nextSandboxState(state: SandboxState, transition: SandboxTransition): SandboxState | null {
  return LIFE_CYCLE[state][transition];
}

/**
 * The transition of a sandbox whose machine could not start, died, or could not be captured. Clients of one that discards its
 * pauses know no `failed`: they lose it when it runs no more, but not when it cannot resume.
 */
export function failureTransition({
  state,
  discardsPauses,
}: Pick<SandboxSubmission, "discardsPauses"> & { readonly state: SandboxState }): "fail" | "stay" {
  return discardsPauses && state === "resuming" ? "stay" : "fail";
}

/** States that allow `transition`, for the condition of a compare-and-set. */
export function sandboxStatesAllowing(transition: SandboxTransition): SandboxState[] {
  return SANDBOX_STATES.filter((state) => nextSandboxState(state, transition) !== null);
}

/** The states of a shortest way between two states, without the first one; empty when there is none. */
export function sandboxWay(from: SandboxState, to: SandboxState): readonly SandboxState[] {
  const ways = new Map<SandboxState, readonly SandboxState[]>([[from, []]]);
  for (const [state, way] of ways) {
    for (const next of Object.values(LIFE_CYCLE[state])) {
      if (next !== null && !ways.has(next)) ways.set(next, [...way, next]);
    }
  }
  return ways.get(to) ?? [];
}

/** The error for a request that the state of a sandbox does not allow: another request was faster. */
export function sandboxConflict(state: SandboxState): ApiError {
  return new ApiError("conflict", `the sandbox is ${state === "ended" ? "no more" : state}`, { state });
}

/** The error for a request that needs the machine of a sandbox which has none: it ended a moment ago while it is still `running`. */
export function noMachine(state: SandboxState): ApiError {
  if (state !== "running") return sandboxConflict(state);
  const message = "the machine of the sandbox has just ended, and its state does not say so yet";
  return new ApiError("unavailable", message, { state, retry_after_seconds: 1 });
}

/** Actions at the deadline of a sandbox. */
export const TIMEOUT_ACTIONS = ["pause", "end"] as const;
export type TimeoutAction = (typeof TIMEOUT_ACTIONS)[number];

/** Why a sandbox changed its state. `machine`: its machine started, ended or died, or its files were captured. */
export const STATE_REASONS = ["request", "auto_resume", "idle", "deadline", "machine", "restart"] as const;
export type StateReason = (typeof STATE_REASONS)[number];

/** How a saved state came about. `keep`: it was saved before a rollback or the end. */
export const SAVE_REASONS = ["start", "pause", "checkpoint", "rollback", "keep"] as const;
export type SaveReason = (typeof SAVE_REASONS)[number];

/** Names are labels of DNS, and short enough for a host name that has a port, too. */
export const SANDBOX_NAME_PATTERN = "^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$";
const nameExpression = new RegExp(SANDBOX_NAME_PATTERN);
export const SANDBOX_NAME_LENGTH_MAX = 40;

export function isSandboxName(text: string): boolean {
  return nameExpression.test(text);
}

/** A name for a sandbox whose request has none. */
export function generatedName(): string {
  return `box-${crypto.randomUUID().slice(0, 8)}`;
}

/**
 * The names of the sandboxes of a fork: the prefix, numbered from 1, without names that are taken. A prefix that would be too
 * long is cut.
 */
export function forkNames(prefix: string, count: number, isTaken: (name: string) => boolean = () => false): string[] {
  const names: string[] = [];
  for (let number = 1; names.length < count; number++) {
    const suffix = `-${number}`;
    const name = `${prefix.slice(0, SANDBOX_NAME_LENGTH_MAX - suffix.length).replace(/-+$/, "")}${suffix}`;
    if (!isTaken(name)) names.push(name);
  }
  return names;
}

/** Largest number of saved states that `HEAD~n` goes back. */
export const HEAD_DISTANCE_MAX = 9999;
const headExpression = /^HEAD(?:~([0-9]{1,4}))?$/;

/** The n of `HEAD~n`, where `HEAD` is `HEAD~0`; null for any other text. */
export function parseHeadReference(text: string): number | null {
  const match = headExpression.exec(text);
  return match === null ? null : Number(match[1] ?? 0);
}

/** How long a sandbox lives when its request does not say, in `seconds`. */
export const SANDBOX_TIMEOUT_SECONDS_DEFAULT = 3600;
/** The largest value of `limits.sandbox_timeout_max`, in `seconds`. */
export const SANDBOX_TIMEOUT_SECONDS_MAX = 30 * 86_400;
/** How long before its deadline a sandbox announces its end, in `milliseconds`. */
export const ENDS_SOON_MS = 60_000;
/** Largest number of sandboxes that one fork makes. */
export const FORK_COUNT_MAX = 64;
/** Bounds of `metadata`; lengths in `characters`. */
export const METADATA_COUNT_MAX = 64;
export const METADATA_KEY_LENGTH_MAX = 128;
export const METADATA_VALUE_LENGTH_MAX = 1024;
/** Largest number of public ports of a sandbox. */
export const PUBLIC_PORTS_COUNT_MAX = 64;

/** The settings of a sandbox that its owner may change while it lives. */
export interface SandboxSettings {
  /** from now, and again from each resume */
  readonly timeoutSeconds: number;
  /** null: it does not pause because it is idle */
  readonly idleTimeoutSeconds: number | null;
  readonly onTimeout: TimeoutAction;
  /** true: a request for a paused sandbox resumes it */
  readonly autoResume: boolean;
  /** true: its memory is kept when it pauses by itself */
  readonly pauseMemory: boolean;
  readonly metadata: Readonly<Record<string, string>>;
  readonly name: string;
  /** null: none */
  readonly network: NetworkRequest | null;
  /** ports that clients without a token may reach from outside */
  readonly publicPorts: readonly number[];
}

/** The changed settings of a sandbox. */
export type SandboxPatch = { readonly [Name in keyof SandboxSettings]?: SandboxSettings[Name] | undefined };

/** A process that a new sandbox begins with. */
export interface SandboxStart {
  readonly command: CheckedCommand;
  /** null: none */
  readonly timeoutMs: number | null;
}

/** A validated sandbox, with its image and files resolved, as the use cases submit it. */
export interface SandboxSubmission extends SandboxSettings {
  readonly imageId: ImageId;
  /** variables of all its processes; deleted when it ends */
  readonly env: Readonly<Record<string, string>>;
  /** working directory of its processes: absolute and normalised; null: the default of processes */
  readonly cwd: string | null;
  /** user of its processes: a name of the guest, or `uid` or `uid:gid`; null: root */
  readonly user: string | null;
  readonly resources: CheckedSpawn["resources"];
  /** placed when it starts for the first time */
  readonly files: readonly SubmittedFile[];
  readonly start: SandboxStart | null;
  /** a process that each of its machines begins with, to which the variables of the sandbox are added */
  readonly boot: CheckedCommand | null;
  /**
   * whether its end deletes the files that its pauses saved, unless they have a tag; it stays paused when its machine cannot
   * start again
   */
  readonly discardsPauses: boolean;
}

/** How often the usage of a running sandbox is sampled, in `milliseconds`, and the largest number of samples that are kept: an hour. */
export const SANDBOX_SAMPLE_MS = 5000;
export const SANDBOX_SAMPLES_COUNT_MAX = 720;

/** The usage of a sandbox at one moment, as the host sees it. */
export interface SandboxSample {
  /** `milliseconds` since the epoch */
  readonly at: number;
  /** share of one CPU since the previous sample, in `percent` (200 is two CPUs); 0 in the first sample of a life */
  readonly cpuPercent: number;
  /** memory of the virtual machine, caches of the host included */
  readonly memoryBytes: number;
  /** the part of it that the host would give back when memory is short */
  readonly cacheBytes: number;
  /** space on the host of the files that were changed since the life began */
  readonly diskBytes: number;
}
