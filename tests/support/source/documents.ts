import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";

const ROOT = resolve(import.meta.dir, "../../..");

/** Pages for users and developers, by their path in the repository. */
export const DOCUMENTS: readonly string[] = [
  "README.md",
  "SECURITY.md",
  "CHANGELOG.md",
  "tests/README.md",
  ...readdirSync(join(ROOT, "docs"))
    .filter((name) => name.endsWith(".md"))
    .map((name) => `docs/${name}`)
    .sort(),
];

/** A command, and the output that the page shows; null without one. */
export interface Step {
  readonly command: string;
  readonly output: string | null;
}

export function documentText(path: string): string {
  return readFileSync(join(ROOT, path), "utf8");
}

/** The text between a heading of the second level and the next one. @throws Error when the page has no such heading */
export function sectionOf(path: string, heading: string): string {
  const section = documentText(path).split(`\n## ${heading}\n`)[1]?.split("\n## ")[0];
  if (section === undefined) throw new Error(`${path} has no section ${heading}`);
  return section;
}

/** Rows of all tables of a text, without their headings and rules. */
export function rowsOf(text: string): string[] {
  const lines = text.split("\n");
  return lines.filter(
    (line, index) => line.startsWith("|") && !line.startsWith("|---") && lines[index + 1]?.startsWith("|---") !== true,
  );
}

interface Block {
  readonly language: string;
  readonly text: string;
  /** where it begins and ends in its page */
  readonly from: number;
  readonly to: number;
}

/** Fenced blocks of a text, including those in lists, without their indentation. */
function blocksOf(text: string): Block[] {
  return [...text.matchAll(/^( *)```(\w*)\n([\s\S]*?)^\1```$/gm)].map((match) => {
    const [all, indent = "", language = "", inside = ""] = match;
    const unindented = inside.replaceAll(new RegExp(`^${indent}`, "gm"), "");
    return { language, text: unindented, from: match.index, to: match.index + all.length };
  });
}

/** Languages of the blocks of a text. */
export function languagesOf(text: string): string[] {
  return [...new Set(blocksOf(text).map(({ language }) => language))];
}

/**
 * Commands of a text in their order: those after the prompt in `console` blocks, each with the lines up to the next prompt,
 * and `sh` blocks, each with the `json` or `text` block that directly follows it.
 * @param prompt `$` for a user; `#` for root on the appliance's machine, without the `sh` blocks
 */
export function stepsOf(text: string, prompt: "$" | "#" = "$"): Step[] {
  const blocks = blocksOf(text);
  return blocks.flatMap((block, index) => {
    if (block.language === "console") return consoleSteps(block.text, prompt);
    if (block.language !== "sh" || prompt === "#") return [];
    const next = blocks[index + 1];
    const follows =
      next !== undefined && /^(json|text)$/.test(next.language) && text.slice(block.to, next.from).trim() === "";
    return [{ command: block.text.trimEnd(), output: follows ? next.text.trimEnd() : null }];
  });
}

function consoleSteps(text: string, prompt: "$" | "#"): Step[] {
  if (!text.startsWith(`${prompt} `)) return [];
  return text
    .split(new RegExp(`^\\${prompt} `, "m"))
    .slice(1)
    .map((part) => {
      const [command = "", ...lines] = part.trimEnd().split("\n");
      return { command, output: lines.length === 0 ? null : lines.join("\n") };
    });
}
