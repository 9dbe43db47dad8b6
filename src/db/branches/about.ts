import { shellWord } from "../../domain/text/shell-word.ts";
import { LINE_CHARACTERS_MAX } from "../requests.ts";

/** Longest beginning of a text that is read, in `characters`: the whole may be long. */
const READ_CHARACTERS_MAX = 8 * LINE_CHARACTERS_MAX;

/** A command in one line, as a person would type it, cut at {@link LINE_CHARACTERS_MAX}. */
export function aboutCommand(argv: readonly string[]): string {
  const [shell = "", option, expression] = argv;
  const isExpression = option === "-c" && expression !== undefined && /(?:^|\/)\w*sh$/.test(shell);
  // The text behind an expression is the name of the shell again, and then its arguments.
  const words = isExpression ? [expression, ...argv.slice(4).map(quoted)] : argv.map(quoted);
  return aboutText(words.join(" "));
}

/** A text in one line, cut at {@link LINE_CHARACTERS_MAX}. */
export function aboutText(text: string): string {
  const line = text.slice(0, READ_CHARACTERS_MAX).replaceAll(/\s+/g, " ").trim();
  const isWhole = line.length <= LINE_CHARACTERS_MAX && text.length <= READ_CHARACTERS_MAX;
  return isWhole ? line : `${line.slice(0, LINE_CHARACTERS_MAX - 1)}…`.toWellFormed();
}

function quoted(argument: string): string {
  return shellWord(argument.slice(0, READ_CHARACTERS_MAX));
}

/**
 * The texts at the beginning of a JSON array of texts that may be cut anywhere. The last text may be cut, too. Any other
 * value ends them.
 */
export function leadingTexts(json: string): string[] {
  const texts: string[] = [];
  const next = /[[,]\s*"((?:[^"\\]|\\.)*)("?)/sy;
  for (let match = next.exec(json); match !== null; match = next.exec(json)) {
    const [, body = "", end] = match;
    texts.push(JSON.parse(`"${end === "" ? withoutCutEscape(body) : body}"`) as string);
    if (end === "") break;
  }
  return texts;
}

/** A text of JSON without the escape at its end, of which some of the digits may be missing. */
function withoutCutEscape(body: string): string {
  return body.replace(/(?<!\\)((?:\\\\)*)\\(?:u[\da-fA-F]{0,4})?$/, "$1");
}
