import { RE2JS } from "re2js";

/**
 * Compiles a shell pattern: `*` and `?` match no slash, `**` does, `[a-z]` and `[!a-z]` are sets, `{a,b}` is an
 * alternative, and a backslash escapes the next character. Matching takes linear time.
 * @throws Error when the pattern is invalid
 */
export function globMatcher(glob: string): {
  readonly matches: (name: string) => boolean;
  /** largest number of instructions for each character */
  readonly programSize: number;
} {
  const expression = RE2JS.compile(`^(?s:${translate(glob)})$`);
  return { matches: (name) => expression.test(name), programSize: expression.programSize() };
}

function translate(glob: string): string {
  let source = "";
  let depth = 0;
  for (let at = 0; at < glob.length; at++) {
    const rest = glob.slice(at);
    const char = glob[at] ?? "";
    const set = /^\[([!^]?)(\]?[^\]/]*)\]/.exec(rest);
    if (rest.startsWith("**/")) {
      source += "(?:.*/)?";
      at += 2;
    } else if (rest.startsWith("**")) {
      source += ".*";
      at += 1;
    } else if (char === "*") source += "[^/]*";
    else if (char === "?") source += "[^/]";
    else if (set !== null) {
      source += `[${set[1] === "" ? "" : "^/"}${(set[2] ?? "").replaceAll(/[\\[\]^]/g, "\\$&")}]`;
      at += set[0].length - 1;
    } else if (char === "{") {
      source += "(?:";
      depth++;
    } else if (char === "}" && depth > 0) {
      source += ")";
      depth--;
    } else if (char === "," && depth > 0) source += "|";
    else if (char === "\\" && at + 1 < glob.length) source += RE2JS.quote(glob[++at] ?? "");
    else source += RE2JS.quote(char);
  }
  if (depth > 0) throw new Error("a brace is not closed");
  return source;
}
