import { parseUuid } from "../../domain/ids.ts";
import type { SandboxState } from "../../domain/sandbox.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { type ListSandboxes, type Sandbox, sandboxUseCases } from "../sandboxes/sandboxes.ts";
import { type E2bRecord, recordOf } from "./records.ts";

/** States of sandboxes as this dialect sees them; those that ended or failed are gone. */
export const LISTED_STATES = {
  running: ["starting", "running", "resuming"],
  paused: ["pausing", "paused"],
} as const satisfies Record<string, readonly SandboxState[]>;
export type ListedStateName = keyof typeof LISTED_STATES;

/** Pages that one request reads in search of a template. */
const SEARCHED_PAGES_MAX = 50;

export interface ListRecorded extends Pick<ListSandboxes, "metadata" | "limit" | "cursor" | "sinceMs" | "order"> {
  readonly states: readonly ListedStateName[];
  /** name or id of their template; null: any */
  readonly template: string | null;
}

/** A sandbox of a listing, with its record. */
export interface ListedRecorded {
  readonly sandbox: Sandbox;
  readonly record: E2bRecord;
}

export interface RecordedPage {
  readonly sandboxes: readonly ListedRecorded[];
  /** cursor of the next page; null on the last one */
  readonly next: string | null;
}

/** As `E2bUseCases.list`. */
export function list(parts: ServiceParts, principal: Principal, request: ListRecorded): RecordedPage {
  const { states, template, cursor, limit, ...filter } = request;
  const { db } = parts;
  const inStates = states.flatMap((state): readonly SandboxState[] => LISTED_STATES[state]);
  const use = sandboxUseCases(parts);
  const listed: ListedRecorded[] = [];
  let next = cursor ?? null;
  for (let pages = 0; pages < SEARCHED_PAGES_MAX; pages++) {
    const from = { ...filter, states: inStates, cursor: next ?? undefined, limit: limit - listed.length };
    const page = use.list(principal, from);
    const recorded = page.sandboxes.map((sandbox) => ({ sandbox, record: recordOf(db, sandbox) }));
    listed.push(...recorded.filter(({ record }) => template === null || isOf(record, template)));
    next = page.next;
    if (next === null || listed.length === limit) break;
  }
  return { sandboxes: listed, next };
}

/** Whether a sandbox was made of a template that a client names by its id, by its name, or by its name and a tag. */
function isOf({ templateId, alias }: E2bRecord, template: string): boolean {
  const name = template.toLowerCase();
  const isId = parseUuid(templateId) === null ? templateId === name : undashed(templateId) === undashed(name);
  return isId || (alias !== null && (alias === template || alias === name));
}

const undashed = (id: string): string => id.replaceAll("-", "");
