/** How a step of a lineage changed a path. Replaced: by an entry of another type, or a directory by a new one. */
export const PATH_CHANGE_KINDS = ["added", "modified", "removed", "replaced"] as const;
export type PathChangeKind = (typeof PATH_CHANGE_KINDS)[number];
