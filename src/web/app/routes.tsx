import type { ComponentType } from "preact";
import type { IconName } from "../parts/icon.tsx";

/** The chunk of a view. */
export interface ViewModule {
  readonly View: ComponentType;
  /** begins what the view loads first, for the page that opens with this view */
  readonly prepare?: () => void;
}

/** A view, and the links that it shows. */
export interface Place {
  readonly name: string;
  /** matches the path */
  readonly path: RegExp;
  /** the chunk of the view; it is loaded once */
  readonly load: () => Promise<ViewModule>;
}

export const PLACES: readonly Place[] = [
  // The forest of images.
  { name: "branches", path: /^\/$/, load: () => import("../branches/view.tsx") },
  // One image.
  { name: "image", path: /^\/images\/[^/]+$/, load: () => import("../image/view.tsx") },
  { name: "sandboxes", path: /^\/sandboxes(?:\/[^/]*)?$/, load: () => import("../sandboxes/view.tsx") },
  { name: "runs", path: /^\/runs(?:\/[^/]*)?$/, load: () => import("../run/view.tsx") },
  // The appliance.
  {
    name: "appliance",
    path: /^\/appliance(?:\/(?:space|operations|tokens|health))?$/,
    load: () => import("../appliance/view.tsx"),
  },
];

export function placeOf(path: string): Place | undefined {
  return PLACES.find((place) => place.path.test(path));
}

/** An entry of the navigation. */
export interface Destination {
  readonly label: string;
  readonly href: string;
  readonly icon: IconName;
  readonly keys: string;
  /** matches the paths of all places that it leads to */
  readonly paths: RegExp;
}

export const DESTINATIONS: readonly Destination[] = [
  { label: "Branches", href: "/", icon: "branch", keys: "g b", paths: /^\/(images\/|$)/ },
  { label: "Sandboxes", href: "/sandboxes", icon: "sandbox", keys: "g s", paths: /^\/sandboxes(\/|$)/ },
  { label: "Runs", href: "/runs", icon: "run", keys: "g r", paths: /^\/runs(\/|$)/ },
  { label: "Appliance", href: "/appliance", icon: "appliance", keys: "g a", paths: /^\/appliance(\/|$)/ },
];
