import { createStore } from "./store.ts";

/** Pauses between requests to an appliance that does not answer, in `milliseconds`. */
const LOOK_MS = [500, 1_000, 2_000, 4_000] as const;

/** Whether the appliance answers: `away` while it restarts, or while the network is gone. */
export const connection = createStore<"there" | "away">("there");

const returned = new Set<() => void>();

/** Calls `again` whenever the appliance is back. @returns a function that stops it */
export function onReturn(again: () => void): () => void {
  returned.add(again);
  return () => returned.delete(again);
}

/** Resolves when the appliance is back, after a time in `milliseconds` if there is one, or when `signal` fires. */
export function untilReturn(signal: AbortSignal, milliseconds?: number): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const end = () => resolve();
  const timer = milliseconds === undefined ? undefined : setTimeout(end, milliseconds);
  const leave = onReturn(end);
  signal.addEventListener("abort", end, { once: true });
  return promise.then(() => {
    clearTimeout(timer);
    leave();
    signal.removeEventListener("abort", end);
  });
}

/** Notes a response, of any status. */
export function noteAnswer(): void {
  if (connection.get() === "there") return;
  connection.set("there");
  for (const again of [...returned]) again();
}

/**
 * Notes a request without a response.
 * @param look asks the appliance for anything, and resolves to true when it answers; it never rejects
 */
export function noteSilence(look: () => Promise<boolean>): void {
  if (connection.get() === "away") return;
  connection.set("away");
  void lookUntilThere(look);
}

async function lookUntilThere(look: () => Promise<boolean>): Promise<void> {
  for (let turn = 0; connection.get() === "away"; turn += 1) {
    await pauseOrOnline(LOOK_MS[Math.min(turn, LOOK_MS.length - 1)] ?? 0);
    if (await look()) noteAnswer();
  }
}

/** Resolves after a time, or when the browser is online again. */
function pauseOrOnline(milliseconds: number): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, milliseconds);
  const online = () => resolve();
  addEventListener("online", online, { once: true });
  return promise.then(() => {
    clearTimeout(timer);
    removeEventListener("online", online);
  });
}
