import type { ImageId } from "../../domain/ids.ts";
import { type ByteString, displayName, parseGuestPath } from "../../domain/tree/guest-path.ts";
import type {
  Archive,
  Directory,
  InspectUseCases,
  PathRequest,
  Search,
  SearchOutcome,
} from "../../service/inspection/inspect.ts";
import type { Principal } from "../../service/parts.ts";
import { prefersLines } from "../accept.ts";
import { jsonPieces, linePieces, mapped } from "../output/json-stream.ts";
import { JSON_TYPE, NDJSON_TYPE, respond, TEXT_TYPE } from "../reply.ts";
import { streamed } from "../stream/text.ts";
import { archiveReply } from "./archive.ts";
import { downloadReply } from "./download.ts";
import { listingLine } from "./listing-line.ts";

/** A request about an image. */
interface ImageAsked<Query> {
  readonly request: Request;
  readonly principal: Principal;
  readonly params: { readonly uuid: string };
  readonly query: Query;
}

type PathAsked = ImageAsked<{ readonly path: ByteString; readonly text?: boolean | undefined }>;

/** The query of a search, without the fields that each dialect names differently. */
interface SearchQuery {
  readonly path?: readonly ByteString[] | undefined;
  readonly pattern: readonly string[];
  readonly case?: Search["matchCase"] | undefined;
  readonly glob?: readonly string[] | undefined;
  readonly max_count?: number | undefined;
  readonly before?: number | undefined;
  readonly after?: number | undefined;
}

/**
 * The entries of a directory, in the body of a dialect, or as text.
 * @param bodyOf gets the canonical path, the entries, and the path as the request has it
 */
export async function listing(
  inspect: InspectUseCases,
  { request, principal, params, query }: PathAsked,
  bodyOf: (path: string, entries: Directory["entries"], requestedPath: string) => Readonly<Record<string, unknown>>,
): Promise<Response> {
  const target = pathOf(request, params.uuid, query.path);
  const { entries, held } = await inspect.list(principal, target);
  if (query.text === true) return respond(await streamed(TEXT_TYPE, mapped(entries, listingLine), held), request);
  const body = bodyOf(displayName(target.path), entries, displayName(query.path));
  return await itemsResponse(request, body, held);
}

/** The matching lines of a search, in the body of a dialect. */
export async function matches(
  inspect: InspectUseCases,
  { request, principal, params, query }: ImageAsked<SearchQuery>,
  { limit, ranges }: Pick<Search, "limit" | "ranges">,
  bodyOf: (outcome: SearchOutcome) => Readonly<Record<string, unknown>>,
): Promise<Response> {
  const search: Search = {
    id: params.uuid as ImageId,
    paths: (query.path ?? ["/" as ByteString]).map(parseGuestPath),
    patterns: query.pattern,
    matchCase: query.case ?? "sensitive",
    globs: query.glob ?? [],
    limit,
    fileLimit: query.max_count ?? null,
    before: query.before ?? 0,
    after: query.after ?? 0,
    ranges,
    signal: request.signal,
  };
  return await itemsResponse(request, bodyOf(await inspect.grep(principal, search)));
}

/** A file, or the part that the request asks for. */
export async function download(
  inspect: InspectUseCases,
  { request, principal, params, query }: PathAsked,
): Promise<Response> {
  const target = pathOf(request, params.uuid, query.path);
  const file = await inspect.open(principal, target);
  const reply = await downloadReply(file, target.path, { asked: request.headers, text: query.text === true });
  return respond(reply, request);
}

/** A directory or file as an archive, which a browser stores as `nameOf` says. */
export async function archive(
  inspect: InspectUseCases,
  { request, principal, params, query }: PathAsked,
  {
    contentOnly,
    nameOf,
  }: { readonly contentOnly: boolean; readonly nameOf: (archive: Archive, path: string) => string },
): Promise<Response> {
  const target = pathOf(request, params.uuid, query.path);
  const source = await inspect.archive(principal, { ...target, contentOnly });
  return respond(archiveReply(source, nameOf(source, displayName(target.path)), request.headers), request);
}

function pathOf({ signal }: Request, id: string, path: ByteString): PathRequest {
  return { id: id as ImageId, path: parseGuestPath(path), signal };
}

/** An object with an array of items; if the request prefers lines, a line for each item, and one of type `end` for the rest. */
async function itemsResponse(
  request: Request,
  body: Readonly<Record<string, unknown>>,
  held?: Disposable,
): Promise<Response> {
  const reply = prefersLines(request.headers.get("accept"))
    ? streamed(NDJSON_TYPE, linePieces(body), held)
    : streamed(JSON_TYPE, jsonPieces(body), held);
  return respond(await reply, request);
}
