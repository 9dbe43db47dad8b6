import type { Entry } from "../../domain/tree/listing.ts";
import { httpTime } from "../content/download.ts";

export const XML_TYPE = "application/xml; charset=utf-8";
const HEAD = '<?xml version="1.0" encoding="utf-8"?>\n<D:multistatus xmlns:D="DAV:">\n';
const TAIL = "</D:multistatus>\n";
const EXECUTABLE_BITS = 0o111;

/** A member of a collection, or the collection itself, as WebDAV describes it (RFC 4918). */
export interface Resource {
  /** percent-encoded path */
  readonly href: string;
  /** in `seconds` since the epoch */
  readonly mtimeSeconds: number;
  /** null: a collection */
  readonly file: {
    readonly size: number;
    readonly etag: string;
    readonly contentType: string;
    readonly isExecutable: boolean;
  } | null;
}

/** The body of an answer to PROPFIND. */
export async function* multistatus(resources: AsyncIterable<Resource> | Iterable<Resource>) {
  yield HEAD;
  for await (const resource of resources) yield responseOf(resource);
  yield TAIL;
}

/** The error for a listing of everything below a collection (RFC 4918, 9.1). */
export const FINITE_DEPTH =
  '<?xml version="1.0" encoding="utf-8"?>\n<D:error xmlns:D="DAV:"><D:propfind-finite-depth/></D:error>\n';

export function isExecutable({ mode }: Pick<Entry, "mode">): boolean {
  return (mode & EXECUTABLE_BITS) !== 0;
}

function responseOf({ href, mtimeSeconds, file }: Resource): string {
  const time = `<D:getlastmodified>${httpTime(mtimeSeconds)}</D:getlastmodified>`;
  const properties =
    file === null
      ? `<D:resourcetype><D:collection/></D:resourcetype>${time}`
      : `<D:resourcetype/>${time}<D:getcontentlength>${file.size}</D:getcontentlength>` +
        `<D:getetag>${escaped(file.etag)}</D:getetag><D:getcontenttype>${escaped(file.contentType)}</D:getcontenttype>` +
        // Apache's property, which davfs2 reads.
        `<A:executable xmlns:A="http://apache.org/dav/props/">${file.isExecutable ? "T" : "F"}</A:executable>`;
  return (
    `<D:response><D:href>${escaped(href)}</D:href><D:propstat><D:prop>${properties}</D:prop>` +
    "<D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>\n"
  );
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
