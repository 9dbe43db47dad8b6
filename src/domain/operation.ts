import type { Scope } from "./scope.ts";

export const OPERATION_STATUSES = ["PENDING", "EXECUTING", "SUCCESS", "FAILED", "CANCELLED"] as const;
export type OperationStatus = (typeof OPERATION_STATUSES)[number];

/** The public properties of a kind of operation. */
export interface KindFacts {
  /** name of an operation of the kind, in all views */
  readonly label: string;
  /** the same within a sentence, with its article */
  readonly noun: string;
  /** part of the name of the metric of its phases */
  readonly metric: string;
  /** scope that a request for one needs; all kinds are read with `operations:read` */
  readonly scope: Scope;
  /** true: it uses an existing image */
  readonly hasInputImage: boolean;
  /** its steps in their order, each with a duration in the metrics and in the log */
  readonly phases: readonly string[];
}

/** All kinds of operations, by their names on the wire. Their work is defined in `supervisor/kinds`. */
export const KIND_FACTS = {
  image_import: {
    label: "Import",
    noun: "an import",
    metric: "import",
    scope: "images:import",
    hasInputImage: false,
    phases: ["queue", "resolve", "pull", "unpack", "build", "clone", "mount", "index", "publish"],
  },
  instance: {
    label: "Run",
    noun: "an instance",
    metric: "spawn",
    scope: "instances:spawn",
    hasInputImage: true,
    phases: ["queue", "clone", "attach", "mount", "files", "exec", "freeze", "index", "publish"],
  },
  checkpoint: {
    label: "Checkpoint",
    noun: "a checkpoint",
    metric: "checkpoint",
    scope: "instances:exec",
    hasInputImage: true,
    phases: ["queue", "copy", "clone", "mount", "index", "publish"],
  },
  sandbox: {
    label: "Sandbox",
    noun: "a sandbox",
    metric: "sandbox",
    scope: "instances:spawn",
    hasInputImage: true,
    phases: ["queue", "clone", "attach", "mount", "files", "exec", "freeze", "index", "publish"],
  },
} as const satisfies Readonly<Record<string, KindFacts>>;

export type OperationKind = keyof typeof KIND_FACTS;
export const OPERATION_KINDS = Object.keys(KIND_FACTS) as [OperationKind, ...OperationKind[]];

/** A step of an operation of any kind. */
export type Phase = (typeof KIND_FACTS)[OperationKind]["phases"][number];

/** `requeue`: a restart of the service finds that its work has not begun. */
export const OPERATION_TRANSITIONS = ["start", "requeue", "succeed", "fail", "cancel"] as const;
export type OperationTransition = (typeof OPERATION_TRANSITIONS)[number];

/** Terminal statuses. */
export type EndStatus = Extract<OperationStatus, "SUCCESS" | "FAILED" | "CANCELLED">;

/** The complete life cycle: the compiler requires every status and transition. */
const LIFE_CYCLE = {
  PENDING: { start: "EXECUTING", requeue: null, succeed: null, fail: "FAILED", cancel: "CANCELLED" },
  EXECUTING: { start: null, requeue: "PENDING", succeed: "SUCCESS", fail: "FAILED", cancel: "CANCELLED" },
  SUCCESS: { start: null, requeue: null, succeed: null, fail: null, cancel: null },
  FAILED: { start: null, requeue: null, succeed: null, fail: null, cancel: null },
  CANCELLED: { start: null, requeue: null, succeed: null, fail: null, cancel: null },
} as const satisfies Record<OperationStatus, Record<OperationTransition, OperationStatus | null>>;

/** The status after `transition`; null when it is not allowed. Terminal statuses never change. */
export function nextStatus(status: OperationStatus, transition: OperationTransition): OperationStatus | null {
  return LIFE_CYCLE[status][transition];
}

/** Statuses that allow `transition`, for the condition of a compare-and-set. */
export function statusesAllowing(transition: OperationTransition): OperationStatus[] {
  return OPERATION_STATUSES.filter((status) => nextStatus(status, transition) !== null);
}

export function isTerminal(status: OperationStatus): boolean {
  return OPERATION_TRANSITIONS.every((transition) => nextStatus(status, transition) === null);
}

/** Kinds of isolation of a command from the host. */
export const ISOLATIONS = ["vm", "vm-emulated"] as const;
export type Isolation = (typeof ISOLATIONS)[number];

/** An instance's result as its row stores it, with the field names of the API. The outputs are in the event log. */
export type StoredInstanceResult = {
  /** exit code of the command; 128+n when signal n ended it */
  readonly exit_code: number;
  readonly stdout: StoredOutput;
  readonly stderr: StoredOutput;
  readonly cpu_time_ms: number;
  /** peak memory of the command and its children, including page cache */
  readonly memory_bytes: number;
  readonly timed_out: boolean;
  /** present and true when the guest ran out of memory */
  readonly oom_killed?: boolean;
  /** uuid of the captured image; absent when the instance was disposable */
  readonly image?: string;
  /** the tag that the image got */
  readonly tag?: string;
  readonly isolation: Isolation;
};

export interface StoredOutput {
  readonly truncated: boolean;
  /** size of the captured output in the event log */
  readonly bytes: number;
}

/** A checkpoint's result as its row stores it, with the field names of the API. */
export type StoredCheckpointResult = {
  readonly image: string;
  readonly tag?: string;
  /** disk space that the image adds to the image on which the instance runs, in `bytes` */
  readonly size_bytes: number;
  /** time during which the instance could not write, in `milliseconds` */
  readonly pause_ms: number;
};

/** The result of one life of a sandbox as its row stores it, with the field names of the API. */
export type StoredSandboxResult = {
  /** uuid of the captured image; absent when the files were given up */
  readonly image?: string;
  /** the tag that the image got */
  readonly tag?: string;
  readonly cpu_time_ms: number;
  /** peak memory of its processes, including page cache */
  readonly memory_bytes: number;
  readonly isolation: Isolation;
};

/** An import's result as its row stores it, with the field names of the API. */
export type StoredImportResult = {
  readonly image: string;
  readonly tag?: string;
  /** digest of the imported manifest */
  readonly digest: string;
  /** disk space of the image's base layer, in `bytes` */
  readonly size_bytes: number;
};
