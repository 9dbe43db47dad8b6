import { onSessionChange } from "../../data/session.ts";
import type { Version } from "./calls.ts";

/** A text that was changed and not saved. */
export interface Draft {
  readonly text: string;
  /** of the file from which it began */
  readonly base: Version;
}

/** Largest number of drafts; the oldest one makes place. */
const DRAFTS_MAX = 8;
const drafts = new Map<string, Draft>();
onSessionChange(() => drafts.clear());

export function draftOf(key: string): Draft | null {
  return drafts.get(key) ?? null;
}

/** @param draft null: there is none any longer */
export function keepDraft(key: string, draft: Draft | null): void {
  drafts.delete(key);
  if (draft !== null) drafts.set(key, draft);
  const oldest = drafts.keys().next().value;
  if (drafts.size > DRAFTS_MAX && oldest !== undefined) drafts.delete(oldest);
}
