import { createStore } from "./store.ts";

/** How long a hidden page counts as seen, in `milliseconds`: going to another tab and back loads nothing anew. */
const HIDDEN_MS = 5_000;

/**
 * Whether somebody sees the page, or saw it a moment ago. A page that nobody sees gives its streams back: the appliance has
 * a limited number of them, and where there are no WebSockets, all tabs of a browser share six connections to a host.
 */
export const isPageVisible = createStore(document.visibilityState === "visible");

let hiding: ReturnType<typeof setTimeout> | undefined;

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.visibilityState === "visible") isPageVisible.set(true);
  else hiding = setTimeout(() => isPageVisible.set(false), HIDDEN_MS);
});
