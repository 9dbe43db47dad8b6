/** Characters that need no quotes in any shell. */
const PLAIN_WORD = /^[A-Za-z0-9_@%+=:,./-]+$/;
// biome-ignore lint/suspicious/noControlCharactersInRegex: it matches control characters.
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;

/** A text as one word of a POSIX shell. Control characters get the form `$'…'`, which bash, zsh and ksh know. */
export function quoted(text: string): string {
  if (PLAIN_WORD.test(text)) return text;
  if (!CONTROL.test(text.replaceAll("\n", ""))) return `'${text.replaceAll("'", "'\\''")}'`;
  const escaped = [...text].map((character) => {
    if (character === "'" || character === "\\") return `\\${character}`;
    if (character === "\n") return "\\n";
    if (!CONTROL.test(character)) return character;
    const code = character.charCodeAt(0);
    // Three octal digits, so that a digit after them is text; \u with four digits above ASCII.
    return code < 0x80 ? `\\${code.toString(8).padStart(3, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
  return `$'${escaped.join("")}'`;
}

/** Words as the line of a shell. */
export function shellLine(words: readonly string[]): string {
  return words.map(quoted).join(" ");
}

/** The words of a typed line. */
export type Words = { readonly words: readonly string[] } | { readonly problem: string };

const ESCAPES: Readonly<Record<string, string>> = { n: "\n", t: "\t", r: "\r", a: "\u0007", b: "\b", f: "\f", v: "\v" };

/**
 * Splits a line into words as a shell does: at blanks, with quotes and backslashes. Nothing is expanded: `$HOME`, `*` and `|`
 * are text.
 */
export function shellWords(line: string): Words {
  const words: string[] = [];
  let word: string | null = null;
  for (let at = 0; at < line.length; at += 1) {
    const character = line.charAt(at);
    if (/\s/.test(character)) {
      if (word !== null) words.push(word);
      word = null;
      continue;
    }
    const isAnsi = character === "$" && line.charAt(at + 1) === "'";
    if (isAnsi || character === "'" || character === '"') {
      const text = isAnsi ? ansi(line, at + 2) : character === "'" ? single(line, at + 1) : double(line, at + 1);
      if (text === null) return { problem: `a quote ${isAnsi ? "$'" : character} is not closed` };
      word = (word ?? "") + text.text;
      at = text.end;
    } else if (character === "\\") {
      if (at + 1 === line.length) return { problem: "nothing follows the backslash at the end" };
      at += 1;
      // A backslash at the end of a line joins it with the next one.
      if (line.charAt(at) !== "\n") word = (word ?? "") + line.charAt(at);
    } else word = (word ?? "") + character;
  }
  if (word !== null) words.push(word);
  return { words };
}

/** The text of a quotation and the position of its end; null: it does not end. */
type Quote = { readonly text: string; readonly end: number } | null;

function single(line: string, from: number): Quote {
  const end = line.indexOf("'", from);
  return end < 0 ? null : { text: line.slice(from, end), end };
}

function double(line: string, from: number): Quote {
  let text = "";
  for (let at = from; at < line.length; at += 1) {
    const character = line.charAt(at);
    if (character === '"') return { text, end: at };
    const next = line.charAt(at + 1);
    if (character === "\\" && next !== "" && '"\\$`\n'.includes(next)) {
      at += 1;
      if (next !== "\n") text += next;
    } else text += character;
  }
  return null;
}

function ansi(line: string, from: number): Quote {
  let text = "";
  for (let at = from; at < line.length; at += 1) {
    const character = line.charAt(at);
    if (character === "'") return { text, end: at };
    if (character !== "\\") {
      text += character;
      continue;
    }
    const number = /^(?:([0-7]{1,3})|[xu]([0-9a-fA-F]{1,4}))/.exec(line.slice(at + 1));
    if (number !== null) {
      const [code, octal, hex = ""] = number;
      text += String.fromCharCode(octal === undefined ? Number.parseInt(hex, 16) : Number.parseInt(octal, 8));
      at += code.length;
    } else {
      at += 1;
      text += ESCAPES[line.charAt(at)] ?? line.charAt(at);
    }
  }
  return null;
}
