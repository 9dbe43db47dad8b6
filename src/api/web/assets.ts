import { ApiError } from "../../domain/errors.ts";
import { preferredEncoding } from "../accept.ts";
import { matchesAny } from "../range.ts";
import { empty, type Reply } from "../reply.ts";
import { readWebManifest, webFile } from "./bundle.ts";

/** Stored encodings, the best first. */
const COMPRESSED = ["br", "gzip"] as const;

const ASSET_HEADERS = {
  // The name of an asset contains a hash of its content, so the content never changes.
  "cache-control": "public, max-age=31536000, immutable",
  vary: "accept-encoding",
  "cross-origin-resource-policy": "same-origin",
  // A worker has the policy of the answer with its script. The page's workers only compute, and need no connections.
  "content-security-policy": "default-src 'none'; script-src 'self'; frame-ancestors 'none'; base-uri 'none'",
};

/**
 * A file of the page, in the best encoding that the client accepts. Files are not cached in memory, because browsers
 * request each of them once.
 * @throws ApiError `not_found`
 */
export async function assetReply(name: string, asked: Headers): Promise<Reply> {
  const { files } = await readWebManifest();
  const file = Object.hasOwn(files, name) ? files[name] : undefined;
  if (file === undefined) throw new ApiError("not_found", "no such file of the page");
  const encoding = preferredEncoding(asked.get("accept-encoding"), COMPRESSED) ?? "identity";
  const etag = `"${name}-${encoding}"`;
  const headers: Record<string, string> = { ...ASSET_HEADERS, "content-type": file.type, etag };
  if (encoding !== "identity") headers["content-encoding"] = encoding;
  if (matchesAny(asked.get("if-none-match"), etag)) return empty(304, headers);
  return { status: 200, headers, body: webFile(name, encoding), bodyBytes: file.bytes[encoding] };
}
