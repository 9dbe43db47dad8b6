/**
 * Writes the table of the source tree into docs/architecture.md, from the floors of the import rules.
 * Usage: bun tests/support/source/source-tree.ts
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { FLOORS } from "./import-rules.ts";

const PAGE = resolve(import.meta.dir, "../../..", "docs/architecture.md");
const BEGIN = "<!-- made by make test-table -->\n";
const END = "<!-- end of what make test-table makes -->\n";

/** The page as it is, and as it has to be. @throws Error when the page has no place for the table */
export function architecturePage(): { readonly is: string; readonly shouldBe: string } {
  const is = readFileSync(PAGE, "utf8");
  const [begin, end] = [is.indexOf(BEGIN), is.indexOf(END)];
  if (begin < 0 || end < begin) throw new Error(`${PAGE} has no place for the table`);
  const rows = FLOORS.map(({ names, content }) => {
    const paths = names.map((name) => `\`${join("src", name)}\``).join(", ");
    return `| ${paths} | ${content} |\n`;
  });
  const table = `| folder | content |\n|---|---|\n${rows.join("")}`;
  return { is, shouldBe: `${is.slice(0, begin + BEGIN.length)}\n${table}\n${is.slice(end)}` };
}

if (import.meta.main) writeFileSync(PAGE, architecturePage().shouldBe);
