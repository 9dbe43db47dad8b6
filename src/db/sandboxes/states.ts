import { and, asc, desc, eq, sql } from "drizzle-orm";
import { ApiError } from "../../domain/errors.ts";
import type { ImageId, SandboxId } from "../../domain/ids.ts";
import { type Database, isOneOf, statement } from "../database.ts";
import { getImage } from "../images/images.ts";
import { tags } from "../schema.ts";
import { type sandboxes, sandboxStates } from "./schema.ts";

type SandboxRow = typeof sandboxes.$inferSelect;
export type SandboxStateRow = typeof sandboxStates.$inferSelect;

/** A saved state as it is listed. */
export interface ListedState extends SandboxStateRow {
  readonly tags: readonly string[];
  readonly isHead: boolean;
  /** n of `HEAD~n`; null when the head does not stand on it */
  readonly headDistance: number | null;
}

const lastSeq = statement((orm) =>
  orm
    .select({ seq: sandboxStates.seq })
    .from(sandboxStates)
    .where(eq(sandboxStates.sandboxId, sql.placeholder("id")))
    .orderBy(desc(sandboxStates.seq))
    .limit(1)
    .prepare(),
);

/** Inserts a state behind the last one. To be called in a transaction. Returns its number. */
export function insertState(
  db: Database,
  state: Omit<SandboxStateRow, "seq" | "createdAt">,
  now: number,
): SandboxStateRow["seq"] {
  const seq = (lastSeq(db).get({ id: state.sandboxId })?.seq ?? -1) + 1;
  db.orm
    .insert(sandboxStates)
    .values({ ...state, seq, createdAt: now })
    .run();
  return seq;
}

/** The states of a sandbox that are kept, oldest first. */
export function statesOf(db: Database, sandboxId: SandboxId): SandboxStateRow[] {
  return db.orm
    .select()
    .from(sandboxStates)
    .where(eq(sandboxStates.sandboxId, sandboxId))
    .orderBy(asc(sandboxStates.seq))
    .all();
}

/** The states of a sandbox, newest first. */
export function listStates(db: Database, { id, headSeq }: Pick<SandboxRow, "id" | "headSeq">): ListedState[] {
  const states = statesOf(db, id);
  const names = db.orm
    .select({ imageId: tags.imageId, name: tags.name })
    .from(tags)
    .where(
      isOneOf(
        tags.imageId,
        states.map(({ imageId }) => imageId),
      ),
    )
    .orderBy(asc(tags.name))
    .all();
  const tagsOf = Map.groupBy(names, ({ imageId }) => imageId);
  const distances = new Map(line(states, headSeq).map(({ seq }, distance) => [seq, distance]));
  return states.reverse().map((state) => ({
    ...state,
    tags: (tagsOf.get(state.imageId) ?? []).map(({ name }) => name),
    isHead: state.seq === headSeq,
    headDistance: distances.get(state.seq) ?? null,
  }));
}

/** Where a head moves: to a state, or to another image of the account, which becomes a state. */
export type HeadTarget = { readonly seq: number; readonly imageId: ImageId } | { readonly imageId: ImageId };

/** Resolves the target of a rollback. @throws ApiError `not_found` when there is no such state */
export function targetOf(
  db: Database,
  row: Pick<SandboxRow, "id" | "headSeq">,
  target: { readonly image: ImageId } | { readonly head: number },
): HeadTarget {
  if ("head" in target) return stateBelowHead(db, row, target.head);
  return stateWithImage(db, row.id, target.image) ?? { imageId: target.image };
}

/**
 * Moves the head in the caller's transaction, as far as the states are concerned. Returns its columns.
 * @throws ApiError `not_found` when the account no longer has the image
 */
export function movedHead(
  db: Database,
  { id, accountId, headSeq }: Pick<SandboxRow, "id" | "accountId" | "headSeq">,
  { imageId, ...target }: HeadTarget,
  now: number,
): Pick<SandboxRow, "headId" | "headSeq"> {
  if (getImage(db, accountId, imageId) === null) {
    throw new ApiError("not_found", "no such image", { field: "image", uuid: imageId });
  }
  const seq = "seq" in target ? target.seq : null;
  // Another state may have the number of one that was deleted meanwhile.
  const isKept = seq !== null && statesOf(db, id).some((state) => state.seq === seq && state.imageId === imageId);
  if (isKept) return { headId: imageId, headSeq: seq };
  const state = { sandboxId: id, imageId, parentSeq: headSeq, reason: "rollback" as const };
  return { headId: imageId, headSeq: insertState(db, state, now) };
}

/**
 * The state that `HEAD~distance` names.
 * @throws ApiError `not_found` when the head has fewer states below it
 */
function stateBelowHead(
  db: Database,
  { id, headSeq }: Pick<SandboxRow, "id" | "headSeq">,
  distance: number,
): SandboxStateRow {
  const states = line(statesOf(db, id), headSeq);
  const state = states[distance];
  if (state !== undefined) return state;
  const details = { field: "image", states: states.length };
  throw new ApiError("not_found", `the sandbox has no state HEAD~${distance}`, details);
}

/** The last saved state with the image; null when there is none. */
function stateWithImage(db: Database, sandboxId: SandboxId, imageId: ImageId): SandboxStateRow | null {
  return (
    db.orm
      .select()
      .from(sandboxStates)
      .where(and(eq(sandboxStates.sandboxId, sandboxId), eq(sandboxStates.imageId, imageId)))
      .orderBy(desc(sandboxStates.seq))
      .limit(1)
      .get() ?? null
  );
}

/** The state `seq` and those below it, from the top. A parent has a lower number, so there is an end. */
function line(states: readonly SandboxStateRow[], seq: number): SandboxStateRow[] {
  const bySeq = new Map(states.map((state) => [state.seq, state]));
  const below: SandboxStateRow[] = [];
  for (let state = bySeq.get(seq); state !== undefined; state = bySeq.get(state.parentSeq ?? -1)) below.push(state);
  return below;
}
