import { resolveImage } from "../../db/images/images.ts";
import { beginBuild, type ListedBuild } from "../../db/templates/builds.ts";
import { ApiError } from "../../domain/errors.ts";
import { IMPORT_TIMEOUT_SECONDS_DEFAULT, isTag } from "../../domain/image.ts";
import { parseRegistryReference } from "../../domain/registry-reference.ts";
import { BUILD_STEPS_COUNT_MAX, type BuildStep } from "../../domain/templates/steps.ts";
import type { Credentials } from "../../supervisor/operations/kind.ts";
import type { BuildOrigin } from "../../supervisor/templates/build.ts";
import { type Changed, change } from "../change.ts";
import { ceilingOf } from "../network.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { resolve } from "./resolve.ts";

/** Longest time of a step, in `seconds`, unless the operator allows less. */
const STEP_SECONDS_MAX = 3600;
/** Longest command of a start, in `characters`. */
const COMMAND_CHARACTERS_MAX = 65_536;
/** References of images that mean a template. */
const VENDOR_IMAGE = /^e2bdev\//;

/** The beginning of a build: a template; or a tag of the account, or else an image of a registry. */
export type BuildFrom =
  | { readonly kind: "template"; readonly reference: string }
  | { readonly kind: "image"; readonly reference: string; readonly credentials?: Credentials | undefined };

/** The steps of a build. */
export interface BuildInput {
  readonly from: BuildFrom;
  readonly steps: readonly BuildStep[];
  readonly force?: boolean | undefined;
  readonly startCmd?: string | undefined;
  readonly readyCmd?: string | undefined;
  /** the user of the first steps */
  readonly defaultUser: string;
}

/** Begins a build. @throws ApiError `validation_error`; `conflict` when it does not wait for its steps; as `BuildsPort.start` */
export function startBuild(
  parts: ServiceParts,
  principal: Principal,
  build: ListedBuild,
  input: BuildInput,
): Changed<void> {
  const { db, builds, limits } = parts;
  const { from, steps, force = false, startCmd = null, readyCmd = null, defaultUser } = input;
  if (steps.length > BUILD_STEPS_COUNT_MAX) throw wrong("steps", `must be at most ${BUILD_STEPS_COUNT_MAX}`);
  for (const [field, command] of Object.entries({ startCmd, readyCmd })) {
    if ((command?.length ?? 0) > COMMAND_CHARACTERS_MAX) {
      throw wrong(field, `must have at most ${COMMAND_CHARACTERS_MAX} characters`);
    }
  }
  if (build.status !== "waiting") throw notWaiting(build);
  const { vcpus = limits.vcpusDefault, memoryBytes = limits.memoryBytesDefault } = build.config;
  const submission = {
    id: build.id,
    accountId: principal.accountId,
    originName: from.reference,
    origin: () => originOf(parts, principal, from),
    ...{ steps, force, defaultUser },
    startCmd: startCmd === "" ? null : startCmd,
    readyCmd: readyCmd === "" ? null : readyCmd,
    resources: { vcpus, memoryBytes, diskBytes: limits.diskBytesDefault },
    network: ceilingOf(principal, limits.network),
    stepSeconds: Math.min(STEP_SECONDS_MAX, limits.instanceTimeoutSecondsMax),
  };
  return change(parts, principal, { noun: "template", verb: "build", id: build.id }, () =>
    builds.start(submission, () => {
      if (!beginBuild(db, build.id)) throw notWaiting(build);
    }),
  );
}

/** @throws ApiError `not_found`, `validation_error` */
function originOf(parts: ServiceParts, principal: Principal, from: BuildFrom): BuildOrigin {
  const { reference } = from;
  if (from.kind === "template" || VENDOR_IMAGE.test(reference)) {
    const { imageId, buildId, config } = resolve(parts, principal, reference);
    return { imageId, config: buildId === null ? null : config };
  }
  const { credentials = null } = from;
  const tagged = isTag(reference) ? resolveImage(parts.db, principal.accountId, { tag: reference }) : null;
  if (tagged !== null) return { imageId: tagged.id, config: null };
  const { canonical } = parseRegistryReference(reference, { defaultRegistry: parts.defaultRegistry });
  const source = { kind: "registry" as const, reference: canonical };
  return { source, credentials, timeoutSeconds: IMPORT_TIMEOUT_SECONDS_DEFAULT };
}

function notWaiting({ status }: ListedBuild): ApiError {
  return new ApiError("conflict", `the build is not waiting for its steps: it is ${status}`, { status });
}

function wrong(field: string, rule: string): ApiError {
  return new ApiError("validation_error", `${field} ${rule}`, { field });
}
