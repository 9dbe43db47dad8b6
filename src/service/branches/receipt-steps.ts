import type { HistoryRow } from "../../db/images/history.ts";
import { getOperation, type OperationRow } from "../../db/operations.ts";
import { operationRequest } from "../../db/requests.ts";
import { given } from "../../domain/given.ts";
import { isoTime, type OperationId } from "../../domain/ids.ts";
import { type NetworkAudit, networkInputOf } from "../../domain/network.ts";
import type { StoredInstanceResult } from "../../domain/operation.ts";
import type {
  ReceiptNetwork,
  ReceiptOutcome,
  ReceiptRequest,
  ReceiptStep,
  Resource,
} from "../../domain/receipts/statement.ts";
import { parseRegistryReference } from "../../domain/registry-reference.ts";
import { beginning } from "../../domain/text/beginning.ts";
import { type KeptRequest, KINDS } from "../../supervisor/kinds/kinds.ts";
import { keptRequest } from "../../supervisor/operations/requests.ts";
import type { Principal, ServiceParts } from "../parts.ts";

/** Room of the details of all steps in a receipt, as `characters` of JSON. The newest steps use it first. */
const DETAILS_CHARACTERS_MAX = 2_097_152;
/** Longest command of a step in a receipt, as `characters` of JSON. */
const COMMAND_CHARACTERS_MAX = 8192;
/** Longest command of a step for which no room is left. */
const COMMAND_CHARACTERS_MIN = 128;

/** One step of a lineage, in the three parts of a receipt. */
export interface StepParts {
  readonly step: ReceiptStep;
  readonly outcome: ReceiptOutcome;
  readonly dependencies: readonly Resource[];
}

/** The steps of one receipt, which are read from the newest one on. */
export class ReceiptSteps {
  readonly #parts: ServiceParts;
  readonly #principal: Principal;
  #left = DETAILS_CHARACTERS_MAX;

  constructor(parts: ServiceParts, principal: Principal) {
    this.#parts = parts;
    this.#principal = principal;
  }

  /** @param number of the step in the receipt */
  read(row: HistoryRow, number: number): StepParts {
    const { db } = this.#parts;
    const operation = getOperation(db, this.#principal.accountId, row.operationId);
    const kept = operation === null ? null : keptRequest(KINDS, db, operation);
    // A checkpoint has no network and no isolation of its own, but those of its instance.
    const instance =
      kept?.kind === "checkpoint" ? getOperation(db, this.#principal.accountId, kept.instanceId) : operation;
    const isDerived = row.command === null && row.parentId !== null;
    const request = isDerived || kept === null ? {} : requestOf(kept);
    const network = networkOf(row, instance);
    const inputs = isDerived ? [] : this.#inputs(row.operationId, number);
    const hasRoom = this.#take({ request, network, inputs });
    const command = row.command === null ? null : this.#command(row.command);
    const step: ReceiptStep = {
      step: number,
      kind: isDerived ? "derived" : (operation?.kind ?? kindOf(row)),
      operation: row.operationId,
      image: row.imageId,
      ...given({ source: row.source }),
      ...(command === null ? {} : { command }),
      ...(row.commandCut || isCut(row.command, command) ? { commandTruncated: true } : {}),
      ...(hasRoom && Object.keys(request).length > 0 ? { request } : {}),
    };
    const base = dependencyOf(row);
    return {
      step,
      outcome: { ...outcomeOf(row, instance, number), ...(hasRoom ? { network } : { detailsOmitted: true }) },
      dependencies: [...(base === null ? [] : [base]), ...(hasRoom ? inputs : [])],
    };
  }

  /** False when the receipt has no room for these details. */
  #take(details: object): boolean {
    const characters = JSON.stringify(details).length;
    if (characters > this.#left) return false;
    this.#left -= characters;
    return true;
  }

  #command(command: readonly string[]): readonly string[] {
    const most = Math.max(COMMAND_CHARACTERS_MIN, Math.min(COMMAND_CHARACTERS_MAX, this.#left));
    const kept = beginning(command, most);
    this.#take(kept);
    return kept;
  }

  /** The files that callers gave to a step. */
  #inputs(id: OperationId, step: number): readonly Resource[] {
    const body = operationRequest(this.#parts.db, id)?.body as InputBody | undefined;
    const source = body?.source?.kind === "archive" ? [{ ...body.source, path: "archive" }] : [];
    return [...source, ...(body?.files ?? [])].map(({ fileId, sha256, path }) => ({
      name: path,
      uri: `urn:uuid:${fileId}`,
      digest: { sha256 },
      annotations: { step },
    }));
  }
}

interface Input {
  readonly fileId: string;
  readonly sha256: string;
}

/** The files of a stored request: those of a command or sandbox, or the archive of an import. */
interface InputBody {
  readonly files?: readonly (Input & { readonly path: string })[];
  readonly source?: ({ readonly kind: "archive" } & Input) | { readonly kind: "registry" };
}

function kindOf({ parentId, exitCode, timedOut }: HistoryRow): ReceiptStep["kind"] {
  if (parentId === null) return "image_import";
  return exitCode === null && !timedOut ? "checkpoint" : "instance";
}

/** True when arguments are missing, or the last one is only a beginning. */
function isCut(command: readonly string[] | null, kept: readonly string[] | null): boolean {
  return command?.length !== kept?.length || command?.at(-1) !== kept?.at(-1);
}

/** The parts of a kept request that a receipt shows. */
function requestOf(kept: KeptRequest): ReceiptRequest {
  if (kept.kind === "image_import") return { timeoutSeconds: kept.timeoutSeconds };
  if (kept.kind === "checkpoint") return { timeoutSeconds: kept.timeoutSeconds, instance: kept.instanceId };
  const { hostname, resources, network } = kept;
  const common = { ...given({ hostname, resources }), network: networkInputOf(network) };
  if (kept.kind === "sandbox") return common;
  const { cwd, uid, gid, envNames, stdinBytes, timeoutSeconds, isCut } = kept;
  return {
    ...common,
    ...(kept.isCwdGiven ? { workingDirectory: cwd } : {}),
    uid,
    gid,
    environmentNames: envNames,
    standardInputBytes: stdinBytes,
    timeoutSeconds,
    ...(isCut ? { truncated: true } : {}),
  };
}

/** The outcome of a step, without its network. */
function outcomeOf(row: HistoryRow, instance: OperationRow | null, step: number): Omit<ReceiptOutcome, "network"> {
  const result = instance?.result as Partial<StoredInstanceResult> | null | undefined;
  return {
    step,
    ...given({ exitCode: row.exitCode }),
    ...(row.timedOut ? { timedOut: true } : {}),
    ...(result?.oom_killed === true ? { outOfMemory: true } : {}),
    ...(row.startedAt === null ? {} : { startedOn: isoTime(row.startedAt) }),
    finishedOn: isoTime(row.createdAt),
    ...given({ isolation: result?.isolation }),
    isRecorded: instance !== null,
  };
}

function networkOf(row: HistoryRow, instance: OperationRow | null): NonNullable<ReceiptOutcome["network"]> {
  if (!row.network && (instance?.network ?? null) === null) return "none";
  const audit = instance?.network ?? null;
  return audit === null ? "not recorded" : reachedBy(audit);
}

function reachedBy({ entries, truncated }: NetworkAudit): ReceiptNetwork {
  const reached = entries.flatMap((entry) => {
    const { host, port, verdict, addresses, connections, bytes_sent: bytesSent, bytes_received: bytesReceived } = entry;
    if (verdict !== "allowed" || port === null) return [];
    return [{ host, port, addresses, connections, bytesSent, bytesReceived }];
  });
  return { reached, ...(truncated ? { truncated: true } : {}) };
}

/** The image that an import fetched, as a package URL names it; null for any other step. */
function dependencyOf({ source, digest, parentId }: HistoryRow): Resource | null {
  if (parentId !== null || digest === null) return null;
  const set = digestSet(digest);
  if (source === null) return { name: "image", digest: set };
  try {
    const { host, repository, tag } = parseRegistryReference(source);
    const query = [`repository_url=${encodeURIComponent(`${host}/${repository}`)}`];
    if (tag !== undefined) query.push(`tag=${encodeURIComponent(tag)}`);
    const name = repository.slice(repository.lastIndexOf("/") + 1);
    return { name: source, uri: `pkg:oci/${name}@${encodeURIComponent(digest)}?${query.join("&")}`, digest: set };
  } catch {
    // An archive has a name that need not be a reference.
    return { name: source, digest: set };
  }
}

/** A digest such as `sha256:…` in the form of in-toto. */
export function digestSet(digest: string): Readonly<Record<string, string>> {
  const colon = digest.indexOf(":");
  return { [digest.slice(0, colon)]: digest.slice(colon + 1) };
}
