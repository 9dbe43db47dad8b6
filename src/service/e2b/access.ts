import { liveOwners } from "../../db/e2b/records.ts";
import type { SandboxUse } from "../../supervisor/sandboxes/ports.ts";
import { type AwakeParts, awake } from "./awake.ts";
import { type CredentialOwner, type SandboxCredentials, sandboxCredentials } from "./credentials.ts";
import type { Recorded } from "./records.ts";
import { type UploadLinks, uploadLinks } from "./upload-links.ts";

/** A sandbox that a request resumes lives at least this long, in `seconds`: the client does not know of its deadline. */
const RESUMED_SECONDS_MIN = 300;

/** Access to sandboxes by their own tokens, without a token of their account. */
export interface AccessUseCases {
  readonly credentials: SandboxCredentials;
  readonly uploads: UploadLinks;
  /** All sandboxes that run or can be resumed, of all accounts, for a search by what their tokens signed. */
  owners(): readonly CredentialOwner[];
  /**
   * The present machine of a sandbox, which is awaited, and resumed if its owner wants that. Until disposal, the sandbox is
   * not idle.
   * @throws ApiError `conflict` when it does not run; `too_many_requests` when the host has no room in time, and the sandbox
   *   stays paused; the reason of `signal`; as `SandboxesPort.use` does
   */
  use(recorded: Recorded, signal: AbortSignal): Promise<SandboxUse>;
}

export function accessUseCases(parts: AwakeParts): AccessUseCases {
  const { db, sandboxes, keys, limits } = parts;
  return {
    credentials: sandboxCredentials(keys),
    uploads: uploadLinks(parts),
    owners: () => liveOwners(db),
    async use({ sandbox: { id, accountId }, record }, signal) {
      const resumes = record.autoResume && !record.pausedFilesOnly;
      const seconds = Math.max(record.timeoutSeconds, RESUMED_SECONDS_MIN);
      const resumeSeconds = resumes ? Math.min(seconds, limits.sandboxTimeoutSecondsMax) : null;
      await awake(parts, { accountId }, id, { resumeSeconds, reason: "auto_resume", signal });
      return await sandboxes.use(accountId, id, signal, { resumes });
    },
  };
}
