import { deleteCreation, findCreation, insertCreation } from "../../db/e2b/creations.ts";
import { failedSandboxes, insertRecord, type RecordRow } from "../../db/e2b/records.ts";
import { findSandbox, requireSandbox, type SandboxRow } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { SandboxId } from "../../domain/ids.ts";
import { OUTPUT_BYTES_DEFAULT } from "../../domain/output.ts";
import { generatedName } from "../../domain/sandbox.ts";
import { loginCommand } from "../../domain/templates/scripts.ts";
import { type Changed, change } from "../change.ts";
import type { Principal, ServiceLimits, ServiceParts } from "../parts.ts";
import { checkSandbox, type SandboxInput } from "../sandboxes/checks.ts";
import { type ResolvedTemplate, resolve } from "../templates/resolve.ts";
import type { AwakeParts } from "./awake.ts";
import { becomeReady, runs } from "./readiness.ts";
import { permittedNetwork, type Recorded, recordOf } from "./records.ts";

/** A sandbox that a request resumes lives for this long at least, in `seconds`. */
const RESUMED_SECONDS_MIN = 300;

/** A request that its client may repeat, and that makes one sandbox then. */
export interface Creation {
  readonly key: string;
  /** SHA-256 of the request, in hexadecimal */
  readonly bodyHash: string;
}

/** A request for a sandbox. */
export interface OpenInput
  extends Pick<SandboxInput, "metadata" | "network">,
    Pick<RecordRow, "allowInternetAccess" | "autoPauseMemory"> {
  /** as `TemplateUseCases.resolve` takes it */
  readonly template: string;
  /** its life once it runs */
  readonly timeoutSeconds: number;
  readonly onTimeout: "pause" | "end";
  readonly autoResume: boolean;
  /** variables of all its processes, besides those of the template */
  readonly env: (id: SandboxId, template: ResolvedTemplate) => Readonly<Record<string, string>>;
  readonly recordedNetwork: RecordRow["network"];
  /** null: a repeated request makes another sandbox */
  readonly creation: Creation | null;
  /** the client has left: unless another one waits for the sandbox, nothing is left of it */
  readonly signal: AbortSignal;
}

/** The key of a request was used for another request. */
export class OtherRequestError extends ApiError {
  constructor() {
    super("conflict", "the Idempotency-Key was used for another request");
  }
}

/** Undoes the insertion of a sandbox: another request has made one. */
class RepeatedError extends Error {
  readonly id: SandboxId;

  constructor(id: SandboxId) {
    super("the request was repeated");
    this.id = id;
  }
}

export interface Opened extends Recorded {
  /** false: another answer has had this sandbox */
  readonly isNew: boolean;
}

/** As `E2bUseCases.open`. */
export async function open(parts: AwakeParts, principal: Principal, input: OpenInput): Promise<Changed<Opened>> {
  const what = { noun: "record", verb: "open", id: ({ sandbox }: Recorded) => sandbox.id } as const;
  return await change(parts, principal, what, async () => {
    const { creation, timeoutSeconds, signal } = input;
    const earlier = creation === null ? null : repeated(parts, principal, creation);
    const { id, isOwn } = earlier === null ? await begin(parts, principal, input) : { id: earlier, isOwn: false };
    const isWaiting = isOwn || parts.clients.join(id);
    const begun = { id, signal, timeoutSeconds };
    try {
      const recorded = await (isWaiting ? firstLife(parts, principal, begun) : opened(parts, principal, begun));
      signal.throwIfAborted();
      return { ...recorded, isNew: isWaiting && parts.clients.answer(id) };
    } catch (error) {
      if (isWaiting && parts.clients.leave(id)) await discard(parts, principal, { id, creation });
      throw error;
    }
  });
}

/** Ends a sandbox that no client knows, and forgets its request. */
async function discard(
  parts: ServiceParts,
  principal: Principal,
  { id, creation }: { readonly id: SandboxId; readonly creation: Creation | null },
): Promise<void> {
  const { accountId } = principal;
  if (creation !== null) deleteCreation(parts.db, { accountId, key: creation.key, sandboxId: id });
  await endQuietly(parts, principal, id);
}

/**
 * Waits until a sandbox that was made is ready, and gives it its deadline.
 * @throws ApiError as `runs` and `becomeReady`
 */
export async function firstLife(
  parts: ServiceParts,
  principal: Principal,
  begun: { readonly id: SandboxId; readonly timeoutSeconds: number; readonly signal: AbortSignal },
): Promise<Recorded> {
  const { id, timeoutSeconds: seconds, signal } = begun;
  await runs(parts, principal, id, signal);
  // A client counts from the answer.
  parts.sandboxes.setDeadline(principal.accountId, id, { seconds, onlyLater: false });
  return await opened(parts, principal, begun);
}

/** The life of a sandbox until it runs and gets the deadline of its request, in `seconds`. */
export function startingSeconds(timeoutSeconds: number, { sandboxTimeoutSecondsMax }: ServiceLimits): number {
  return Math.max(Math.min(RESUMED_SECONDS_MIN, sandboxTimeoutSecondsMax), timeoutSeconds);
}

/** The sandbox that an earlier request with the key made; null when there is none. @throws OtherRequestError */
function repeated({ db, clock }: ServiceParts, { accountId }: Principal, { key, bodyHash }: Creation) {
  const row = findCreation(db, accountId, key, clock());
  if (row === null) return null;
  if (row.bodyHash !== bodyHash) throw new OtherRequestError();
  return row.sandboxId;
}

interface Begun {
  readonly id: SandboxId;
  /** false: the same request has made it meanwhile */
  readonly isOwn: boolean;
}

async function begin(parts: AwakeParts, principal: Principal, input: OpenInput): Promise<Begun> {
  const { db, sandboxes, keys, clock, limits } = parts;
  const { accountId } = principal;
  const { autoPauseMemory, allowInternetAccess, recordedNetwork, creation, timeoutSeconds } = input;
  const id = Bun.randomUUIDv7() as SandboxId;
  const template = resolve(parts, principal, input.template);
  const { image: _image, ...checked } = checkSandbox(principal, sandboxInput(input, { id, template, limits }), limits);
  const { id: keyId } = await keys.signing();
  // Those that have failed are gone for clients of this dialect, which do not end them.
  for (const failed of failedSandboxes(db, accountId)) await endQuietly(parts, principal, failed);
  const inserted = (row: SandboxRow): void => {
    if (creation !== null) {
      const earlier = repeated(parts, principal, creation);
      if (earlier !== null) throw new RepeatedError(earlier);
      insertCreation(db, { ...creation, accountId, sandboxId: id, createdAt: clock() });
    }
    insertRecord(db, {
      ...{ sandboxId: row.id, templateId: template.templateId, alias: template.alias, buildId: template.buildId },
      ...{ keyId, timeoutSeconds, autoPauseMemory, pausedFilesOnly: false },
      ...{
        allowInternetAccess,
        network: permittedNetwork(principal, recordedNetwork),
        readiness: readinessOf(template),
      },
    });
  };
  parts.clients.begin(id);
  try {
    await sandboxes.create(accountId, { ...checked, imageId: template.imageId, files: [] }, { id, inserted });
    return { id, isOwn: true };
  } catch (error) {
    parts.clients.leave(id);
    if (error instanceof RepeatedError) return { id: error.id, isOwn: false };
    throw error;
  }
}

function sandboxInput(
  input: OpenInput,
  { id, template, limits }: { id: SandboxId; template: ResolvedTemplate; limits: ServiceLimits },
): SandboxInput {
  const { metadata, network, onTimeout, autoResume, timeoutSeconds } = input;
  const { imageId, config } = template;
  const { vcpus, memoryBytes, startCmd } = config;
  return {
    ...{ metadata, network, onTimeout, autoResume, name: generatedName(), image: imageId },
    pauseMemory: onTimeout === "pause" && input.autoPauseMemory,
    ...userOf(template),
    timeoutSeconds: startingSeconds(timeoutSeconds, limits),
    env: { ...config.env, ...input.env(id, template) },
    resources: { vcpus, memoryBytes },
    // Clients of this dialect see no states: those of a sandbox that is no more would stay for ever.
    discardsPauses: true,
    boot: startCmd === null ? undefined : { ...loginCommand(startCmd), truncateOutputAtBytes: OUTPUT_BYTES_DEFAULT },
  };
}

function userOf({ config: { user, cwd } }: ResolvedTemplate): Pick<SandboxInput, "user" | "cwd"> {
  return { user: user ?? undefined, cwd: cwd ?? undefined };
}

function readinessOf({ config: { readyCmd, user, cwd } }: ResolvedTemplate): RecordRow["readiness"] {
  return readyCmd === null ? null : { command: readyCmd, user, cwd };
}

/** A sandbox once it is ready, if it runs or will. @throws ApiError as `runs` and `becomeReady` */
async function opened(
  parts: ServiceParts,
  principal: Principal,
  { id, signal }: { readonly id: SandboxId; readonly signal: AbortSignal },
): Promise<Recorded> {
  const { db } = parts;
  const sandbox = requireSandbox(db, principal.accountId, id);
  const record = recordOf(db, sandbox);
  if (sandbox.state === "pausing" || sandbox.state === "paused") return { sandbox, record };
  await runs(parts, principal, id, signal);
  await becomeReady(parts, principal, record, signal);
  return { sandbox: requireSandbox(db, principal.accountId, id), record };
}

/** Ends a sandbox that no client knows. */
export async function endQuietly(
  { db, sandboxes }: ServiceParts,
  { accountId }: Principal,
  id: SandboxId,
): Promise<void> {
  if (findSandbox(db, id)?.state === "ended") return;
  // Expected: another request ends it now.
  await sandboxes.end(accountId, id, { keep: false }).catch(() => undefined);
}
