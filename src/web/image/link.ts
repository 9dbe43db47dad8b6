import { type EncodedPath, pathInQuery, ROOT } from "./paths.ts";

export const VIEWS = ["files", "changes", "history", "search"] as const;
export type ImageViewName = (typeof VIEWS)[number];

/** The parts of a link to an image. */
export interface ImageLink {
  readonly image: string;
  readonly view: ImageViewName;
  /** the file, directory, difference, or the directory to search in */
  readonly path: EncodedPath;
  /** further fields of the query, by their names; they hold no paths */
  readonly fields: URLSearchParams;
}

/** @param search the query as it stands in the address: `path` may be bytes that are not UTF-8 */
export function parseLink(image: string, search: string): ImageLink {
  const fields = new URLSearchParams(search);
  const view = VIEWS.find((name) => name === fields.get("view")) ?? "files";
  fields.delete("view");
  fields.delete("path");
  return { image, view, path: pathInQuery(search, "path") ?? ROOT, fields };
}

type Fields = Readonly<Record<string, string | number | null | undefined>>;

/** The link of a part of an image. Empty fields are left out. */
export function linkTo(image: string, view: ImageViewName, path: EncodedPath = ROOT, fields: Fields = {}): string {
  const query = [`view=${view}`];
  if (path !== ROOT) query.push(`path=${path}`);
  for (const [name, value] of Object.entries(fields)) {
    if (value !== undefined && value !== null && value !== "") query.push(`${name}=${encodeURIComponent(value)}`);
  }
  return `/images/${encodeURIComponent(image)}?${query.join("&")}`;
}

/** The same link with other fields; null removes one. */
export function linkWith({ image, view, path, fields }: ImageLink, changes: Fields): string {
  return linkTo(image, view, path, { ...Object.fromEntries(fields), ...changes });
}

/** A whole number of a link from `min` on; null if there is none. */
export function numberIn(fields: URLSearchParams, name: string, min: number): number | null {
  const text = fields.get(name) ?? "";
  const value = /^\d{1,16}$/.test(text) ? Number(text) : Number.NaN;
  return Number.isSafeInteger(value) && value >= min ? value : null;
}
