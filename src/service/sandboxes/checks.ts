import { ApiError } from "../../domain/errors.ts";
import type { ImageReference } from "../../domain/image.ts";
import { parseImageReference } from "../../domain/image.ts";
import type { NetworkInput } from "../../domain/network.ts";
import {
  generatedName,
  SANDBOX_TIMEOUT_SECONDS_DEFAULT,
  type SandboxSettings,
  type SandboxStart,
  type SandboxSubmission,
  type TimeoutAction,
} from "../../domain/sandbox.ts";
import {
  type CheckedFile,
  type CommandInput,
  checkFiles,
  checkProcess,
  checkResources,
  checkTimeout,
  type SpawnInput,
} from "../../domain/spawn.ts";
import { ceilingOf, networkOf } from "../network.ts";
import type { Principal, ServiceLimits } from "../parts.ts";
import { withDefaults } from "../running/processes.ts";

/** The settings of a request. Absent fields have defaults, or stay as they are. */
export interface SettingsInput {
  /** life from now, in `seconds` */
  readonly timeoutSeconds?: number | undefined;
  readonly idleTimeoutSeconds?: number | null | undefined;
  readonly onTimeout?: TimeoutAction | undefined;
  readonly autoResume?: boolean | undefined;
  readonly pauseMemory?: boolean | undefined;
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  readonly name?: string | undefined;
  /** `ceiling`: the largest that the operator and the token allow, which may be none */
  readonly network?: NetworkInput | "ceiling" | null | undefined;
  readonly publicPorts?: readonly number[] | undefined;
}

/** A request for a sandbox. */
export interface SandboxInput extends SettingsInput, Pick<SpawnInput, "env" | "cwd" | "user" | "files" | "resources"> {
  /** `<uuid>` or `tag:<name>` */
  readonly image: string;
  /** the process that it begins with */
  readonly start?: CommandInput | undefined;
  /** a process that each of its machines begins with */
  readonly boot?: CommandInput | undefined;
  /** true: its end deletes the files that its pauses saved, unless they have a tag */
  readonly discardsPauses?: boolean | undefined;
}

/** A validated request, whose image and files are not resolved yet. */
export interface CheckedSandbox extends Omit<SandboxSubmission, "imageId" | "files"> {
  readonly image: ImageReference;
  readonly files: readonly CheckedFile[];
}

/** Checks a request, and fills in defaults. @throws ApiError `validation_error`, `invalid_path`, `forbidden` for a network */
export function checkSandbox(principal: Principal, input: SandboxInput, limits: ServiceLimits): CheckedSandbox {
  // A process without fields of its own shows what is wrong with those of all processes.
  const { env, cwd, isCwdGiven } = checkProcess(withDefaults({ command: "true" }, input));
  const settings = checkSettings(principal, input, limits);
  const timeoutSeconds = Math.min(SANDBOX_TIMEOUT_SECONDS_DEFAULT, limits.sandboxTimeoutSecondsMax);
  return {
    ...defaults(timeoutSeconds),
    ...settings,
    image: parseImageReference(input.image),
    env,
    cwd: isCwdGiven ? cwd : null,
    user: input.user ?? null,
    resources: checkResources(input.resources ?? {}, limits),
    files: checkFiles(input.files ?? {}),
    start: input.start === undefined ? null : checkStart(input.start, input, limits),
    boot: input.boot === undefined ? null : checkProcess(withDefaults(input.boot, { ...input, env: {} }), null),
    discardsPauses: input.discardsPauses ?? false,
  };
}

function defaults(timeoutSeconds: number): SandboxSettings {
  return {
    timeoutSeconds,
    idleTimeoutSeconds: null,
    onTimeout: "pause",
    autoResume: true,
    pauseMemory: false,
    metadata: {},
    name: generatedName(),
    network: null,
    publicPorts: [],
  };
}

/**
 * Checks the settings that a request has.
 * @throws ApiError `validation_error` for more than the operator allows; `forbidden` for a network, or for public ports
 */
export function checkSettings(
  principal: Principal,
  input: SettingsInput,
  limits: ServiceLimits,
): Partial<SandboxSettings> {
  const {
    timeoutSeconds,
    idleTimeoutSeconds,
    onTimeout,
    autoResume,
    pauseMemory,
    metadata,
    name,
    network,
    publicPorts,
  } = input;
  const maximum = limits.sandboxTimeoutSecondsMax;
  if (timeoutSeconds !== undefined && timeoutSeconds > maximum) {
    const details = { field: "timeout", minimum: 1, maximum };
    throw new ApiError("validation_error", `timeout must be an integer from 1 to ${maximum}`, details);
  }
  if (publicPorts !== undefined && publicPorts.length > 0 && limits.ingress?.allowsPublic === false) {
    throw new ApiError("forbidden", "the operator does not allow public ports", { field: "public_ports" });
  }
  const settings = {
    timeoutSeconds,
    idleTimeoutSeconds,
    onTimeout,
    autoResume,
    pauseMemory,
    metadata,
    name,
    network: checkNetwork(principal, network, limits),
    publicPorts,
  };
  const present = Object.entries(settings).filter(([, value]) => value !== undefined);
  return Object.fromEntries(present) as Partial<SandboxSettings>;
}

function checkNetwork(principal: Principal, network: SettingsInput["network"], limits: ServiceLimits) {
  if (network === undefined) return undefined;
  if (network === "ceiling") return ceilingOf(principal, limits.network);
  return networkOf(network ?? "none", limits.network);
}

function checkStart(start: CommandInput, own: SandboxInput, limits: ServiceLimits): SandboxStart {
  const { timeoutSeconds } = start;
  const command = checkProcess(withDefaults(start, own), null);
  if (timeoutSeconds === undefined) return { command, timeoutMs: null };
  return { command, timeoutMs: checkTimeout(timeoutSeconds, limits.sandboxTimeoutSecondsMax) * 1000 };
}
