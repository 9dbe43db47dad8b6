import { type MemoryImageRow, memoryImageOf } from "../../db/sandboxes/memory-images.ts";
import {
  listSandboxes,
  requireSandbox,
  type SandboxFilter,
  type SandboxPlace,
  type SandboxRow,
  sandboxNamed,
} from "../../db/sandboxes/rows.ts";
import { type ListedState, listStates } from "../../db/sandboxes/states.ts";
import { ApiError } from "../../domain/errors.ts";
import { type OperationId, parseUuid, type SandboxId } from "../../domain/ids.ts";
import { parseImageReference } from "../../domain/image.ts";
import { CHECKPOINT_TIMEOUT_SECONDS_DEFAULT } from "../../domain/instance.ts";
import { Spid } from "../../domain/log-event.ts";
import { checkMemoryForks } from "../../domain/memory-fork.ts";
import type { NetworkRule } from "../../domain/network.ts";
import { forkNames, parseHeadReference, type SandboxSample, type SandboxState } from "../../domain/sandbox.ts";
import { type TimeBoundField, timeBounds } from "../../domain/text/time-bound.ts";
import type { MemoryFork } from "../../supervisor/kinds/instance-forks.ts";
import type { RollbackTarget, SandboxPause, SandboxResumption } from "../../supervisor/sandboxes/ports.ts";
import { type Changed, change, unchanged } from "../change.ts";
import { type EventStream, type EventsRequest, openEventArray, openEvents } from "../events.ts";
import { resolveFile, resolveImageId } from "../instances.ts";
import { rulesFor } from "../network.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { sandboxLog } from "../running/running.ts";
import { checkSandbox, checkSettings, type SandboxInput, type SettingsInput } from "./checks.ts";

/** A sandbox. Times are `milliseconds` since the epoch. */
export type Sandbox = Omit<SandboxRow, "env" | "accountId" | "spidLast">;
export type SavedState = ListedState;
/** Memory of a paused sandbox, as far as its owner sees it. */
export type KeptMemory = Pick<MemoryImageRow, "createdAt" | "sizeBytes" | "problem">;

export interface ListSandboxes extends Pick<SandboxFilter, "name" | "metadata" | "sinceMs" | "order"> {
  readonly limit: number;
  /** in one of these states; absent: that have not ended */
  readonly states?: readonly SandboxState[] | undefined;
  /** `next` of the previous page */
  readonly cursor?: string | undefined;
}

/** A page. A search by name or metadata has pages with fewer than `limit`, and even none, before the last one. */
export interface SandboxPage {
  readonly sandboxes: readonly Sandbox[];
  /** cursor of the next page; null on the last one */
  readonly next: string | null;
}

export interface RollbackInput {
  /** `<uuid>`, `tag:<name>`, `HEAD` or `HEAD~n` */
  readonly image: string;
  /** true: what a running sandbox gives up is saved first */
  readonly keep: boolean;
  /** tag to move to the image of what is saved */
  readonly tag?: string | undefined;
}

export interface EndInput extends Pick<RollbackInput, "keep" | "tag"> {}

export interface DeadlineInput {
  /** from now, in `seconds`; not above 0: it has passed */
  readonly seconds: number;
  /** true: an earlier deadline than the present one changes nothing */
  readonly onlyLater: boolean;
}

export interface ForkInput {
  readonly count: number;
  /** beginning of their names; absent: the name of the sandbox */
  readonly name?: string | undefined;
  /** abandons the wait for the checkpoint */
  readonly signal: AbortSignal;
}

export interface MemoryForkInput extends ForkInput {
  /** number of a signal for the processes of each fork */
  readonly guestSignal?: number | undefined;
}

/** When a wait for a sandbox is over: in a state that does not pass by itself; when it runs or cannot; or at its end. */
export type SandboxGoal = "settled" | "running" | "ended";

export interface SandboxWait {
  readonly goal: SandboxGoal;
  readonly waitMs: number;
  readonly signal: AbortSignal;
}

/**
 * Sandboxes of an account. All functions with an id throw ApiError `not_found` when there is no such sandbox; those that
 * change its state throw `conflict` with `details.state` when the state does not allow it, or another request was faster.
 */
export interface SandboxUseCases {
  /** The id of the sandbox that a text names: `<uuid>` or `name:<name>`. @throws ApiError `not_found` */
  find(principal: Principal, reference: string): SandboxId;
  /**
   * Opens a sandbox, which is `starting` then.
   * @throws ApiError `validation_error`, `invalid_path`, `not_found` for the image or a file; `forbidden` for a network;
   *   `conflict` for a name that is in use; `too_many_requests`; as `OperationsPort.submit` does
   */
  open(principal: Principal, request: SandboxInput): Promise<Changed<Sandbox>>;
  /** A page. @throws ApiError `validation_error` for a cursor that no page had */
  list(principal: Principal, request: ListSandboxes): SandboxPage;
  get(principal: Principal, id: SandboxId): Sandbox;
  /** The memory that a sandbox of `get`, `list` or `wait` keeps; null: none. */
  memoryOf(sandbox: Pick<Sandbox, "id" | "state">): KeptMemory | null;
  /** The rules of the operator that networks of the caller's sandboxes may use; none when it may have no network. */
  networkRules(principal: Principal): readonly NetworkRule[];
  /** The sandbox when the goal is reached, or as it is after the time. */
  wait(principal: Principal, id: SandboxId, wait: SandboxWait): Promise<Sandbox>;
  /**
   * Changes settings.
   * @throws ApiError `validation_error`, `forbidden` for a network; `conflict` for a name that is in use; as
   *   `SandboxesPort.change` does
   */
  change(principal: Principal, id: SandboxId, settings: SettingsInput): Promise<Changed<Sandbox>>;
  /** Begins to save the files, and ends the machine then. @throws as `SandboxesPort.pause` does */
  pause(principal: Principal, id: SandboxId, request?: SandboxPause): Promise<Changed<OperationId>>;
  /** @throws as `SandboxesPort.resume` does */
  resume(principal: Principal, id: SandboxId, request?: Pick<SandboxResumption, "memory">): Promise<Changed<void>>;
  /**
   * Moves the deadline of a sandbox that has a machine; its lives after that are as long as before.
   * @throws ApiError `validation_error` for a deadline later than the operator allows
   */
  setDeadline(principal: Principal, id: SandboxId, request: DeadlineInput): Changed<Sandbox>;
  /** Moves the head, in place. @throws ApiError `not_found` for the image or the state; `validation_error` */
  rollback(principal: Principal, id: SandboxId, request: RollbackInput): Promise<Changed<void>>;
  /** Begins a checkpoint of a running sandbox, which moves its head. Returns the operation. */
  checkpoint(
    principal: Principal,
    id: SandboxId,
    request: { readonly tag?: string | undefined; readonly timeoutSeconds?: number | undefined },
  ): Promise<Changed<OperationId>>;
  /** Makes sandboxes from the present files, all or none. @throws as `open` does */
  fork(principal: Principal, id: SandboxId, request: ForkInput): Promise<Changed<readonly SandboxId[]>>;
  /** Copies a running sandbox with its memory. @throws ApiError `validation_error`; as `SandboxesPort.forkMemory` does */
  forkMemory(principal: Principal, id: SandboxId, request: MemoryForkInput): Promise<Changed<MemoryFork<SandboxId>>>;
  /** The saved states that are kept, newest first. */
  states(principal: Principal, id: SandboxId): readonly SavedState[];
  /**
   * Samples of the usage in the present life that lie in a span of time, in the order of time; none when it does not run.
   * @throws ApiError `validation_error` for a bound
   */
  samples(
    principal: Principal,
    id: SandboxId,
    span?: Partial<Record<TimeBoundField, string>>,
  ): readonly SandboxSample[];
  /** Ends a sandbox; one that saves its files first is `pausing` until then. An ended one stays as it is. */
  end(principal: Principal, id: SandboxId, request: EndInput): Promise<Changed<void>>;
  /**
   * Reads the event log. The stream must be disposed of.
   * @throws ApiError `too_many_requests` when too many clients read events
   */
  events(principal: Principal, id: SandboxId, request: EventsRequest): EventStream;
  /** Reads the event log up to the latest event. @throws ApiError like `events`, and as `Accounts.wait` does */
  eventArray(principal: Principal, id: SandboxId, request: EventsRequest): Promise<EventStream>;
}

export function sandboxUseCases(parts: ServiceParts): SandboxUseCases {
  const { db, sandboxes, limits, clock } = parts;
  const logOf = (principal: Principal, id: SandboxId) => sandboxLog(parts, requireSandbox(db, principal.accountId, id));
  return {
    find: (principal, reference) => find(parts, principal, reference),
    open: (principal, request) => open(parts, principal, request),
    list: (principal, request) => list(parts, principal, request),
    get: (principal, id) => requireSandbox(db, principal.accountId, id),
    memoryOf: ({ id, state }) => (state === "paused" || state === "resuming" ? memoryImageOf(db, id) : null),
    networkRules: (principal) => rulesFor(principal, limits.network),
    async wait(principal, id, { goal, waitMs, signal }) {
      const isReached = GOALS[goal];
      const row = requireSandbox(db, principal.accountId, id);
      if (waitMs === 0 || isReached(row.state)) return row;
      await sandboxes.settled(id, isReached, waitMs, signal);
      return requireSandbox(db, principal.accountId, id);
    },
    async change(principal, id, input) {
      const row = requireSandbox(db, principal.accountId, id);
      const settings = checkSettings(principal, input, limits);
      if (Object.keys(settings).length === 0) return unchanged(row);
      const details = () => ({ settings: Object.keys(settings) });
      return await change(parts, principal, { noun: "sandbox", verb: "change", id, details }, () =>
        sandboxes.change(principal.accountId, id, settings),
      );
    },
    async pause(principal, id, request) {
      return await change(parts, principal, { noun: "sandbox", verb: "pause", id }, () =>
        sandboxes.pause(principal.accountId, id, request),
      );
    },
    async resume(principal, id, request) {
      return await change(parts, principal, { noun: "sandbox", verb: "resume", id }, () =>
        sandboxes.resume(principal.accountId, id, request),
      );
    },
    setDeadline(principal, id, { seconds, onlyLater }) {
      checkSettings(principal, { timeoutSeconds: seconds }, limits);
      return change(parts, principal, { noun: "sandbox", verb: "deadline", id, details: () => ({ seconds }) }, () =>
        sandboxes.setDeadline(principal.accountId, id, { seconds: Math.max(0, seconds), onlyLater }),
      );
    },
    async rollback(principal, id, { image, keep, tag }) {
      requireSandbox(db, principal.accountId, id);
      requireKeep({ keep, tag });
      const target = rollbackTarget(parts, principal, image);
      const details = () => ({ image });
      return await change(parts, principal, { noun: "sandbox", verb: "rollback", id, details }, () =>
        sandboxes.rollback(principal.accountId, id, { target, keep, tag }),
      );
    },
    async checkpoint(principal, id, { tag = null, timeoutSeconds = CHECKPOINT_TIMEOUT_SECONDS_DEFAULT }) {
      return await change(parts, principal, { noun: "sandbox", verb: "checkpoint", id }, () =>
        sandboxes.checkpoint(principal.accountId, id, { tag, timeoutSeconds }),
      );
    },
    async fork(principal, id, { count, name, signal }) {
      const names = name === undefined ? undefined : forkNames(name, count);
      const details = (ids: readonly SandboxId[]) => ({ forks: ids });
      return await change(parts, principal, { noun: "sandbox", verb: "fork", id, details }, () =>
        sandboxes.fork(principal.accountId, id, { count, names }, signal),
      );
    },
    ...memoryForks(parts),
    samples(principal, id, span = {}) {
      requireSandbox(db, principal.accountId, id);
      const { sinceMs = Number.NEGATIVE_INFINITY, untilMs = Number.POSITIVE_INFINITY } = timeBounds(span, clock());
      return sandboxes.samples(id).filter(({ at }) => at >= sinceMs && at <= untilMs);
    },
    states: (principal, id) => listStates(db, requireSandbox(db, principal.accountId, id)),
    async end(principal, id, request) {
      requireKeep(request);
      if (hasEnded(requireSandbox(db, principal.accountId, id).state)) return unchanged(undefined);
      return await change(parts, principal, { noun: "sandbox", verb: "end", id }, () =>
        sandboxes.end(principal.accountId, id, request),
      );
    },
    events: (principal, id, request) => openEvents(parts, principal, logOf(principal, id), ofSandbox(request)),
    async eventArray(principal, id, request) {
      await sandboxes.logged(id);
      return await openEventArray(parts, principal, () => logOf(principal, id), ofSandbox(request));
    },
  };
}

/** The use case `forkMemory`. */
function memoryForks(parts: ServiceParts): Pick<SandboxUseCases, "forkMemory"> {
  return {
    async forkMemory(principal, id, { count, name, signal, guestSignal }) {
      checkMemoryForks(count);
      const names = name === undefined ? undefined : forkNames(name, count);
      const request = { count, names, signal: guestSignal ?? null };
      const details = ({ ids }: MemoryFork<SandboxId>) => ({ forks: ids });
      return await change(parts, principal, { noun: "sandbox", verb: "fork", id, details }, () =>
        parts.sandboxes.forkMemory(principal.accountId, id, request, signal),
      );
    },
  };
}

/** A request for the events of the agent gets those of the sandbox itself, too: they belong to no process. */
const ofSandbox = (request: EventsRequest): EventsRequest => ({ ...request, withStates: request.spid === Spid.agent });

const PASSING_STATES: ReadonlySet<SandboxState> = new Set(["starting", "pausing", "resuming"]);
const isSettled = (state: SandboxState): boolean => !PASSING_STATES.has(state);
const hasEnded = (state: SandboxState): boolean => state === "ended";
const GOALS: Readonly<Record<SandboxGoal, (state: SandboxState) => boolean>> = {
  settled: isSettled,
  // A rollback that saves what it gives up passes through `paused`.
  running: (state) => isSettled(state) && state !== "paused",
  ended: hasEnded,
};

function find({ db }: ServiceParts, principal: Principal, reference: string): SandboxId {
  const id = parseUuid<SandboxId>(reference);
  if (id !== null) return requireSandbox(db, principal.accountId, id).id;
  const name = reference.replace(/^name:/, "");
  const row = sandboxNamed(db, principal.accountId, name);
  if (row === null) throw new ApiError("not_found", "no such sandbox", { name });
  return row.id;
}

async function open(parts: ServiceParts, principal: Principal, request: SandboxInput): Promise<Changed<Sandbox>> {
  const { image, files, ...checked } = checkSandbox(principal, request, parts.limits);
  return await change(parts, principal, { noun: "sandbox", verb: "open", id: ({ id }) => id }, async () => {
    const imageId = resolveImageId(parts, principal, image);
    const resolved = files.map((file) => resolveFile(parts, principal, file));
    return await parts.sandboxes.create(principal.accountId, { ...checked, imageId, files: resolved });
  });
}

function list(
  { db }: ServiceParts,
  { accountId }: Principal,
  { states = [], cursor, limit, ...filter }: ListSandboxes,
): SandboxPage {
  const after = cursor === undefined ? undefined : placeOf(cursor);
  const { rows, searchedTo } = listSandboxes(db, accountId, { ...filter, states, after, limit: limit + 1 });
  const page = rows.slice(0, limit);
  const last = rows.length > limit ? page.at(-1) : searchedTo;
  return { sandboxes: page, next: last == null ? null : cursorOf(last) };
}

/** The place of a sandbox in the listing, as text. */
function cursorOf({ createdAt, id }: SandboxPlace): string {
  return Buffer.from(`${createdAt} ${id}`, "utf8").toString("base64url");
}

/** @throws ApiError `validation_error` */
function placeOf(cursor: string): SandboxPlace {
  const [time = "", text = ""] = Buffer.from(cursor, "base64url").toString("utf8").split(" ");
  const id = parseUuid<SandboxId>(text);
  if (/^\d{1,15}$/.test(time) && id !== null) return { createdAt: Number(time), id };
  throw new ApiError("validation_error", "cursor must be that of a page", { field: "cursor" });
}

/** @throws ApiError `validation_error`, `not_found` */
function rollbackTarget(parts: ServiceParts, principal: Principal, image: string): RollbackTarget {
  const head = parseHeadReference(image);
  if (head !== null) return { head };
  return { image: resolveImageId(parts, principal, parseImageReference(image)) };
}

/** @throws ApiError `validation_error` for a tag of an image that is not made */
function requireKeep({ keep, tag }: EndInput): void {
  if (tag !== undefined && !keep) throw new ApiError("validation_error", "tag needs keep", { field: "tag" });
}
