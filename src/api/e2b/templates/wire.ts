import { given } from "../../../domain/given.ts";
import { isoTime } from "../../../domain/ids.ts";
import { type BuildLogEntry, type BuildLogLevel, LOG_LEVELS } from "../../../domain/templates/build-log.ts";
import type { Template, TemplateBuild, TemplateDetails, TemplateSummary } from "../../../service/templates/listing.ts";
import { ENVD_VERSION } from "../control/wire.ts";
import { E2bError } from "../errors.ts";

const MIB_BYTES = 1_048_576;
/** Largest number of log entries in an answer. */
export const ENTRIES_COUNT_MAX = 100;
/** Log entries of an ended build that clients have not read delay the news of its end for this long, in `milliseconds`. */
const DRAIN_MS = 30_000;

/** Fields of a template that listings and a single one share. */
function commonOf({ id, name, public: isPublic, createdAt, updatedAt, lastSpawnedAt, spawnCount }: Template) {
  return {
    templateID: id,
    public: isPublic,
    aliases: [name],
    names: [name],
    createdAt: isoTime(createdAt),
    updatedAt: isoTime(updatedAt),
    lastSpawnedAt: lastSpawnedAt === null ? null : isoTime(lastSpawnedAt),
    spawnCount,
  };
}

/** The disk of sandboxes of a template. */
export interface DiskSize {
  /** in `bytes` */
  readonly diskBytes: number;
}

function shapeOf({ config }: Pick<TemplateBuild, "config">, { diskBytes }: DiskSize) {
  return {
    cpuCount: config.vcpus ?? 1,
    memoryMB: Math.round((config.memoryBytes ?? 0) / MIB_BYTES),
    diskSizeMB: Math.round(diskBytes / MIB_BYTES),
    envdVersion: ENVD_VERSION,
  };
}

const NO_BUILD = { config: { user: null, cwd: null, env: {}, startCmd: null, readyCmd: null } } as const;

/** A template of a listing. */
export function listedOf(summary: TemplateSummary, disk: DiskSize) {
  const { template, latest, buildsCount } = summary;
  return {
    ...commonOf(template),
    ...shapeOf(latest ?? NO_BUILD, disk),
    buildID: latest?.id ?? "",
    buildStatus: latest?.status ?? "waiting",
    buildCount: buildsCount,
    createdBy: null,
  };
}

/** A template with its builds. */
export function detailOf({ template, builds }: TemplateDetails, disk: DiskSize) {
  return { ...commonOf(template), builds: builds.map((build) => buildOf(build, disk)) };
}

function buildOf(build: TemplateBuild, disk: DiskSize) {
  const { id, status, createdAt, finishedAt } = build;
  return {
    buildID: id,
    status,
    createdAt: isoTime(createdAt),
    updatedAt: isoTime(finishedAt ?? createdAt),
    ...(finishedAt === null ? {} : { finishedAt: isoTime(finishedAt) }),
    ...shapeOf(build, disk),
  };
}

export function entryOf({ at, message, level, step }: BuildLogEntry) {
  return { timestamp: isoTime(at), message, level, ...(step === null ? {} : { step }) };
}

/** The lowest level that `text` asks for. @throws E2bError 400 */
export function atLeast(text: string | undefined): (entry: BuildLogEntry) => boolean {
  const lowest = text === undefined ? 0 : LOG_LEVELS.indexOf(text as BuildLogLevel);
  if (lowest === -1) throw new E2bError(400, `level must be one of ${LOG_LEVELS.join(", ")}`);
  return ({ level }) => LOG_LEVELS.indexOf(level) >= lowest;
}

export interface StatusOptions {
  readonly templateId: string;
  readonly logsOffset?: number | undefined;
  readonly limit?: number | undefined;
  readonly level?: string | undefined;
  /** `milliseconds` since the epoch */
  readonly now: number;
}

/**
 * The status of a build, with a part of its log. An ended build is `building` for a client that has not read the end of the
 * log, because older ones stop at any other status.
 */
export function statusOf(build: TemplateBuild, log: readonly BuildLogEntry[], options: StatusOptions) {
  const { templateId, logsOffset = 0, limit = ENTRIES_COUNT_MAX, level, now } = options;
  const entries = log.filter(atLeast(level));
  const end = logsOffset + Math.min(limit, ENTRIES_COUNT_MAX);
  const page = entries.slice(logsOffset, end).map(entryOf);
  const isRest = end < entries.length && build.finishedAt !== null && now - build.finishedAt < DRAIN_MS;
  return {
    templateID: templateId,
    buildID: build.id,
    status: isRest ? ("building" as const) : build.status,
    logs: page.map(({ message }) => message),
    logEntries: page,
    ...(build.reason === null || isRest ? {} : { reason: reasonOf(build.reason) }),
  };
}

function reasonOf({ message, step, logEntries = [] }: NonNullable<TemplateBuild["reason"]>) {
  return { message, ...given({ step }), logEntries: (logEntries as readonly BuildLogEntry[]).map(entryOf) };
}
