import { type ComponentChildren, h } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { isUpgraded } from "../data/session.ts";
import { createStore, useStore } from "../data/store.ts";
import { printable } from "../text/printable.ts";
import { type Route, routeOf } from "./links.ts";

const address = createStore(addressNow());
addEventListener("popstate", () => address.set(addressNow()));

function addressNow(): string {
  return location.pathname + location.search;
}

/** The present route; the component is redrawn when it changes. */
export function useRoute(): Route {
  return routeOf(useStore(address));
}

/**
 * Goes to a link of this page.
 * @param to a path with its query, or a query alone ("?view=files") of the path that is shown
 * @param options `replace`: the link takes the place of the one that is shown, so that "back" leaves both
 */
export function navigate(to: string, { replace = false }: { readonly replace?: boolean } = {}): void {
  const target = new URL(to, location.href);
  // This page has no links to other origins.
  if (target.origin !== location.origin) return;
  const next = target.pathname + target.search;
  if (next === address.get()) return;
  const isElsewhere = target.pathname !== location.pathname;
  // An upgraded appliance has other chunks: the next place is loaded as a whole page.
  if (isElsewhere && isUpgraded.get()) {
    location.assign(target);
    return;
  }
  if (replace) history.replaceState(null, "", next);
  else history.pushState(null, "", next);
  address.set(next);
  if (isElsewhere) scrollTo(0, 0);
}

export interface LinkProps {
  /** as `to` of {@link navigate} */
  readonly href: string;
  readonly replace?: boolean;
  readonly id?: string | undefined;
  readonly class?: string | undefined;
  readonly title?: string | undefined;
  readonly tabIndex?: number | undefined;
  readonly "aria-label"?: string | undefined;
  readonly "aria-current"?: "page" | "true" | "step" | undefined;
  readonly "aria-describedby"?: string | undefined;
  readonly onClick?: ((event: MouseEvent) => void) | undefined;
  readonly onFocus?: (() => void) | undefined;
  readonly onPointerEnter?: (() => void) | undefined;
  readonly children?: ComponentChildren;
}

/** A link within this page. Modified clicks open tabs and windows as for any link. */
export function Link({ href, replace = false, onClick, ...rest }: LinkProps) {
  const follow = (event: MouseEvent) => {
    onClick?.(event);
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(href, { replace });
  };
  return h("a", { ...rest, href, onClick: follow });
}

/** The title of the document while the component is shown. */
export function useTitle(title: string): void {
  useLayoutEffect(() => {
    document.title = title === "" ? "Coppice" : `${printable(title)} · Coppice`;
  }, [title]);
}
