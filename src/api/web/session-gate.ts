import { ApiError } from "../../domain/errors.ts";
import type { Session, SessionProof, SessionUseCases } from "../../service/sessions.ts";
import type { RequestState } from "../request-tracker.ts";
import { isOwnOrigin } from "./own-origin.ts";

/** Header with the page's half of the proof of a session. */
const PAGE_KEY_HEADER = "x-csrf-token";
/** Prefix of that half in the path of a link or a WebSocket, which cannot have headers. */
const PAGE_KEY_MARK = "~";
/** A link: the key and the path after it. */
const LINK = new RegExp(`^/${PAGE_KEY_MARK}([A-Za-z0-9_-]{1,128})(/.*)$`);

/** A possible key in a path that was shortened or spelled in another way. */
const MARKED_PART = new RegExp(`/(?:${PAGE_KEY_MARK}|%7e)[^/]*`, "gi");

/** Number of cookies of one name that are checked in a request: other services of the host may have set some. */
const COOKIES_COUNT_MAX = 8;

/** Uses of an answer that a browser may make: data of a script, or a download; never a script, a picture or a frame. */
const DESTINATIONS: readonly (string | null)[] = [null, "empty", "document", "websocket"];

/** Content types that browsers neither run nor show as markup. A guest's file of any other type is sent as bytes. */
const HARMLESS_TYPES =
  /^(?:application\/(?:json|x-ndjson|x-tar|gzip|octet-stream)|text\/(?:plain|event-stream))(?:;|$)/;

const ANSWER_HEADERS = {
  "content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
  "cross-origin-resource-policy": "same-origin",
  "referrer-policy": "no-referrer",
  "x-content-type-options": "nosniff",
  "x-frame-options": "DENY",
};

export interface SessionGateOptions {
  readonly sessions: SessionUseCases;
  /** base of the addresses behind a reverse proxy; null: none is known */
  readonly publicUrl: string | null;
  /** true when the service itself speaks TLS */
  readonly isTls: boolean;
  /** prefix of the API for pages, and of the API that serves it */
  readonly prefixes: { readonly page: string; readonly api: string };
  /** base of the addresses in Location headers of that API */
  readonly apiAddress: string;
}

/** Decides which requests of browsers may pass, and for which principal: to the API with a cookie, and to sign in and out. */
export class SessionGate {
  readonly cookie: SessionCookie;
  readonly #options: SessionGateOptions;

  constructor(options: SessionGateOptions) {
    this.#options = options;
    this.cookie = new SessionCookie(options.isTls || options.publicUrl?.startsWith("https:") === true);
  }

  /**
   * Admits a request to the API, and sets the principal of its session. Returns the path of the route that answers.
   * @throws ApiError `forbidden`, `unauthorized`, `not_found`
   */
  async admit(request: Request, state: RequestState): Promise<string> {
    const { prefixes, sessions, apiAddress } = this.#options;
    state.finish = (headers) => finish(headers, { from: apiAddress, to: `${prefixes.page}${prefixes.api}` });
    const link = LINK.exec(state.path.slice(prefixes.page.length));
    const path = link?.[2] ?? state.path.slice(prefixes.page.length);
    // The key must not be in the log.
    state.path = `${prefixes.page}${path.replaceAll(MARKED_PART, `/${PAGE_KEY_MARK}`)}`;
    const isRead = request.method === "GET" || request.method === "HEAD";
    if (link !== null && !isRead) throw new ApiError("forbidden", "a link can only read");
    const { session, proof } = await this.signedIn(request, link?.[1]);
    state.principal = session.principal;
    state.isAllowed = () => sessions.isValid(proof);
    if (!path.startsWith(`${prefixes.api}/`)) throw new ApiError("not_found", "no such route");
    return path;
  }

  /** @throws ApiError `forbidden` for a request that a page of another origin may have caused */
  requireOwnPage(request: Request): void {
    const { method, headers } = request;
    const isRead = method === "GET" || method === "HEAD";
    const site = headers.get("sec-fetch-site");
    const isSocket = headers.get("upgrade") !== null;
    // A browser without these headers sends the Origin with everything but a plain read.
    const isOwnSite = site === null || site === "same-origin" || (site === "none" && isRead && !isSocket);
    const origin = headers.get("origin");
    const isOrigin =
      origin === null ? isRead && !isSocket : isOwnOrigin(origin, headers.get("host"), this.#options.publicUrl);
    if (!isOrigin && origin !== null && isOwnSite) {
      const advice = "set public_url to the address by which browsers reach the service";
      throw new ApiError("forbidden", `pages of ${origin.slice(0, 200)} may not use the service: ${advice}`);
    }
    if (!isOwnSite || !isOrigin || !DESTINATIONS.includes(headers.get("sec-fetch-dest"))) {
      throw new ApiError("forbidden", "only the service's own page may send this request");
    }
  }

  /** @throws ApiError `forbidden` when the browser would not keep the cookie: it needs TLS, and the page came without */
  requireCookie(request: Request): void {
    const origin = request.headers.get("origin");
    if (!this.cookie.isSecure || origin === null || new URL(origin).protocol === "https:") return;
    const { hostname } = new URL(origin);
    // Browsers take this machine itself for secure.
    if (/^(?:127\.|\[::1\]$|localhost$)|\.localhost$/.test(hostname)) return;
    throw new ApiError("forbidden", `sign in at ${this.#options.publicUrl}: without TLS the browser keeps no session`);
  }

  /**
   * The session of a request. Where another service of this host has set a cookie of the same name, the page's half tells
   * which one is meant, because it belongs to one secret.
   * @param key the page's half, from a link; a header has it otherwise
   * @throws ApiError `forbidden` as `requireOwnPage` does; `unauthorized`
   */
  async signedIn(request: Request, key: string | undefined = undefined): Promise<SignedIn> {
    this.requireOwnPage(request);
    for (const proof of this.proofsOf(request, key)) {
      const session = await this.#options.sessions.find(proof);
      if (session !== null) return { session, proof };
    }
    throw new ApiError("unauthorized", "not signed in, or the session has ended");
  }

  /** The possible proofs of the session; at most one is valid. @param key as in `signedIn` */
  proofsOf(request: Request, key: string | undefined = undefined): SessionProof[] {
    const pageKey = key ?? request.headers.get(PAGE_KEY_HEADER) ?? "";
    return this.cookie.allOf(request).map((secret) => ({ secret, pageKey }));
  }
}

interface SignedIn {
  readonly session: Session;
  readonly proof: SessionProof;
}

/** Headers of an answer for a page: it cannot become a document of this origin, and caches do not store it. */
function finish(headers: Headers, location: { readonly from: string; readonly to: string }): void {
  for (const [name, value] of Object.entries(ANSWER_HEADERS)) headers.set(name, value);
  headers.delete("www-authenticate");
  headers.set("cache-control", "no-store");
  if (!HARMLESS_TYPES.test(headers.get("content-type") ?? "text/plain")) {
    headers.set("content-type", "application/octet-stream");
  }
  if (!headers.has("content-disposition")) headers.set("content-disposition", "attachment");
  const address = headers.get("location");
  if (address?.startsWith(location.from) === true) {
    headers.set("location", location.to + address.slice(location.from.length));
  }
}

/**
 * The cookie of a session. A browser keeps it until the browser is closed; an unused session ends sooner. All ports of a
 * host share their cookies, so the name contains the port: otherwise a person could be signed in to only one of several
 * appliances behind forwarded ports.
 */
class SessionCookie {
  readonly isSecure: boolean;
  readonly #prefix: string;
  readonly #attributes: string;

  /** @param isSecure true when browsers reach the service by TLS; the name then has a prefix that only this host can set */
  constructor(isSecure: boolean) {
    this.isSecure = isSecure;
    this.#prefix = isSecure ? "__Host-coppice" : "coppice";
    this.#attributes = `Path=/; HttpOnly; SameSite=Strict${isSecure ? "; Secure" : ""}`;
  }

  /** The values in a request; all but one are cookies of other services of this host. */
  allOf(request: Request): string[] {
    const start = `${this.#nameFor(request)}=`;
    const pairs = (request.headers.get("cookie") ?? "").split(";").map((pair) => pair.trim());
    const own = pairs.filter((pair) => pair.startsWith(start)).slice(0, COOKIES_COUNT_MAX);
    return own.map((pair) => pair.slice(start.length));
  }

  /** The header that sets it in the answer to a request. */
  set(request: Request, secret: string): string {
    return `${this.#nameFor(request)}=${secret}; ${this.#attributes}`;
  }

  /** The header that removes it. */
  clear(request: Request): string {
    return `${this.#nameFor(request)}=; ${this.#attributes}; Max-Age=0`;
  }

  #nameFor({ headers }: Request): string {
    const port = /:(\d{1,5})$/.exec(headers.get("host") ?? "")?.[1];
    return port === undefined ? this.#prefix : `${this.#prefix}-${port}`;
  }
}
