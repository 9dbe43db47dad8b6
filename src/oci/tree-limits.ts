import { setTimeout } from "node:timers/promises";
import { ApiError } from "../domain/errors.ts";
import { diskUsageSum } from "./disk-usage.ts";
import type { ToolBounds } from "./tool.ts";
import { commonFailure } from "./tool-failure.ts";

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

const INTERVAL_MS = 1000;
/** Share of the time that may go into looking: a tree of a million files takes seconds. */
const REST_RATIO = 10;

/**
 * Counts what is in a directory. Neither a link is followed nor a file opened.
 * @throws ApiError `unavailable` on time-out, Error when it could not be counted: nothing may pass for empty
 */
export async function treeUsage(directory: string, bounds: ToolBounds): Promise<TreeUsage> {
  const count = async (...flags: readonly string[]): Promise<number> =>
    await diskUsageSum(flags, { ...bounds, directory, changing: true }).catch((error: unknown) => {
      throw commonFailure(error, bounds.timeoutMs) ?? error;
    });
  const [bytes, names] = await Promise.all([count("--block-size=1"), count("--inodes", "--count-links")]);
  return { bytes, entries: Math.max(0, names - 1) };
}

/** @throws ApiError `payload_too_large` when a directory holds more than it may */
export async function requireWithin(directory: string, limits: TreeLimits, bounds: ToolBounds): Promise<TreeUsage> {
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
  bounds: ToolBounds,
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
  bounds: ToolBounds,
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
