import { findSandbox } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { OperationId, SandboxId } from "../../domain/ids.ts";
import { type Changed, change } from "../change.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { type AccessUseCases, accessUseCases } from "./access.ts";
import { awake } from "./awake.ts";
import { type Connected, type ConnectRequest, connect } from "./connect.ts";
import { type Forked, type ForkRequest, fork } from "./fork.ts";
import { type ListRecorded, list, type RecordedPage } from "./listing.ts";
import { type Opened, type OpenInput, open } from "./open.ts";
import { type RecordUseCases, recordUseCases } from "./records.ts";
import { WaitingClients } from "./waiting-clients.ts";

/** Use cases for clients of the E2B dialect, beyond those of sandboxes. */
export interface E2bUseCases extends RecordUseCases, AccessUseCases {
  /**
   * Opens a sandbox, and waits until it runs and its template says that it is ready. The same request with a key makes one
   * sandbox. Nothing is left of one whose clients have left before their answers.
   * @throws OtherRequestError for a key that was used for another request; ApiError as `SandboxUseCases.open`; `not_found`
   *   for the template; `too_many_requests` when the host has no room in time
   */
  open(principal: Principal, request: OpenInput): Promise<Changed<Opened>>;
  /**
   * A sandbox once it runs, and its template says that it is ready: one that starts is awaited. A paused one is resumed, and
   * lives as long as the request says; one that runs lives at least as long. One that cannot resume stays paused.
   * @throws ApiError `validation_error` for the time; `too_many_requests` when the host has no room in time; `conflict` when
   *   another request ends it; the error of a failed start; the reason of `signal`
   */
  connect(principal: Principal, id: SandboxId, request: ConnectRequest): Promise<Changed<Connected>>;
  /** Begins to pause a sandbox that runs, with its memory if that is wished and can be kept. @throws as `SandboxesPort.pause` */
  pause(principal: Principal, id: SandboxId, request: { readonly memory: boolean }): Promise<Changed<OperationId>>;
  /** Waits until a sandbox that starts or resumes runs. @throws ApiError as `connect`; `conflict` when it is paused */
  settled(principal: Principal, id: SandboxId, signal: AbortSignal): Promise<void>;
  /**
   * Makes sandboxes from the present files of a sandbox, which keeps running, and waits until each runs and is ready.
   * @throws ApiError `validation_error` for the time; as `SandboxesPort.presentImage`. The rest is in the result
   */
  fork(principal: Principal, id: SandboxId, request: ForkRequest): Promise<Changed<readonly Forked[]>>;
  /** A page of the sandboxes that are not gone. @throws ApiError `validation_error` for a cursor that no page had */
  list(principal: Principal, request: ListRecorded): RecordedPage;
}

export function e2bUseCases(parts: ServiceParts): E2bUseCases {
  const awakeParts = { ...parts, clients: new WaitingClients() };
  return {
    ...recordUseCases(parts),
    ...accessUseCases(awakeParts),
    open: (principal, request) => open(awakeParts, principal, request),
    connect: (principal, id, request) => connect(awakeParts, principal, id, request),
    pause: (principal, id, { memory }) =>
      change(parts, principal, { noun: "sandbox", verb: "pause", id }, () => pause(parts, principal, id, memory)),
    async settled(principal, id, signal) {
      await awake(awakeParts, principal, id, { resumeSeconds: null, reason: "request", signal });
    },
    fork: (principal, id, request) => fork(parts, principal, id, request),
    list: (principal, request) => list(parts, principal, request),
  };
}

/** Clients of this dialect ask for the memory by default, and most of them only want the files. */
async function pause(
  { db, sandboxes }: ServiceParts,
  { accountId }: Principal,
  id: SandboxId,
  memory: boolean,
): Promise<OperationId> {
  if (!memory) return await sandboxes.pause(accountId, id);
  try {
    return await sandboxes.pause(accountId, id, { memory });
  } catch (error) {
    if (!(error instanceof ApiError) || findSandbox(db, id)?.state !== "running") throw error;
    return await sandboxes.pause(accountId, id);
  }
}
