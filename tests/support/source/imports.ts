import { dirname, join, relative, resolve } from "node:path";
import { MAY_IMPORT, MAY_IMPORT_WITHIN, MAY_LOAD, MAY_USE, TYPES_ONLY } from "./import-rules.ts";

const ROOT = resolve(import.meta.dir, "../../..");

/** An import of a module. */
export interface Import {
  readonly specifier: string;
  readonly typeOnly: boolean;
  /** by `import()` */
  readonly isDynamic?: boolean;
}

/** Static, dynamic, re-exporting and type imports: all statements that name a module. */
export function importsOf(text: string): Import[] {
  const statements = /^\s*(?:import|export)\s+(type\s)?[^;'"`]*?from\s*["']([^"']+)["']/gm;
  const bare = /^\s*import\s*["']([^"']+)["']/gm;
  const dynamic = /\b(?:import|require)\(\s*["'`]([^"'`]+)["'`]/g;
  return [
    ...[...text.matchAll(statements)].map(([, type, specifier = ""]) => ({ specifier, typeOnly: type !== undefined })),
    ...[...text.matchAll(bare)].map(([, specifier = ""]) => ({ specifier, typeOnly: false })),
    ...[...text.matchAll(dynamic)].map(([, specifier = ""]) => ({ specifier, typeOnly: false, isDynamic: true })),
  ];
}

/** The top folder below src that contains a file; a file next to the folders is its own. */
const topOf = (path: string): string => relative("src", path).split("/")[0] ?? "";

/** The table's entry for a file: that of the longest name that contains it. */
function entryOf(table: typeof MAY_IMPORT, path: string): readonly string[] | undefined {
  for (let name = relative("src", path); name !== "."; name = dirname(name)) {
    const entry = table[name];
    if (entry !== undefined) return entry;
  }
  return undefined;
}

/** Why an import is not allowed, or null. */
export function importProblem(from: string, { specifier, typeOnly, isDynamic = false }: Import): string | null {
  if (!specifier.startsWith(".")) return packageProblem(from, specifier);
  if (specifier.startsWith(".") && !/\.\w+$/.test(specifier)) return "has no extension";
  const target = relative(join(ROOT, "src"), resolve(ROOT, dirname(from), specifier));
  const folder = target.includes("/") && !target.startsWith("..") ? (target.split("/")[0] ?? "") : target;
  const own = topOf(from);
  if (folder === own) return problemWithin(relative("src", from), target, isDynamic);
  if (target === "log.ts" && typeOnly) return null;
  if (!typeOnly && TYPES_ONLY[own]?.includes(folder) === true) return "may be imported as a type only";
  const allowed = entryOf(MAY_IMPORT, from);
  if (allowed === undefined) return "comes from a place that the table does not know";
  const name = target.replace(/^(\.\.\/)+/, "");
  const fits = (entry: string): boolean =>
    entry === "*" || entry === folder || entry === name || `${entry}.ts` === folder;
  return allowed.some(fits) ? null : "goes against the direction of imports";
}

/** The same for two files of one top folder. */
function problemWithin(from: string, target: string, isDynamic: boolean): string | null {
  const [top = "", own = ""] = from.split("/");
  const rules = MAY_IMPORT_WITHIN[top];
  const other = target.split("/")[1] ?? "";
  if (rules === undefined || other === own || rules[own]?.includes(other) === true) return null;
  if (isDynamic && MAY_LOAD[`${top}/${own}`]?.includes(other) === true) return null;
  return `goes against the direction of imports inside ${top}`;
}

function packageProblem(from: string, specifier: string): string | null {
  const own = topOf(from);
  if (/^(node:|bun:|bun$)/.test(specifier)) return own === "domain" ? "domain is pure" : null;
  const name = specifier
    .split("/")
    .slice(0, specifier.startsWith("@") ? 2 : 1)
    .join("/");
  return entryOf(MAY_USE, from)?.includes(name) === true ? null : `only some folders may use ${name}`;
}
