const GAP = "  ";
const ELLIPSIS = "…";

/**
 * A table for people: aligned columns, two spaces apart; the last column is not padded.
 * @param columns characters of a line, into which the columns behind the first one are cut; null: as wide as it is
 */
export function table(
  header: readonly string[],
  rows: readonly (readonly string[])[],
  columns: number | null = null,
): string {
  const all = [header, ...rows.map((row) => row.map(printable))];
  const natural = header.map((_, index) => all.reduce((most, row) => Math.max(most, widthOf(row[index] ?? "")), 0));
  const widths = columns === null ? natural : fittingWidths(natural, columns);
  const line = (row: readonly string[]): string => {
    const cells = row.map((cell, index) => cut(cell, widths[index] ?? 0));
    const padded = cells.map((cell, index) => cell + " ".repeat(Math.max(0, (widths[index] ?? 0) - widthOf(cell))));
    return padded.join(GAP).trimEnd();
  };
  return `${all.map((row) => (columns === null ? line(row) : cut(line(row), columns))).join("\n")}\n`;
}

/** Narrows the widest columns until all fit. The first column stays whole: it has the ids for other commands. */
function fittingWidths([first = 0, ...natural]: readonly number[], columns: number): number[] {
  const room = columns - first - GAP.length * natural.length;
  let cap = Math.max(0, ...natural);
  const sum = (most: number): number => natural.reduce((all, width) => all + Math.min(width, most), 0);
  while (cap > 1 && sum(cap) > room) cap -= 1;
  // The last step narrows all of them equally; the first ones get back the surplus.
  let spare = Math.max(0, room - sum(cap));
  const widths = natural.map((width) => {
    const more = width > cap && spare > 0 ? 1 : 0;
    spare -= more;
    return Math.min(width, cap + more);
  });
  return [first, ...widths];
}

/** Width of a text without control characters, in cells of a terminal. */
const widthOf = (text: string): number => Bun.stringWidth(text);

/** The text in at most `columns` cells of a terminal; an ellipsis stands for what is missing. */
export function cut(text: string, columns: number): string {
  if (widthOf(text) <= columns) return text;
  let kept = "";
  let width = 0;
  for (const { segment } of graphemes.segment(text)) {
    width += widthOf(segment);
    if (width > columns - 1) break;
    kept += segment;
  }
  return `${kept}${ELLIPSIS}`;
}

const graphemes = new Intl.Segmenter();

/** The text with control characters as octal numbers: names and messages must not control the terminal. */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: this replaces control characters.
  return text.replace(/[\x00-\x1f\x7f-\x9f]/g, (char) => `\\${char.charCodeAt(0).toString(8).padStart(3, "0")}`);
}
