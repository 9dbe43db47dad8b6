import { useEffect, useRef } from "preact/hooks";
import { readChanges } from "../../client/branches.ts";
import type { Change } from "../../client/types.ts";
import { api } from "./api.ts";
import { connection, untilReturn } from "./connection.ts";
import { problemOf } from "./problem.ts";
import { csrf, onSessionChange } from "./session.ts";
import { isPageVisible } from "./visibility.ts";

/** How long an early stream stays open without a handler, in `milliseconds`. */
const EARLY_MS = 5_000;
/** Pauses before a stream that ended is opened again, in `milliseconds`. */
const AGAIN_MS = [250, 1_000, 4_000, 15_000] as const;

const handlers = new Set<(change: Change) => void>();
let stream: AbortController | null = null;
/** True after `resync`: the stream has begun, or this session may not read one. */
let hasBegun = false;

/**
 * Calls `handle` for each change while the component is shown. The page has one stream, which is open while there are
 * handlers and the page is visible. `resync` comes whenever the stream begins, and after missed changes: the handler
 * then loads its data, and applies the changes that follow. It also comes once if the session may not read the stream.
 */
export function useChanges(handle: (change: Change) => void): void {
  const latest = useRef(handle);
  latest.current = handle;
  useEffect(() => followChanges((change) => latest.current(change)), []);
}

/**
 * Calls `handle` for each change, as `useChanges` does.
 * @returns a function that stops it
 */
export function followChanges(handle: (change: Change) => void): () => void {
  handlers.add(handle);
  if (hasBegun) handle({ type: "resync" });
  keepListening();
  return () => {
    handlers.delete(handle);
    keepListening();
  };
}

/** Changes of operations within this time count as one, in `milliseconds`. */
const SETTLE_MS = 250;

/** Calls `again` when operations of the account have changed, while the component is shown. */
export function useOperationChanges(again: () => void): void {
  const latest = useRef(again);
  latest.current = again;
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  useChanges(({ type }) => {
    if ((type !== "operation" && type !== "resync") || timer.current !== undefined) return;
    timer.current = setTimeout(() => {
      timer.current = undefined;
      latest.current();
    }, SETTLE_MS);
  });
}

/**
 * Opens the stream before the session and the view are there, so that the first handler can load at once. Without a
 * handler it is closed again.
 */
export function listenEarly(): void {
  if (csrf() === "" || !isPageVisible.get() || stream !== null) return;
  void listen();
  setTimeout(keepListening, EARLY_MS);
}

/** Opens the stream if there are handlers and the page is visible, and closes it otherwise. */
function keepListening(): void {
  if (handlers.size === 0 || !isPageVisible.get()) stop();
  else if (stream === null) void listen();
}

function stop(): void {
  stream?.abort();
  stream = null;
  hasBegun = false;
}

isPageVisible.subscribe(keepListening);
onSessionChange(stop);

function tell(change: Change): void {
  for (const handle of [...handlers]) handle(change);
}

async function listen(): Promise<void> {
  const own = new AbortController();
  stream = own;
  for (let failures = 0; !own.signal.aborted; failures += 1) {
    try {
      for await (const change of readChanges(api, { signal: own.signal })) {
        failures = 0;
        hasBegun = true;
        tell(change);
      }
    } catch (error) {
      if (own.signal.aborted) return;
      // Without a stream, handlers still load the present state.
      if (!hasBegun) tell({ type: "resync" });
      hasBegun = true;
      const { status } = problemOf(error);
      if (status >= 400 && status < 500 && status !== 429) return;
    }
    if (own.signal.aborted) return;
    const againMs = AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)] ?? 0;
    // While the appliance is away, `connection` reports when it is back.
    await untilReturn(own.signal, connection.get() === "there" ? againMs : undefined);
  }
}
