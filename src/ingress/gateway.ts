import type { AccountId, SandboxId } from "../domain/ids.ts";
import { parsePortHost, type SandboxPort } from "../domain/ingress.ts";
import { allows } from "../domain/scope.ts";
import { type GrantedSandbox, type IngressUseCases, LINK_PARAMETER } from "../service/ingress.ts";
import type { Principal } from "../service/parts.ts";
import { answer } from "./answers.ts";
import { type Field, type RequestHead, valuesOf } from "./http/head.ts";
import type { Answer, Passage, Upstream, Visit } from "./upstream.ts";

/** The field that has a token of the account. It never reaches a guest. */
const TOKEN_FIELD = "x-access-token";
/** The cookie that a link sets. With the prefix, browsers keep it for the one host, and refuse one that another host sets. */
const COOKIE = "coppice-ingress";
const SECURE_COOKIE = `__Host-${COOKIE}`;
const COOKIES: ReadonlySet<string> = new Set([COOKIE, SECURE_COOKIE]);
/** A place on the same host: browsers take `//` and `/\` for the beginning of another host. */
const sameHostExpression = /^\/(?![/\\])/;

export interface GatewayParts {
  readonly ingress: IngressUseCases;
  /** the domain below which each port has a name */
  readonly domain: string;
  /** result of `tokenVerifier` */
  readonly verifyToken: (token: string) => Promise<Principal | null>;
}

type Sandbox = NonNullable<ReturnType<IngressUseCases["find"]>>;
/** No grant is valid for it. */
const NO_SANDBOX = { id: "" as SandboxId, accountId: "" as AccountId } satisfies GrantedSandbox;

/** Passes requests to ports of sandboxes: those whose port is public, or that have a token, a link or its cookie. */
export class Gateway implements Upstream {
  readonly #parts: GatewayParts;

  constructor(parts: GatewayParts) {
    this.#parts = parts;
  }

  async decide(visit: Visit): Promise<Passage | Answer> {
    const { ingress, domain } = this.#parts;
    const place = parsePortHost(visit.host, domain);
    if (place === null) return answer(404, "no sandbox has this address");
    const sandbox = ingress.find(place.sandbox);
    const refusal = await this.#refusal(visit, place, sandbox);
    if (refusal !== null) return refusal;
    if (sandbox === null || sandbox.state === "ended") return absent(sandbox);
    return {
      head: withoutCredentials(visit.head),
      cookies: COOKIES,
      connect: (signal) => ingress.connect(sandbox, place.port, signal),
    };
  }

  /** Null: the request may pass. */
  async #refusal(visit: Visit, place: SandboxPort, sandbox: Sandbox | null): Promise<Answer | null> {
    const { ingress } = this.#parts;
    const [token] = valuesOf(visit.head.fields, TOKEN_FIELD);
    const isPublic = sandbox !== null && ingress.isPublic(sandbox, place.port);
    const link = splitTarget(visit.head.target);
    if (link.grant === null && isPublic) return null;
    if (token !== undefined && !isPublic) return await this.#tokenRefusal(token, place, sandbox);
    if (sandbox === null ? "id" in place.sandbox : sandbox.state === "ended") return absent(sandbox);
    // Ids cannot be guessed, but names can: they exist for their account alone. Grants are checked for absent ones, too, since
    // the time of that would tell which exist.
    const granted = sandbox ?? NO_SANDBOX;
    const end = link.grant === null ? null : await ingress.grantEnd(link.grant, granted, place.port);
    if (end !== null) return this.#opened(visit, link.target, end);
    if (isPublic) return null;
    if (!(await this.#hasCookie(visit, granted, place.port))) return this.#private();
    return isOfOwnPage(visit) ? null : answer(403, "the request is of a page of another address");
  }

  async #tokenRefusal(token: string, place: SandboxPort, sandbox: Sandbox | null): Promise<Answer | null> {
    const principal = await this.#parts.verifyToken(token);
    if (principal === null) return answer(401, "the token is not valid, or has expired");
    const accountId = sandbox?.accountId ?? ("accountId" in place.sandbox ? place.sandbox.accountId : null);
    if (accountId !== principal.accountId) return absent(null);
    const mayPass = allows(principal.grants, "instances:exec") || allows(principal.grants, "instances:ingress");
    return mayPass ? null : answer(403, "the token needs the scope instances:ingress or instances:exec");
  }

  /** Sets the cookie of a link, and leads to the same place without the grant. */
  #opened(visit: Visit, target: string, end: number): Answer | null {
    if (visit.head.method !== "GET" && visit.head.method !== "HEAD") return null;
    if (!sameHostExpression.test(target)) return answer(400, "a link leads to a path");
    const grant = splitTarget(visit.head.target).grant ?? "";
    const seconds = Math.max(1, Math.floor((end - Date.now()) / 1000));
    const name = visit.isSecure ? SECURE_COOKIE : COOKIE;
    const attributes = [
      "Path=/",
      `Max-Age=${seconds}`,
      "HttpOnly",
      "SameSite=Lax",
      ...(visit.isSecure ? ["Secure"] : []),
    ];
    const fields: Field[] = [
      ["Location", target],
      ["Set-Cookie", [`${name}=${grant}`, ...attributes].join("; ")],
    ];
    return { ...answer(303, "the link is valid"), fields };
  }

  async #hasCookie({ head, isSecure }: Visit, sandbox: GrantedSandbox, port: number): Promise<boolean> {
    const name = isSecure ? SECURE_COOKIE : COOKIE;
    for (const [other, value] of cookiesOf(head)) {
      if (other === name && (await this.#parts.ingress.grantEnd(value, sandbox, port)) !== null) return true;
    }
    return false;
  }

  #private(): Answer {
    const message = `this address is private: open a link to it, which its owner can make, or send a token in ${TOKEN_FIELD}`;
    return { ...answer(401, message), fields: [["WWW-Authenticate", TOKEN_FIELD]] };
  }
}

function absent(sandbox: Sandbox | null): Answer {
  return sandbox === null ? answer(404, "there is no such sandbox") : answer(410, "the sandbox has ended");
}

/**
 * Whether a browser sends the request for a person, or for a page of the same address. Sandboxes of one domain may be the same
 * site for a browser, which then sends their cookies with requests of each other's pages.
 */
function isOfOwnPage({ head, host, isSecure }: Visit): boolean {
  const only = (name: string) => valuesOf(head.fields, name)[0]?.toLowerCase();
  const [origin, site] = [only("origin"), only("sec-fetch-site")];
  // A page without TLS may be of anyone on the way to it.
  const schemes = isSecure ? ["https"] : ["http", "https"];
  if (origin !== undefined && !schemes.some((scheme) => origin === `${scheme}://${host}`)) return false;
  if (site === undefined || site === "same-origin" || site === "none") return true;
  // A person may come from elsewhere.
  const isNavigation = only("sec-fetch-mode") === "navigate" && only("sec-fetch-dest") === "document";
  return isNavigation && (head.method === "GET" || head.method === "HEAD");
}

/** The target without the grant of a link, and the grant; null when it has none. */
function splitTarget(target: string): { readonly target: string; readonly grant: string | null } {
  const at = target.indexOf("?");
  if (at < 0) return { target, grant: null };
  const parameters = target.slice(at + 1).split("&");
  const isGrant = (parameter: string) => parameter.startsWith(`${LINK_PARAMETER}=`);
  const grant = parameters.find(isGrant)?.slice(LINK_PARAMETER.length + 1) ?? null;
  const others = parameters.filter((parameter) => !isGrant(parameter)).join("&");
  return { target: `${target.slice(0, at)}${others === "" ? "" : `?${others}`}`, grant };
}

function* cookiesOf({ fields }: RequestHead): Generator<readonly [name: string, value: string]> {
  for (const pair of valuesOf(fields, "cookie").flatMap((value) => value.split(";"))) {
    const [name = "", ...value] = pair.split("=");
    yield [name.trim(), value.join("=").trim()];
  }
}

/** The head without tokens, grants and cookies of the ingress, also where a program takes `_` for `-`. */
function withoutCredentials(head: RequestHead): RequestHead {
  const fields = head.fields.flatMap(([name, value]): Field[] => {
    const plain = name.toLowerCase().replaceAll("_", "-");
    if (plain === TOKEN_FIELD) return [];
    if (plain !== "cookie") return [[name, value]];
    const kept = value.split(";").filter((pair) => !COOKIES.has((pair.split("=")[0] ?? "").trim()));
    return kept.length === 0 ? [] : [[name, kept.join(";").trim()]];
  });
  return { ...head, target: splitTarget(head.target).target, fields };
}
