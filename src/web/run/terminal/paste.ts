/** Visible lines of a text before it is pasted. */
const SHOWN_COUNT = 12;

/** Pasted text without control characters, except tabs and line ends: an escape sequence could end the paste early. */
export function pastedText(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it removes control characters.
  return text.replaceAll("\r\n", "\n").replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "");
}

/** The first lines of a text, and how many follow. */
export function firstLines(text: string): { readonly lines: readonly string[]; readonly more: number } {
  const lines = text.replace(/\n$/, "").split("\n");
  return { lines: lines.slice(0, SHOWN_COUNT), more: Math.max(0, lines.length - SHOWN_COUNT) };
}
