import { setTimeout } from "node:timers/promises";
import { ApiError } from "../domain/errors.ts";
import { diskUsageSum } from "./disk-usage.ts";
import type { ToolBounds } from "./tool.ts";
import { commonFailure } from "./tool-failure.ts";

/** Limits of a directory. */
export interface TreeLimits {
  /** limit of allocated bytes: empty files and holes cost nothing */
  readonly bytesMax: number;
  /** limit of names below the directory; every name of a hard-linked file counts */
  readonly entriesMax: number;
  /** messages that replace the default ones about images */
  readonly refusals?: { readonly bytes: string; readonly entries: string };
}

export interface TreeUsage {
  readonly bytes: number;
  readonly entries: number;
}

const INTERVAL_MS = 1000;
/** Pause between two counts, as a multiple of the last count's duration: a million files take seconds. */
const REST_RATIO = 10;

/**
 * Counts the contents of a directory, without following links or opening files.
 * @throws ApiError `unavailable` at the time limit; Error when counting fails, so that a failure does not count as empty
 */
export async function treeUsage(directory: string, bounds: ToolBounds): Promise<TreeUsage> {
  const count = async (...flags: readonly string[]): Promise<number> =>
    await diskUsageSum(flags, { ...bounds, directory, changing: true }).catch((error: unknown) => {
      throw commonFailure(error, bounds.timeoutMs) ?? error;
    });
  const [bytes, names] = await Promise.all([count("--block-size=1"), count("--inodes", "--count-links")]);
  return { bytes, entries: Math.max(0, names - 1) };
}

/** @throws ApiError `payload_too_large` when a directory exceeds its limits */
export async function requireWithinLimits(
  directory: string,
  limits: TreeLimits,
  bounds: ToolBounds,
): Promise<TreeUsage> {
  const usage = await treeUsage(directory, bounds);
  const error = excess(usage, limits);
  if (error !== null) throw error;
  return usage;
}

/**
 * Repeatedly counts a directory while programs write to it that know no limits. `exceeded` aborts within seconds after a
 * limit was exceeded, with the error of `requireWithinLimits`. Disposal waits for the running count.
 */
export function watchTree(
  directory: string,
  limits: TreeLimits,
  bounds: ToolBounds,
): AsyncDisposable & { readonly exceeded: AbortSignal } {
  const exceeded = new AbortController();
  const stopped = new AbortController();
  const watch = watchLoop(directory, limits, { ...bounds, signal: stopped.signal }, exceeded);
  return {
    exceeded: exceeded.signal,
    [Symbol.asyncDispose]: async () => {
      stopped.abort();
      await watch;
    },
  };
}

async function watchLoop(
  directory: string,
  limits: TreeLimits,
  bounds: ToolBounds,
  exceeded: AbortController,
): Promise<void> {
  const { signal } = bounds;
  for (let restMs = INTERVAL_MS; ; ) {
    // AbortError: the watch was disposed of.
    await setTimeout(restMs, undefined, { signal }).catch(() => undefined);
    const startedAt = performance.now();
    try {
      await requireWithinLimits(directory, limits, bounds);
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
