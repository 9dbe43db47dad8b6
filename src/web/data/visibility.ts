import { createStore } from "./store.ts";

/** A page counts as visible this long after it was hidden, in `milliseconds`: a look at another tab reloads nothing. */
const HIDDEN_MS = 5_000;

/**
 * Whether the page is visible, or was a moment ago. A hidden page closes its streams: their number is limited, and
 * without WebSockets all tabs of a browser share six connections to a host.
 */
export const isPageVisible = createStore(document.visibilityState === "visible");

let hiding: ReturnType<typeof setTimeout> | undefined;

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.visibilityState === "visible") isPageVisible.set(true);
  else hiding = setTimeout(() => isPageVisible.set(false), HIDDEN_MS);
});
