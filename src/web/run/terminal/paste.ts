/** Visible lines of a text before it is pasted. */
const SHOWN_COUNT = 12;

/** Pasted text without control characters but tabs and ends of lines: an escape could end the paste, and type. */
export function pastedText(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: those are what it takes out.
  return text.replaceAll("\r\n", "\n").replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "");
}

/** The first lines of a text, and how many follow. */
export function firstLines(text: string): { readonly lines: readonly string[]; readonly more: number } {
  const lines = text.replace(/\n$/, "").split("\n");
  return { lines: lines.slice(0, SHOWN_COUNT), more: Math.max(0, lines.length - SHOWN_COUNT) };
}
