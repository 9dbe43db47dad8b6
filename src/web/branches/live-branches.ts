import { readBranches } from "../../client/branches.ts";
import type { Change } from "../../client/types.ts";
import { api } from "../data/api.ts";
import { followChanges } from "../data/changes.ts";
import { type Problem, problemOf } from "../data/problem.ts";
import { csrf, onSessionChange } from "../data/session.ts";
import { Branches } from "./model/branches.ts";
import type { ImageNode } from "./model/forest.ts";
import { type Row, rowOf } from "./model/rows.ts";

/** How long the first load waits for the stream of changes, in `milliseconds`, so that no change is missed. */
const STREAM_WAIT_MS = 250;
/** Number of changes before a full reload, which drops the traces that many changes leave for late rows. */
const CHANGES_COUNT_MAX = 10_000;
/** How long early images are kept for a view, in `milliseconds`. */
const EARLY_MS = 5_000;

/** The images of the account, kept up to date until `stop`. */
export class LiveBranches {
  /** called after each change */
  onChange: () => void = () => undefined;
  #problem: Problem | undefined;
  #loading: AbortController | null = null;
  /** since the last full load */
  #changesCount = 0;
  readonly branches = new Branches(() => this.onChange());
  readonly #leave: () => void;
  readonly #timer: ReturnType<typeof setTimeout>;

  constructor() {
    this.#leave = followChanges((change) => this.#apply(change));
    this.#timer = setTimeout(() => {
      if (this.#loading === null) this.reload();
    }, STREAM_WAIT_MS);
  }

  /** Why images are missing. */
  get problem(): Problem | undefined {
    return this.#problem;
  }

  readonly reload = (): void => void this.#load(null);

  /** Loads older images. */
  readonly loadOlder = (): void => void this.#load(oldestOf(this.branches));

  stop(): void {
    this.onChange = () => undefined;
    clearTimeout(this.#timer);
    this.#leave();
    this.#loading?.abort();
  }

  #apply(change: Change): void {
    const row = rowOf(change);
    this.#changesCount += 1;
    if (change.type === "resync" || this.#changesCount > CHANGES_COUNT_MAX) this.reload();
    else if (row !== null) this.branches.take([row]);
  }

  async #load(before: string | null): Promise<void> {
    this.#loading?.abort();
    const own = new AbortController();
    this.#loading = own;
    if (before === null) {
      this.branches.beginAnew();
      this.#changesCount = 0;
    }
    try {
      const part = before === null ? {} : { before };
      for await (const rows of readBranches(api, { ...part, signal: own.signal })) {
        // Rows that arrived before the abort may still be delivered.
        if (own.signal.aborted) return;
        this.branches.take(rows.map(rowOf).filter((row): row is Row => row !== null));
      }
      this.#problem = undefined;
    } catch (error) {
      if (own.signal.aborted) return;
      this.#problem = problemOf(error);
    }
    this.onChange();
  }
}

function oldestOf({ drawing }: Branches): string | null {
  let oldest: ImageNode | null = null;
  for (const image of drawing.forest.images.values()) {
    if (oldest === null || image.createdAt < oldest.createdAt) oldest = image;
  }
  return oldest?.id ?? null;
}

let early: LiveBranches | null = null;

/** Starts loading before the session and the first drawing are ready. The next view uses the result. */
export function openEarly(): void {
  if (csrf() === "" || early !== null) return;
  early = new LiveBranches();
  setTimeout(dropEarly, EARLY_MS);
}

/** The branches that `openEarly` has begun to load, or new ones. The caller stops them. */
export function openBranches(): LiveBranches {
  const opened = early ?? new LiveBranches();
  early = null;
  return opened;
}

onSessionChange(dropEarly);

function dropEarly(): void {
  early?.stop();
  early = null;
}
