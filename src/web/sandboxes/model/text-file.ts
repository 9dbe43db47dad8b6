/** A text as a field of a page holds it: with line feeds between lines, whatever the file has. */
export interface TextFile {
  readonly text: string;
  /** written between the lines again */
  readonly lineEnd: "\n" | "\r\n" | "\r";
  /** true: the file has several kinds of line ends, of which `lineEnd` is the most frequent one */
  readonly isMixed: boolean;
  /** true: it begins with a byte order mark */
  readonly hasMark: boolean;
}

const MARK = "\ufeff";

/** The text of some bytes; null: they are not UTF-8, or a NUL is among them. */
export function textFileOf(bytes: Uint8Array): TextFile | null {
  if (bytes.includes(0)) return null;
  let whole: string;
  try {
    whole = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    // TypeError: not UTF-8.
    return null;
  }
  const counts = { "\n": 0, "\r\n": 0, "\r": 0 };
  for (const [end] of whole.matchAll(/\r\n|\r|\n/g)) counts[end as keyof typeof counts] += 1;
  const [first, second] = (Object.keys(counts) as (keyof typeof counts)[]).sort((a, b) => counts[b] - counts[a]);
  const hasMark = whole.startsWith(MARK);
  return {
    text: whole.slice(hasMark ? 1 : 0).replaceAll(/\r\n?/g, "\n"),
    lineEnd: first ?? "\n",
    isMixed: second !== undefined && counts[second] > 0,
    hasMark,
  };
}

/** The bytes of a text, in the form of the file that it was read from. @param text with line feeds between lines */
export function bytesOfText({ lineEnd, hasMark }: TextFile, text: string): Uint8Array<ArrayBuffer> {
  const lines = lineEnd === "\n" ? text : text.replaceAll("\n", lineEnd);
  return new TextEncoder().encode(`${hasMark ? MARK : ""}${lines}`);
}
