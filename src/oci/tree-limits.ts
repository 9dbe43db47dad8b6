import { setTimeout } from "node:timers/promises";
import { ApiError } from "../domain/errors.ts";
import { run } from "../system/exec.ts";
import type { ToolBounds } from "./tool.ts";
import { commonFailure, reasonOf } from "./tool-failure.ts";

/** What a directory may amount to. */
export interface TreeLimits {
  /** allocated on the disk: a file without a byte costs nothing, a hole neither */
  readonly bytesMax: number;
  /** names below the directory; each name of a file with several counts */
  readonly entriesMax: number;
  /** what to say instead of that the image unpacks to more */
  readonly refusals?: { readonly bytes: string; readonly entries: string };
}

export interface TreeUsage {
  readonly bytes: number;
  readonly entries: number;
}

/** What bounds the looking itself. */
export type LookBounds = Pick<ToolBounds, "timeoutMs" | "signal">;

const INTERVAL_MS = 1000;
/** Share of the time that may go into looking: a tree of a million files takes seconds. */
const REST_RATIO = 10;

/** What is in the tree may vanish meanwhile, which du takes for a failure, but tells the sum all the same. */
const DU = 'du -s "$@" || :';

/**
 * Counts what is in a directory. Neither a link is followed nor a file opened.
 * @throws ApiError `unavailable` on time-out, Error when it could not be counted: nothing may pass for empty
 */
export async function treeUsage(directory: string, bounds: LookBounds): Promise<TreeUsage> {
  const { timeoutMs, signal } = bounds;
  const count = async (...flags: readonly string[]): Promise<number> => {
    const argv = ["sh", "-c", DU, "sh", ...flags, "--", directory];
    const { stdout, stderr } = await run({ argv, timeoutMs, signal }).catch((error: unknown) => {
      throw commonFailure(error, timeoutMs) ?? error;
    });
    const found = Number.parseInt(Buffer.from(stdout).toString("latin1"), 10);
    if (Number.isNaN(found)) throw new Error(`du could not count ${directory}: ${reasonOf(stderr)}`);
    return found;
  };
  const [bytes, names] = await Promise.all([count("--block-size=1"), count("--inodes", "--count-links")]);
  return { bytes, entries: Math.max(0, names - 1) };
}

/** @throws ApiError `payload_too_large` when a directory holds more than it may */
export async function requireWithin(directory: string, limits: TreeLimits, bounds: LookBounds): Promise<TreeUsage> {
  const usage = await treeUsage(directory, bounds);
  const error = excess(usage, limits);
  if (error !== null) throw error;
  return usage;
}

/**
 * Looks at a directory again and again while programs write to it that know no such limits. `exceeded` fires, with the
 * reason that `requireWithin` gives, seconds after it has become too large; disposal waits for the look under way.
 */
export function watchTree(
  directory: string,
  limits: TreeLimits,
  bounds: LookBounds,
): AsyncDisposable & { readonly exceeded: AbortSignal } {
  const exceeded = new AbortController();
  const stopped = new AbortController();
  const watch = look(directory, limits, { ...bounds, signal: stopped.signal }, exceeded);
  return {
    exceeded: exceeded.signal,
    [Symbol.asyncDispose]: async () => {
      stopped.abort();
      await watch;
    },
  };
}

async function look(
  directory: string,
  limits: TreeLimits,
  bounds: LookBounds,
  exceeded: AbortController,
): Promise<void> {
  const { signal } = bounds;
  for (let restMs = INTERVAL_MS; ; ) {
    // AbortError: the watch is over.
    await setTimeout(restMs, undefined, { signal }).catch(() => undefined);
    const startedAt = performance.now();
    try {
      await requireWithin(directory, limits, bounds);
    } catch (error) {
      if (!signal.aborted) exceeded.abort(error);
      return;
    }
    restMs = Math.max(INTERVAL_MS, REST_RATIO * (performance.now() - startedAt));
  }
}

function excess({ bytes, entries }: TreeUsage, { bytesMax, entriesMax, refusals }: TreeLimits): ApiError | null {
  if (bytes > bytesMax) {
    const message = refusals?.bytes ?? `the image unpacks to more than the ${bytesMax} bytes that the operator allows`;
    return new ApiError("payload_too_large", message, { bytes_max: bytesMax });
  }
  if (entries > entriesMax) {
    const message = refusals?.entries ?? `the image has more than the ${entriesMax} files that the operator allows`;
    return new ApiError("payload_too_large", message, { entries_max: entriesMax });
  }
  return null;
}
