import { Elysia } from "elysia";
import { ApiError } from "../../domain/errors.ts";
import { type GuestPath, pathBelow, textToByteString } from "../../domain/tree/guest-path.ts";
import type { FollowedEntry } from "../../service/inspection/followed.ts";
import type { OpenFile, PathRequest } from "../../service/inspection/inspect.ts";
import type { Principal } from "../../service/parts.ts";
import type { Service } from "../../service/service.ts";
import { authorize } from "../auth.ts";
import { downloadReply, etagOf, typeOf } from "../content/download.ts";
import { pathOf } from "../elysia-gaps.ts";
import { empty, type Reply, respond } from "../reply.ts";
import type { RequestTracker } from "../request-tracker.ts";
import { streamed } from "../stream/text.ts";
import { FINITE_DEPTH, isExecutable, multistatus, type Resource, XML_TYPE } from "./multistatus.ts";
import {
  encodedPlace,
  imageAt,
  noSuchPlace,
  type Place,
  parsePlace,
  SHELVES,
  type Shelf,
  volumesOf,
} from "./places.ts";

export interface DavOptions {
  readonly service: Service;
  readonly requests: RequestTracker;
}

const ALLOW = "GET, HEAD, OPTIONS, PROPFIND";
/** Class 1 of WebDAV (RFC 4918, 18.1), without locks, since nothing can be written. */
const OPTIONS = empty(204, { allow: ALLOW, dav: "1", "ms-author-via": "DAV" });

interface Asked {
  readonly request: Request;
  readonly principal: Principal;
}

/**
 * A drive that is only read: images by their ids and tags, and paused sandboxes by their names, as directories. File managers and
 * programs that mount WebDAV open it with a token as the password. Links are what they lead to, and special files are left out.
 */
export function davPlugin(prefix: string, { service, requests }: DavOptions) {
  const drive = new Drive(prefix, service);
  const routes: readonly (readonly [string, (asked: Asked) => Promise<Reply> | Reply])[] = [
    ["OPTIONS", () => OPTIONS],
    ["PROPFIND", (asked) => drive.properties(asked)],
    ["GET", (asked) => drive.content(asked)],
    ["HEAD", (asked) => drive.content(asked)],
  ];
  const plugin = new Elysia({ prefix });
  for (const [method, replyTo] of routes) {
    // The body of PROPFIND, which may name properties, is not read: the answer has all that there are.
    const handler = async ({ request }: { readonly request: Request }) =>
      respond(await replyTo({ request, principal: requests.principal(request) }), request);
    for (const path of ["", "/", "/*"]) plugin.route(method, path, handler);
  }
  return plugin;
}

class Drive {
  readonly #prefix: string;
  readonly #service: Service;

  constructor(prefix: string, service: Service) {
    this.#prefix = prefix;
    this.#service = service;
  }

  /** The answer to PROPFIND. @throws ApiError */
  async properties(asked: Asked): Promise<Reply> {
    const place = this.#placeOf(asked);
    const depth = asked.request.headers.get("depth") ?? "infinity";
    if (depth !== "0" && depth !== "1") {
      const headers = { "content-type": XML_TYPE, "cache-control": "no-store" };
      return { status: depth === "infinity" ? 403 : 400, headers, body: FINITE_DEPTH };
    }
    const hasMembers = depth === "1";
    if (place.kind === "path") return await this.#ofPath(asked, place, hasMembers);
    const members = hasMembers ? await this.#members(asked, place) : [];
    const own = place.kind === "root" ? [] : [textToByteString(place.shelf)];
    return await reply(multistatus([this.#collection(own, Date.now()), ...members]));
  }

  /** The answer to GET. @throws ApiError */
  async content(asked: Asked): Promise<Reply> {
    const { principal, request } = asked;
    const place = this.#placeOf(asked);
    if (place.kind !== "path") throw isCollection();
    const { id } = imageAt(this.#service, principal, place);
    const target = { id, path: place.path, signal: request.signal };
    const file = await this.#open(principal, target);
    return await downloadReply(file, place.path, { asked: request.headers, text: false });
  }

  /** The file at a path. @throws ApiError as `InspectUseCases.open` does; `method_not_allowed` for a directory */
  async #open(principal: Principal, target: PathRequest): Promise<OpenFile> {
    const { inspect } = this.#service;
    try {
      return await inspect.open(principal, target);
    } catch (error) {
      const isWrongKind = error instanceof ApiError && error.code === "invalid_path";
      if (isWrongKind && (await inspect.entry(principal, target)).type === "d") throw isCollection();
      throw error;
    }
  }

  /** @throws ApiError `not_found`, `invalid_path`; `forbidden` for a directory that the token does not show */
  #placeOf({ principal, request }: Asked): Place {
    const place = parsePlace(pathOf(request.url).slice(this.#prefix.length));
    if (place.kind !== "root") authorize(principal, SHELVES[place.shelf]);
    // Its files are those of an image.
    if (place.kind === "path") authorize(principal, SHELVES.images);
    return place;
  }

  async #ofPath(
    { principal, request }: Asked,
    place: Extract<Place, { kind: "path" }>,
    hasMembers: boolean,
  ): Promise<Reply> {
    const { id, createdAt } = imageAt(this.#service, principal, place);
    const { inspect } = this.#service;
    const target = { id, path: place.path, signal: request.signal };
    const volume = segmentsOfName(place.shelf, place.name);
    const entry = await inspect.entry(principal, target);
    const resource = (path: GuestPath, { type, mtimeSeconds, size, mode, path: real }: Described): Resource => {
      const href = this.#href([...volume, ...partsOf(path)], type === "d");
      const file = {
        size,
        etag: etagOf(id, path),
        contentType: typeOf(path, real),
        isExecutable: isExecutable({ mode }),
      };
      return { href, mtimeSeconds, file: type === "d" ? null : file };
    };
    if (entry.type !== "d" && entry.type !== "f") throw noSuchPlace();
    // The root of an image is as old as the image.
    const own = resource(place.path, place.path === "/" ? { ...entry, mtimeSeconds: createdAt / 1000 } : entry);
    if (!hasMembers || entry.type !== "d") return await reply(multistatus([own]));
    const { entries, held } = await inspect.listFollowed(principal, target);
    const members = async function* (): AsyncGenerator<Resource> {
      yield own;
      for await (const member of entries) yield resource(pathBelow(place.path, member.name), member);
    };
    return await reply(multistatus(members()), held);
  }

  async #members({ principal, request }: Asked, place: Exclude<Place, { kind: "path" }>): Promise<Resource[]> {
    if (place.kind === "root") {
      return Object.keys(SHELVES).map((shelf) => this.#collection([textToByteString(shelf)], Date.now()));
    }
    const { shelf } = place;
    const volumes = await volumesOf(this.#service, principal, { shelf, signal: request.signal });
    return volumes.map(({ name, createdAt }) => this.#collection(segmentsOfName(shelf, name), createdAt));
  }

  #collection(segments: Segments, timeMs: number): Resource {
    return { href: this.#href(segments, true), mtimeSeconds: timeMs / 1000, file: null };
  }

  #href(segments: Segments, isDirectory: boolean): string {
    return `${this.#prefix}${encodedPlace(segments, isDirectory)}`;
  }
}

type Described = Pick<FollowedEntry, "type" | "mtimeSeconds" | "size" | "mode" | "path">;
type Segments = Parameters<typeof encodedPlace>[0];

function segmentsOfName(shelf: Shelf, name: string): Segments {
  return [textToByteString(shelf), textToByteString(name)];
}

function partsOf(path: GuestPath): Segments {
  return path.split("/").filter((part) => part !== "") as unknown as Segments;
}

async function reply(parts: AsyncGenerator<string>, held?: Disposable): Promise<Reply> {
  return { ...(await streamed(XML_TYPE, parts, held)), status: 207 };
}

function isCollection(): ApiError {
  const allow = ["OPTIONS", "PROPFIND"];
  return new ApiError("method_not_allowed", "a directory has no content: list it with PROPFIND", { allow });
}
