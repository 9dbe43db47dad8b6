/**
 * Words that say less than those of the field, and names that say nothing of their value.
 * Usage: bun tests/support/source/words.ts [PATH…]   (prints every place, below the paths)
 */
import { everything, type SourceFile } from "./source-files.ts";

/** A pattern of words, and what to write in place of them. */
interface Word {
  readonly pattern: RegExp;
  readonly instead: string;
}

const WORDS: readonly Word[] = [
  { pattern: /\ban(?:ew)\b/i, instead: "again, or the verb alone" },
  { pattern: /\bwho(?:ever)\b/i, instead: "the caller, the reader, the client" },
  { pattern: /\b(?:no|some|every)(?:body)\b/i, instead: "no client, another account, every caller" },
  { pattern: /\b(?:go(?:es|ing)?|went) (?:on)\b(?!-)/i, instead: "continue, run, last" },
  { pattern: /\b(?:is|are|was|were|be|been) (?:told)\b/i, instead: "is notified, gets, is reported" },
  { pattern: /\bbe(?:side)\b/i, instead: "next to, with, during, in addition to" },
  { pattern: /\bnot (?:any more)\b/i, instead: "no longer" },
  {
    pattern:
      /(?<!\bthere )\b(?:is|are|was|were) no (?!longer|more|less|such|error|one\b|need|way\b|room\b|reason|place\b)[a-z]/i,
    instead: "is not a",
  },
  { pattern: /^\s*(?:\/\*\*|\*|\/\/)\s+(?:What|Who|Of the|Whatever)\s/, instead: "a noun, or a subject and its verb" },
];

/** A declaration, a parameter or a field whose name is a participle. */
const PARTICIPLE =
  /(?:\b(?:const|let|readonly|function|get|set)\s+|[([{,]\s*|\.\.\.)#?(?:found|known|shown|wanted|told|taken|made)\s*(?:[:=,)}?]|\()/;

/** Names that are given: a field of the API, and the user and maintainer of images. */
const GIVEN: Readonly<Record<string, RegExp>> = {
  "src/api/v1/running/ports.ts": /\btaken\b/,
  "src/client/connections/port.ts": /\btaken\b/,
  "tests/api/running/ports.test.ts": /\btaken\b/,
  "tests/support/images/images.ts": /\bno(?:body):/,
  "tests/support/network/deb-archive.ts": /\bno(?:body)@/,
  "tests/system/running/exec-files.test.ts": /"no(?:body)"/,
  "tests/system/imports/import-formats.test.ts": /"no(?:body)"/,
};

/** Places with such words or names: the file, the line, and what to write instead. */
export function wordsToReplace(files: readonly SourceFile[]): string[] {
  return files.flatMap(({ path, text }) =>
    text.split("\n").flatMap((line, index) => {
      if (GIVEN[path]?.test(line) === true) return [];
      const instead = WORDS.flatMap((word) => (word.pattern.test(line) ? [word.instead] : []));
      const isCode = /\.tsx?$/.test(path) && !/^\s*(?:\*|\/\/|\/\*)/.test(line);
      if (isCode && PARTICIPLE.test(line)) instead.push("a noun for the name");
      return instead.map((text) => `${path}:${index + 1}: ${line.trim()} [${text}]`);
    }),
  );
}

if (import.meta.main) {
  const below = process.argv.slice(2);
  const files = everything.filter(({ path }) => below.length === 0 || below.some((name) => path.startsWith(name)));
  const places = wordsToReplace(files);
  process.stdout.write(`${[...places, `${places.length} places`].join("\n")}\n`);
}
