import type { SandboxId } from "../../domain/ids.ts";
import type { Changed } from "../change.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { type AccessUseCases, accessUseCases } from "./access.ts";
import { type Forked, type ForkRequest, fork } from "./fork.ts";
import { type ListRecorded, list, type RecordedPage } from "./listing.ts";
import { type OpenInput, open } from "./open.ts";
import { becomeReady, runs } from "./readiness.ts";
import { type Recorded, type RecordUseCases, recordOf, recordUseCases } from "./records.ts";
import { WaitingClients } from "./waiting-clients.ts";

/** Use cases for clients of the E2B dialect, beyond those of sandboxes. */
export interface E2bUseCases extends RecordUseCases, AccessUseCases {
  /**
   * Opens a sandbox, and waits until it runs and its template says that it is ready. The same request with a key makes one
   * sandbox. Nothing is left of one whose clients have left before their answers.
   * @throws OtherRequestError for a key that was used for another request; ApiError as `SandboxUseCases.open`; `not_found`
   *   for the template; `too_many_requests` when the host has no room in time
   */
  open(principal: Principal, request: OpenInput): Promise<Changed<Recorded>>;
  /**
   * Waits until a sandbox that starts or resumes runs, and its template says that it is ready.
   * @throws ApiError `too_many_requests` when the host has no room in time; `conflict`; the error of a failed start;
   *   the reason of `signal`
   */
  ready(principal: Principal, id: SandboxId, signal: AbortSignal): Promise<Recorded>;
  /**
   * Makes sandboxes from the present files of a sandbox, which keeps running, and waits until each runs and is ready.
   * @throws ApiError `validation_error` for the time; as `SandboxesPort.presentImage`. The rest is in the result
   */
  fork(principal: Principal, id: SandboxId, request: ForkRequest): Promise<Changed<readonly Forked[]>>;
  /** A page of the sandboxes that are not gone. @throws ApiError `validation_error` for a cursor that no page had */
  list(principal: Principal, request: ListRecorded): RecordedPage;
}

export function e2bUseCases(parts: ServiceParts): E2bUseCases {
  const openParts = { ...parts, clients: new WaitingClients() };
  return {
    ...recordUseCases(parts),
    ...accessUseCases(parts),
    open: (principal, request) => open(openParts, principal, request),
    async ready(principal, id, signal) {
      const record = recordOf(parts.db, await runs(parts, principal, id));
      await becomeReady(parts, principal, record, signal);
      return { sandbox: await runs(parts, principal, id), record };
    },
    fork: (principal, id, request) => fork(parts, principal, id, request),
    list: (principal, request) => list(parts, principal, request),
  };
}
