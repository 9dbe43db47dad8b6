import { type EncodedPath, pathInQuery, ROOT } from "../image/paths.ts";

export const VIEWS = ["files", "terminal", "history", "processes", "ports", "events"] as const;
export type SandboxViewName = (typeof VIEWS)[number];

/** The parts of a link to a sandbox. */
export interface SandboxLink {
  /** uuid, or `name:` and a name */
  readonly id: string;
  readonly view: SandboxViewName;
  /** of a file or a directory */
  readonly path: EncodedPath;
  /** number of the process; null: none */
  readonly process: number | null;
}

/** @param search the query as it stands in the address: `path` may be bytes that are not UTF-8 */
export function parseLink(id: string, search: string): SandboxLink {
  const fields = new URLSearchParams(search);
  const view = VIEWS.find((name) => name === fields.get("view")) ?? "files";
  const process = Number.parseInt(fields.get("process") ?? "", 10) || null;
  return { id, view, process, path: pathInQuery(search, "path") ?? ROOT };
}

/** The link of a part of a sandbox. */
export function linkTo(
  id: string,
  view: SandboxViewName,
  { path = ROOT, process }: { readonly path?: EncodedPath; readonly process?: number } = {},
): string {
  const query = [`view=${view}`];
  if (path !== ROOT) query.push(`path=${path}`);
  if (process !== undefined) query.push(`process=${process}`);
  return `/sandboxes/${encodeURIComponent(id)}?${query.join("&")}`;
}
