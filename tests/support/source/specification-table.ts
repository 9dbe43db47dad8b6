/**
 * Writes the tables from the rows of the specification to the tests that cover them: build/specification.md.
 * Usage: bun tests/support/source/specification-table.ts
 */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { SPECIFICATION, type SpecificationSection } from "./specification.ts";

const ROOT = resolve(import.meta.dir, "../../..");
const PAGE = join(ROOT, "build/specification.md");

/** A test, and the rows that the comment above it names. */
export interface CoveringTest {
  /** from the root of the repository */
  readonly path: string;
  readonly line: number;
  /** with those of the surrounding groups; null when no test follows the comment */
  readonly title: string | null;
  readonly rows: readonly string[];
}

/** Beginning of a call that defines a test or a group of tests. */
const CALL = /^(\s*)(describe|\w*[tT]est)[.(]/;
/** A title: the string before the function of a test. */
const TITLE = /(["'`])((?:\\.|(?!\1)[^\\\n])*)\1,\s*(?:async\s*)?\(/;

/** Tests of one file that name rows by `// spec: ID, ID` in the lines above them. */
export function coveringTests(path: string, text: string): CoveringTest[] {
  const lines = text.split("\n");
  return lines.flatMap((line, index) => {
    if (!isSpec(line) || (index > 0 && isSpec(lines[index - 1] ?? ""))) return [];
    const end = lines.findIndex((candidate, at) => at > index && !isSpec(candidate));
    const rows = lines.slice(index, end).flatMap((comment) => comment.replace(/^\s*\/\/ spec: /, "").split(", "));
    return [{ path, line: end + 1, title: titleAt(lines, end), rows }];
  });
}

const isSpec = (line: string): boolean => /^\s*\/\/ spec: /.test(line);

function titleAt(lines: readonly string[], at: number): string | null {
  const [, indent] = CALL.exec(lines[at] ?? "") ?? [];
  if (indent === undefined) return null;
  const [, , title] = TITLE.exec(lines.slice(at).join("\n")) ?? [];
  if (title === undefined) return null;
  const plain = title.replaceAll(/\\(.)/g, "$1");
  if (indent === "") return plain;
  const group = lines.slice(0, at).findLastIndex((line) => /^describe\b/.test(line));
  const outer = group < 0 ? null : titleAt(lines, group);
  return outer === null ? plain : `${outer}: ${plain}`;
}

/** All tests that name rows, in the order of their files and lines. */
export function allCoveringTests(): CoveringTest[] {
  const paths = [...new Bun.Glob("tests/**/*.test.ts").scanSync(ROOT)].sort();
  return paths.flatMap((path) => coveringTests(path, readFileSync(join(ROOT, path), "utf8")));
}

/** The table of each section, for the page. */
export function specificationTables(sections: readonly SpecificationSection[], tests: readonly CoveringTest[]): string {
  return sections.map(({ title, rows }) => `### ${title}\n\n${tableOf(rows, tests)}`).join("\n");
}

function tableOf(rows: Readonly<Record<string, string>>, tests: readonly CoveringTest[]): string {
  const lines = Object.entries(rows).map(([id, text]) => {
    const covering = tests.filter((test) => test.rows.includes(id)).map(linkOf);
    return `| \`${id}\` | ${cellText(text)} | ${covering.join("<br>")} |\n`;
  });
  return `| row | specification | tests |\n|---|---|---|\n${lines.join("")}`;
}

function linkOf({ path, title }: CoveringTest): string {
  return `[${path.replace(/^tests\/|\.test\.ts$/g, "")}](../${path}): ${cellText(title ?? "")}`;
}

/** Text escaped for a cell of a table. */
function cellText(text: string): string {
  return text.replaceAll(/[\\|*_[\]<>`]/g, (character) => `\\${character}`);
}

if (import.meta.main) {
  mkdirSync(dirname(PAGE), { recursive: true });
  writeFileSync(
    PAGE,
    `# The specification, and its tests\n\n${specificationTables(SPECIFICATION, allCoveringTests())}`,
  );
}
