import { displayName, type GuestPath } from "../../../domain/tree/guest-path.ts";
import { preferredEncoding } from "../../accept.ts";
import { guestFileReply, requestedPart } from "../../content/guest-file.ts";
import { empty, type Reply } from "../../reply.ts";
import { E2bError } from "../errors.ts";
import type { E2bParts } from "../options.ts";
import { atPath, type FilesPlace, fileAt, queryOf } from "./place.ts";

/** Fields of requests whose answer depends on the bytes themselves. */
const PLAIN_FIELDS = ["range", "if-range", "if-none-match", "if-modified-since"];

/**
 * The answer with the file that a request names.
 * @throws E2bError 400, 404, 406; ApiError `range_not_satisfiable`; as `GuestFileUseCases.read` does
 */
export async function downloadFile({ service }: E2bParts, request: Request, place: FilesPlace): Promise<Reply> {
  const { guestFiles } = service;
  const { principal } = place.envd;
  const { headers: asked } = request;
  const file = fileAt(place, queryOf(request).get("path") ?? "");
  const gzips = isCompressed(asked);
  return await atPath(file.path, async () => {
    // Its tag is weak, and so cannot be that of If-Range.
    const range = asked.has("if-range") ? null : asked.get("range");
    const entry = range === null ? null : await guestFiles.stat(principal, { ...file, follow: true });
    const part = entry === null || entry.type !== "f" ? null : requestedPart(range, entry);
    const opened = await guestFiles.read(principal, { ...file, ...part });
    const headers = { vary: "Accept-Encoding", "content-disposition": dispositionOf(file.path) };
    if (isUnmodified(asked, opened.entry.mtimeNs)) {
      opened[Symbol.dispose]();
      return empty(304, headers);
    }
    const reply = await guestFileReply(opened, file.path, { asked, part, gzips });
    return { ...reply, headers: { ...reply.headers, ...headers } };
  });
}

/** Whether the bytes of a request are sent compressed. @throws E2bError 406 when the request accepts no other form */
function isCompressed(asked: Headers): boolean {
  const header = asked.get("accept-encoding");
  const preferred = preferredEncoding(header, ["gzip"]);
  if (preferred !== null && !PLAIN_FIELDS.some((field) => asked.has(field))) return true;
  if (/(?:^|,)\s*(?:identity|\*)\s*;\s*q=0(?:\.0*)?\s*(?:,|$)/i.test(header ?? "")) {
    throw new E2bError(406, "no acceptable encoding: identity or gzip is required");
  }
  return false;
}

function isUnmodified(asked: Headers, mtimeNs: bigint): boolean {
  const sinceMs = Date.parse(asked.get("if-modified-since") ?? "");
  if (Number.isNaN(sinceMs) || asked.has("if-none-match") || asked.has("range")) return false;
  return mtimeNs / 1_000_000_000n <= BigInt(Math.floor(sinceMs / 1000));
}

/** The name of the file for a client that stores it, by RFC 6266: other characters than those of a token need quotes, or RFC 8187. */
function dispositionOf(path: GuestPath): string {
  const name = displayName(path).split("/").at(-1) ?? "";
  if (/^[\w!#$%&'*+.^`|~-]+$/.test(name)) return `inline; filename=${name}`;
  if (/^[\x20-\x7e]*$/.test(name)) return `inline; filename="${name.replaceAll(/["\\]/g, "\\$&")}"`;
  const encoded = encodeURIComponent(name).replaceAll(
    /['()*]/g,
    (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`,
  );
  return `inline; filename*=utf-8''${encoded}`;
}
