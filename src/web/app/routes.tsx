import type { ComponentType } from "preact";
import type { IconName } from "../parts/icon.tsx";

interface ViewModule {
  readonly View: ComponentType;
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
  // One image.
  // Operations, one operation, and the form of a run.
  // The house.
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
  /** names of the places that it leads to */
  readonly places: readonly string[];
}

export const DESTINATIONS: readonly Destination[] = [
  { label: "Branches", href: "/", icon: "branch", keys: "g b", places: ["branches", "image"] },
  { label: "Runs", href: "/runs", icon: "run", keys: "g r", places: ["runs"] },
  { label: "House", href: "/house", icon: "house", keys: "g h", places: ["house"] },
];
