import { globMatcher } from "./glob.ts";
import { compileField } from "./line-pattern.ts";

interface Glob {
  readonly isNegated: boolean;
  readonly isForDirectories: boolean;
  /** the glob has a slash, so it is compared with paths rather than with names */
  readonly isPath: boolean;
  readonly matches: (name: string) => boolean;
  readonly programSize: number;
}

/**
 * Selects files by globs, as ripgrep does: the last one that matches decides. A file that none matches is selected only if
 * all globs are negated. A directory for which a negated glob decides is excluded with its contents.
 */
export class NameFilter {
  /** the last one first */
  readonly #globs: readonly Glob[];
  readonly #selectsOthers: boolean;
  readonly #canExclude: boolean;
  /** longest path that may be compared, in `characters` */
  readonly pathLengthMax: number;

  /**
   * @param globs as the caller wrote them
   * @param workMax limit of the program size times the length of a path
   * @throws ApiError `validation_error`
   */
  constructor(globs: readonly string[], workMax: number) {
    this.#globs = globs.map((glob) => compileField("glob", () => parsed(glob))).reverse();
    this.#selectsOthers = this.#globs.every(({ isNegated }) => isNegated);
    this.#canExclude = this.#globs.some(({ isNegated }) => isNegated);
    const size = this.#globs.reduce((sum, { isPath, programSize }) => sum + (isPath ? programSize : 0), 0);
    this.pathLengthMax = size === 0 ? Number.POSITIVE_INFINITY : Math.max(1, Math.floor(workMax / size));
  }

  /** True for a file to be searched. @param path relative to the root of the search */
  selects(path: string): boolean {
    return this.#decision(path, false) ?? this.#selectsOthers;
  }

  /** True for a directory to be skipped with its contents. */
  excludes(directory: string): boolean {
    return this.#canExclude && directory.length <= this.pathLengthMax && this.#decision(directory, true) === false;
  }

  #decision(path: string, isDirectory: boolean): boolean | null {
    const name = path.slice(path.lastIndexOf("/") + 1);
    for (const { isNegated, isForDirectories, isPath, matches } of this.#globs) {
      if ((isDirectory || !isForDirectories) && matches(isPath ? path : name)) return !isNegated;
    }
    return null;
  }
}

function parsed(glob: string): Glob {
  const isNegated = glob.startsWith("!");
  const positive = isNegated ? glob.slice(1) : glob;
  const isForDirectories = positive.length > 1 && positive.endsWith("/");
  const source = isForDirectories ? positive.slice(0, -1) : positive;
  return {
    isNegated,
    isForDirectories,
    isPath: source.includes("/"),
    ...globMatcher(source.replace(/^\//, "")),
  };
}
