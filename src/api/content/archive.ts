import { Type } from "@sinclair/typebox";
import type { ByteSource } from "../../service/inspection/layers.ts";
import { acceptsGzip } from "../accept.ts";
import { type Reply, tar } from "../reply.ts";
import { directStream } from "../stream/direct.ts";
import { gzipChunks } from "../stream/gzip.ts";

/** The content of an archive in the description of the API. */
export const ARCHIVE_CONTENT = {
  "application/x-tar": Type.String({ format: "binary", description: "bytes of the archive" }),
};

/**
 * The reply with an archive, compressed when the request accepts that. Takes over `source`.
 * @param name of the file that a browser stores, without its extension; `root` when it is empty
 */
export function archiveReply({ chunks, held }: ByteSource, name: string, asked: Headers): Reply {
  const isGzip = acceptsGzip(asked.get("accept-encoding"));
  const body = directStream(isGzip ? gzipChunks(chunks) : chunks, held);
  const encoding = isGzip ? { "content-encoding": "gzip" } : {};
  return tar(fileName(name), body, { vary: "accept-encoding", ...encoding });
}

/** A file name that is safe on every client. */
function fileName(name: string): string {
  return name.replaceAll(/[^A-Za-z0-9._-]/g, "_") || "root";
}
