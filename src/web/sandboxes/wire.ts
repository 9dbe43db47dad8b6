export const SANDBOX_STATES = ["starting", "running", "pausing", "paused", "resuming", "failed", "ended"] as const;
export type SandboxState = (typeof SANDBOX_STATES)[number];

/** A rule of a network policy. */
interface NetworkRule {
  readonly host: string;
  readonly ports?: readonly number[] | "*";
}

/** A sandbox: a branch with a machine that may live on it. */
export interface Sandbox {
  readonly uuid: string;
  readonly name: string;
  /** the image where it began; null: it has ended, and the image was deleted */
  readonly image: string | null;
  /** the image of its last saved state; null as that of `image` */
  readonly head: string | null;
  readonly state: SandboxState;
  /** the operation of its machine; null: it has none */
  readonly instance: string | null;
  readonly created_at: string;
  readonly state_changed_at: string;
  readonly ended_at?: string;
  readonly ends_at: string | null;
  /** in `seconds` */
  readonly idle_timeout: number | null;
  readonly on_timeout: "pause" | "end";
  readonly auto_resume: boolean;
  readonly env_names: readonly string[];
  readonly cwd: string | null;
  readonly user: string | null;
  readonly network: { readonly allow?: readonly NetworkRule[]; readonly record?: boolean } | null;
  readonly resources: { readonly vcpus: number; readonly memory_bytes: number; readonly disk_bytes: number };
  readonly metadata: Readonly<Record<string, string>>;
  readonly public_ports: readonly number[];
  readonly error?: {
    readonly error: string;
    readonly message: string;
    readonly details?: Readonly<Record<string, unknown>>;
  };
  /** present while the appliance serves ports from outside */
  readonly urls?: { readonly pattern: string };
}

/** A saved state of a sandbox. */
export interface SavedState {
  readonly seq: number;
  readonly image: string;
  /** `seq` of the state that it followed; null: the first one */
  readonly parent: number | null;
  readonly reason: "start" | "pause" | "checkpoint" | "rollback" | "keep";
  readonly tags: readonly string[];
  readonly created_at: string;
  readonly is_head: boolean;
  /** `HEAD~n`; null: it is not in the history of the head */
  readonly ref: string | null;
}

/** The body of `POST /v1/sandboxes`. */
export interface SandboxRequest {
  readonly image: string;
  readonly name?: string;
  /** in `seconds` */
  readonly timeout?: number;
  readonly idle_timeout?: number;
  readonly on_timeout?: Sandbox["on_timeout"];
  readonly auto_resume?: boolean;
  readonly network?: { readonly allow: readonly NetworkRule[] };
  readonly resources?: Partial<Sandbox["resources"]>;
}

/** The body of `PATCH /v1/sandboxes/{id}`. */
export interface SandboxChange extends Partial<Pick<Sandbox, "name" | "idle_timeout" | "on_timeout" | "auto_resume">> {
  /** from now, in `seconds` */
  readonly timeout?: number;
  readonly public_ports?: readonly number[];
}
