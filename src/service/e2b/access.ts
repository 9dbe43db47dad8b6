import { liveOwners } from "../../db/e2b/records.ts";
import { requireSandbox } from "../../db/sandboxes/rows.ts";
import type { SandboxState } from "../../domain/sandbox.ts";
import { sandboxConflict } from "../../domain/sandbox.ts";
import type { SandboxUse } from "../../supervisor/sandboxes/ports.ts";
import type { ServiceParts } from "../parts.ts";
import { type CredentialOwner, type SandboxCredentials, sandboxCredentials } from "./credentials.ts";
import type { Recorded } from "./records.ts";
import { type UploadLinks, uploadLinks } from "./upload-links.ts";

/** A sandbox that a request resumes lives at least this long, in `seconds`: the client does not know of its deadline. */
const RESUMED_SECONDS_MIN = 300;
/** A wait without a limit of its own, in `milliseconds`. */
const FOREVER_MS = 2_147_483_647;

/** Access to sandboxes by their own tokens, without a token of their account. */
export interface AccessUseCases {
  readonly credentials: SandboxCredentials;
  readonly uploads: UploadLinks;
  /** All sandboxes that run or can be resumed, of all accounts, for a search by what their tokens signed. */
  owners(): readonly CredentialOwner[];
  /**
   * The present machine of a sandbox, which is awaited, and resumed if its owner wants that. Until disposal, the sandbox is
   * not idle.
   * @throws ApiError `conflict` when it does not run; the reason of `signal`; as `SandboxesPort.use` does
   */
  use(recorded: Recorded, signal: AbortSignal): Promise<SandboxUse>;
}

export function accessUseCases(parts: ServiceParts): AccessUseCases {
  const { db, sandboxes, keys, limits } = parts;
  return {
    credentials: sandboxCredentials(keys),
    uploads: uploadLinks(parts),
    owners: () => liveOwners(db),
    async use({ sandbox: { id, accountId, state: first }, record }, signal) {
      const resumes = record.autoResume && !record.pausedFilesOnly;
      const passes = (state: SandboxState) =>
        state === "starting" || state === "resuming" || (state === "pausing" && resumes);
      if (passes(first)) await sandboxes.settled(id, (state) => !passes(state), FOREVER_MS, signal);
      const { state, timeoutMs } = requireSandbox(db, accountId, id);
      if (state === "paused") {
        if (!resumes) throw sandboxConflict(state);
        const seconds = Math.max(record.timeoutSeconds, RESUMED_SECONDS_MIN);
        const timeoutSeconds = Math.min(seconds, limits.sandboxTimeoutSecondsMax);
        if (timeoutMs !== timeoutSeconds * 1000) await sandboxes.change(accountId, id, { timeoutSeconds });
      }
      return await sandboxes.use(accountId, id, signal);
    },
  };
}
