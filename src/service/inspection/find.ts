import { type ByteString, displayName, type GuestPath } from "../../domain/tree/guest-path.ts";
import type { Entry } from "../../domain/tree/listing.ts";
import { STEP_COUNT } from "../../storage/pacer.ts";
import type { ImageTree } from "../../storage/tree/image-tree.ts";
import { NameFilter } from "../../storage/tree/name-filter.ts";

/** Bounds of a search for names. */
const FIND_ENTRIES_COUNT_MAX = 1_000_000;
const FIND_MS_MAX = 10_000;
/** Instructions of a pattern times characters of a path in one test, which blocks the event loop for at most a millisecond. */
const TEST_WORK_MAX = 65_536;

export interface FindRequest {
  readonly path: GuestPath;
  /** see `NameFilter`; a path that is too long for it is skipped */
  readonly glob: string;
  /** limit of paths */
  readonly limit: number;
}

export interface PathEntry {
  readonly path: ByteString;
  readonly entry: Pick<Entry, "type" | "size">;
}

export interface FindOutcome {
  readonly paths: readonly PathEntry[];
  /** false: a limit ended the search */
  readonly isComplete: boolean;
}

/**
 * Finds the entries below a path whose names match, directories before their contents.
 * @throws ApiError `validation_error` for the pattern, `not_found` or `invalid_path` for the path
 */
export async function findNames(tree: ImageTree, { path, glob, limit }: FindRequest): Promise<FindOutcome> {
  const filter = new NameFilter([glob], TEST_WORK_MAX);
  const resolved = await tree.stat(path, { follow: true });
  const root = resolved.path === "/" ? "" : resolved.path;
  const paths: PathEntry[] = [];
  const deadline = performance.now() + FIND_MS_MAX;
  let count = 0;
  for await (const walked of tree.walk(resolved)) {
    count++;
    if (count > FIND_ENTRIES_COUNT_MAX) return { paths, isComplete: false };
    if (count % STEP_COUNT === 0 && performance.now() > deadline) return { paths, isComplete: false };
    const name = displayName(walked.path);
    if (name === "" || name.length > filter.pathLengthMax || !filter.selects(name)) continue;
    if (paths.length === limit) return { paths, isComplete: false };
    const { type, size } = walked.located.entry;
    paths.push({ path: `${root}/${walked.path}` as ByteString, entry: { type, size } });
  }
  return { paths, isComplete: true };
}
