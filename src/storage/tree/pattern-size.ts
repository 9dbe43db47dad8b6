/** Parts of a pattern; a part of none of these kinds is one atom. */
const PARTS = new RegExp(
  [
    String.raw`\\Q(?<quoted>.*?)(?:\\E|$)`,
    String.raw`(?<repeat>\{(?<min>\d+)(?<to>,(?<max>\d*))?\}\??|[*+?]\??)`,
    // before the start of a group: it sets flags, and is not a group
    String.raw`(?<flags>\(\?[a-zA-Z-]*\))`,
    String.raw`(?<open>\((?:\?P?<[^>]*>|\?[a-zA-Z-]*:)?)|(?<close>\))|(?<or>\|)`,
    // a class, and other escapes
    String.raw`\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\\x\{[^}]*\}|\\[pP]\{[^}]*\}|\\.`,
    ".",
  ].join("|"),
  "gsu",
);

/** The alternatives of a group so far. */
interface Group {
  /** instructions without those of the last atom */
  size: number;
  /** instructions of the last atom, which a repetition multiplies */
  atomSize: number;
}

/**
 * The number of instructions to which a pattern compiles, or somewhat more. Unlike compiling, this takes little time and
 * memory for every text, also one that is not a valid pattern.
 */
export function patternSize(pattern: string): number {
  let group: Group = { size: 2, atomSize: 1 };
  const outer: Group[] = [];
  const add = (atomSize: number): void => {
    group = { size: group.size + group.atomSize, atomSize };
  };
  for (const { groups = {} } of pattern.matchAll(PARTS)) {
    if (groups["repeat"] !== undefined) group.atomSize = repeatedSize(group.atomSize, groups);
    else if (groups["quoted"] !== undefined) for (const _ of groups["quoted"]) add(1);
    else if (groups["open"] !== undefined) {
      outer.push(group);
      group = { size: 2, atomSize: 1 };
    } else if (groups["close"] !== undefined) {
      const { size, atomSize } = group;
      group = outer.pop() ?? group;
      add(size + atomSize);
    } else if (groups["or"] !== undefined) {
      add(1);
      add(1);
    } else if (groups["flags"] === undefined) add(1);
  }
  return [...outer, group].reduce((size, part) => size + part.size + part.atomSize, 0);
}

/** @param groups named groups of a match of a repetition */
function repeatedSize(atomSize: number, { min, to, max }: Readonly<Record<string, string | undefined>>): number {
  if (min === undefined) return atomSize + 2;
  const least = Number(min);
  const most = to === undefined ? least : Number(max ?? "");
  return most > least ? most * atomSize + most - least : Math.max(1, least) * atomSize + 2;
}
