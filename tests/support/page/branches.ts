import type { Page } from "playwright-core";
import type { ImageRow, RunRow, RunState } from "../../../src/web/branches/model/forest.ts";

/** A row of an image. @param at `milliseconds` since 1970 */
export function image(id: string, parentId: string | null, at: number, more: Partial<ImageRow> = {}): ImageRow {
  return {
    id,
    parentId,
    skipped: 0,
    tag: null,
    createdAt: at,
    origin: parentId === null ? "image_import" : "instance",
    command: null,
    exitCode: null,
    timedOut: false,
    addedBytes: 4096,
    operation: `op-${id}`,
    ...more,
  };
}

export function run(id: string, imageId: string | null, state: RunState = "running"): RunRow {
  return { id, imageId, origin: "instance", state, command: "make", since: 1 };
}

/** A slicer whose pieces run at once. */
export function done<T>(work: Generator<void, T>): T {
  for (;;) {
    const step = work.next();
    if (step.done === true) return step.value;
  }
}

/**
 * Lines of an answer of `GET /v1/branches` with `count` images: a chain of 200 runs, 1,000 runs of one image, and further
 * ones at random places, always the same.
 */
export function branchLines(count: number): string {
  let seed = 7;
  const random = (below: number): number => {
    seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fff_ffff;
    return seed % below;
  };
  const lines: string[] = [];
  for (let at = 0; at < count; at++) {
    const parent = at < BASES ? null : parentOf(at, random);
    lines.push(
      JSON.stringify({
        type: "image",
        uuid: uuidOf(at),
        ...(parent === null ? { tag: `base-${at}` } : { parent: uuidOf(parent) }),
        created_at: new Date(BEGIN + at * 60_000).toISOString(),
        size_bytes: 4096 * (1 + random(1000)),
        kind: parent === null ? "image_import" : "instance",
        operation: uuidOf(at + count),
        about: parent === null ? "registry.example.net/base:1" : `make step-${at}`,
        ...(parent === null ? {} : { exit_code: random(20) === 0 ? 2 : 0 }),
      }),
    );
  }
  return `${[...lines, JSON.stringify({ type: "end", older: false })].join("\n")}\n`;
}

/** Imported images of a fixture. */
const BASES = 5;
const CHAIN = 200;
const FAN = 1_000;
const BEGIN = Date.UTC(2026, 0, 1);

function parentOf(at: number, random: (below: number) => number): number {
  if (at < BASES + CHAIN) return at === BASES ? 0 : at - 1;
  if (at < BASES + CHAIN + FAN) return 1;
  return random(10) < 7 ? at - 1 : random(at);
}

/** The uuid of an image of the fixture. */
export function uuidOf(at: number): string {
  const digits = at.toString(16).padStart(12, "0");
  return `0190a000-0000-7000-8000-${digits}`;
}

/** A change: a run of an image has started. */
export function startedRun(at: number, image: string): { readonly uuid: string } {
  const run = { uuid: uuidOf(at), kind: "instance", status: "EXECUTING", image };
  return Object.assign(run, { type: "operation", created_at: new Date().toISOString() });
}

/** Changes as the appliance sends them. */
export function changeEvents(changes: readonly object[]): Buffer {
  return Buffer.from(changes.map((change) => `data: ${JSON.stringify(change)}\n\n`).join(""));
}

/** The key of the selected item of the branches; null without a selection. */
export async function activeOf(page: Page): Promise<string | null> {
  return await page.evaluate(
    () => document.querySelector("[role=treeitem][aria-selected=true]")?.getAttribute("data-key") ?? null,
  );
}
