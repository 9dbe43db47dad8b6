import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";

const ROOT = resolve(import.meta.dir, "../../..");

export interface SourceFile {
  /** from the root of the repository */
  readonly path: string;
  readonly text: string;
}

/** Paths of all files below a directory, from the root of the repository. */
export function filesBelow(directory: string): string[] {
  return readdirSync(join(ROOT, directory), { withFileTypes: true }).flatMap((entry) => {
    const path = join(directory, entry.name);
    if (entry.isDirectory()) return entry.name === "node_modules" ? [] : filesBelow(path);
    return entry.isFile() ? [path] : [];
  });
}

const read = (path: string): SourceFile => ({ path, text: readFileSync(join(ROOT, path), "utf8") });
/** The hand-written files of the repository. */
export const everything = [
  ...["src", "tests", "vm-assets", "systemd", "docs"].flatMap(filesBelow),
  ...[
    "Makefile",
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "package.json",
    "bunfig.toml",
    "tsconfig.json",
    "biome.json",
  ],
].map(read);
export const isTypeScript = ({ path }: SourceFile): boolean => /\.tsx?$/.test(path);
/** The product, and the tools that build it. */
export const source = everything.filter((file) => file.path.startsWith("src/") && isTypeScript(file));
/** Files with readable text. */
export const written = everything.filter(({ path }) =>
  /\.(tsx?|css|c|h|sh|md|toml|service|conf)$|Makefile$/.test(path),
);
const RULES = "tests/tidy.test.ts";

/** Places that match `pattern`, for a message. */
export function places(files: readonly SourceFile[], pattern: RegExp): string[] {
  return files.flatMap(({ path, text }) =>
    text.split("\n").flatMap((line, index) => (pattern.test(line) ? [`${path}:${index + 1}: ${line.trim()}`] : [])),
  );
}

/** Files without those named, and without the rules, which contain the forbidden words. */
export const except = (files: readonly SourceFile[], ...paths: string[]): SourceFile[] =>
  files.filter(({ path }) => path !== RULES && !paths.includes(path));
