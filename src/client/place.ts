/** A running instance by its uuid, or a sandbox by its uuid or as `name:NAME`: each has processes, ports and events. */
export type Place =
  | { readonly instance: string; readonly sandbox?: undefined }
  /** requests by a sandbox count as its use, and resume one that is paused */
  | { readonly instance?: string | undefined; readonly sandbox: string };

/** The place, as users of instances alone write it. */
export function placeOfInstance(place: Place | string): Place {
  return typeof place === "string" ? { instance: place } : place;
}

/** The path of a place below /v1. */
export function pathOfPlace({ instance, sandbox }: Place): string {
  return sandbox === undefined
    ? `/instances/${encodeURIComponent(instance)}`
    : `/sandboxes/${encodeURIComponent(sandbox)}`;
}
