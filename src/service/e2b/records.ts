import { findRecord, type RecordRow, updateRecord } from "../../db/e2b/records.ts";
import type { RecordedNetwork, RecordedReadiness } from "../../db/e2b/schema.ts";
import { findSandbox, requireSandbox, type SandboxRow } from "../../db/sandboxes/rows.ts";
import type { SandboxId } from "../../domain/ids.ts";
import { allows } from "../../domain/scope.ts";
import { type Changed, change } from "../change.ts";
import type { Principal, ServiceParts } from "../parts.ts";

export type { RecordedNetwork, RecordedReadiness };

/**
 * Facts about a sandbox that clients of this dialect gave or read, and that the sandbox itself does not have in this form. A
 * sandbox that another surface made has a record, too: with its image as its template, and with defaults.
 */
export interface E2bRecord extends Omit<RecordRow, "keyId"> {
  /** the key that signs its tokens; null: it has no record, so the present signing key does */
  readonly keyId: string | null;
  /** whether it pauses at its deadline */
  readonly autoPause: boolean;
  /** whether a request to it resumes it */
  readonly autoResume: boolean;
  /** first start, in `milliseconds` since the epoch */
  readonly startedAt: number;
}

/** The part of a sandbox from which a record follows. */
export type RecordedSandbox = Pick<
  SandboxRow,
  "id" | "imageId" | "timeoutMs" | "onTimeout" | "autoResume" | "createdAt"
>;

/** A sandbox of any account, with its record. */
export interface Recorded {
  readonly sandbox: SandboxRow;
  readonly record: E2bRecord;
}

/** The fields of a record that change while its sandbox lives. */
export type RecordChange = Partial<Pick<RecordRow, "allowInternetAccess" | "network" | "pausedFilesOnly">>;

/** Records of sandboxes. */
export interface RecordUseCases {
  /** @throws ApiError `not_found` */
  record(principal: Principal, id: SandboxId): E2bRecord;
  /** The record of a sandbox that the caller has read. */
  recordOf(sandbox: RecordedSandbox): E2bRecord;
  /** A sandbox of any account; null when there is none, or it runs no more and cannot be resumed. */
  find(id: SandboxId): Recorded | null;
  /** Changes the record of a sandbox; nothing when another surface made the sandbox. @throws ApiError `not_found` */
  update(principal: Principal, id: SandboxId, values: RecordChange): Changed<void>;
}

/** Functions of the records, for the other use cases of this dialect. */
export function recordUseCases(parts: ServiceParts): RecordUseCases {
  const { db } = parts;
  return {
    record: (principal, id) => recordOf(db, requireSandbox(db, principal.accountId, id)),
    recordOf: (sandbox) => recordOf(db, sandbox),
    find(id) {
      const sandbox = findSandbox(db, id);
      if (sandbox === null || sandbox.state === "ended" || sandbox.state === "failed") return null;
      return { sandbox, record: recordOf(db, sandbox) };
    },
    update(principal, id, values) {
      requireSandbox(db, principal.accountId, id);
      return change(parts, principal, { noun: "record", verb: "change", id }, () => updateRecord(db, id, values));
    },
  };
}

/** The network of a record whose request names none. Ports are public only where their owner said so. */
const NO_NETWORK: RecordedNetwork = { allowOut: [], denyOut: [], allowPublicTraffic: false, maskRequestHost: null };

/** The network for the record of a new sandbox: a caller who may not make ports public gets private ones. */
export function permittedNetwork({ grants }: Principal, network: RecordedNetwork | null): RecordedNetwork | null {
  if (allows(grants, "instances:ingress")) return network;
  return { ...(network ?? NO_NETWORK), allowPublicTraffic: false };
}

/** The record of a sandbox. */
export function recordOf(db: ServiceParts["db"], sandbox: RecordedSandbox): E2bRecord {
  const { id, imageId, timeoutMs, onTimeout, autoResume, createdAt } = sandbox;
  const row = findRecord(db, id) ?? { ...DEFAULTS, templateId: imageId ?? id, timeoutSeconds: timeoutMs / 1000 };
  return { ...row, sandboxId: id, autoPause: onTimeout === "pause", autoResume, startedAt: createdAt };
}

const DEFAULTS = {
  ...{ alias: null, buildId: null, keyId: null, autoPauseMemory: true, pausedFilesOnly: false },
  ...{ allowInternetAccess: null, network: NO_NETWORK, readiness: null },
} as const;
