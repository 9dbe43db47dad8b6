import { contentLength, type Framing } from "./http/body.ts";
import { type Field, type Fields, membersOf, type RequestHead, type ResponseHead, valuesOf } from "./http/head.ts";
import { cookieForGuestHost } from "./set-cookie.ts";
import type { Visit } from "./upstream.ts";

/** Fields that are for one connection only, or that are written again for the next one. */
const ONE_CONNECTION: ReadonlySet<string> = new Set([
  ...["connection", "keep-alive", "te", "trailer", "transfer-encoding", "content-length", "upgrade", "http2-settings"],
  ...["proxy", "proxy-authenticate", "proxy-authorization", "proxy-authentication-info", "proxy-connection"],
]);

/** Fields by which a server learns of its client from a proxy. They are written here alone. */
const FROM_PROXIES = /^(?:host|forwarded|x-forwarded-.*|x-real-ip|x-client-ip|true-client-ip|expect)$/;

/**
 * Fields of an answer with effects beyond the address of the port: on other ports or hosts, or on the whole site of the
 * appliance (Clear-Site-Data clears its cookies), or on a reverse proxy in front, which may serve files of its host for them.
 */
const BEYOND_THE_HOST =
  /^(?:alt-svc|strict-transport-security|clear-site-data|set-cookie2|x-accel-(?!buffering$).*|x-sendfile|x-lighttpd-send-file|x-reproxy-.*)$/;

/**
 * The name as programs see it that turn fields into variables, which cannot tell `_` from `-`: it decides which fields are dropped.
 */
function normalized(name: string): string {
  return name.toLowerCase().replaceAll("_", "-");
}

function passing(fields: Fields, isDropped: (name: string) => boolean): Field[] {
  const listed = new Set(membersOf(fields, "connection").map(normalized));
  return fields.filter(([name]) => {
    const plain = normalized(name);
    return !ONE_CONNECTION.has(plain) && !listed.has(plain) && !isDropped(plain);
  });
}

/** The protocol to which the client wants to switch; null: none, or one that the ingress does not pass. */
export function requestedUpgrade({ method, version, fields }: RequestHead, framing: Framing): string | null {
  const [protocol, ...others] = membersOf(fields, "upgrade");
  const asks = membersOf(fields, "connection").includes("upgrade") && method === "GET" && version === 1;
  const hasBody = framing.kind !== "length" || framing.bytes > 0;
  // With HTTP/2, the further requests could not be judged one by one.
  return asks && !hasBody && others.length === 0 && protocol !== undefined && protocol !== "h2c" ? protocol : null;
}

/** Whether the client waits for a 100 before it sends the body. */
export function expectsContinue({ version, fields }: RequestHead): boolean {
  return version === 1 && membersOf(fields, "expect").includes("100-continue");
}

/** Fields of a request for the guest, which gets one request for each connection. */
export function requestFields(head: RequestHead, visit: Visit, framing: Framing): Fields {
  const upgrade = requestedUpgrade(head, framing);
  return [
    ["Host", valuesOf(head.fields, "host")[0] ?? visit.host],
    ...passing(head.fields, (name) => FROM_PROXIES.test(name)),
    ["X-Forwarded-For", visit.address],
    ["X-Forwarded-Proto", visit.isSecure ? "https" : "http"],
    ["X-Forwarded-Host", visit.host],
    ...(expectsContinue(head) ? [["Expect", "100-continue"] as const] : []),
    ...(hasLength(head, framing) ? [["Content-Length", String(framing.bytes)] as const] : []),
    ...(framing.kind === "chunked" ? [["Transfer-Encoding", "chunked"] as const] : []),
    ...(upgrade === null ? [] : [["Upgrade", upgrade] as const]),
    ["Connection", upgrade === null ? "close" : "Upgrade"],
  ];
}

function hasLength({ fields }: RequestHead, framing: Framing): framing is Framing & { readonly kind: "length" } {
  return framing.kind === "length" && contentLength(fields) !== null;
}

/** The form in which a client gets an answer. */
export interface AnswerForm {
  /** how the body is sent to the client; null: there is none, as for HEAD */
  readonly framing: Framing | null;
  /** whether the connection is closed after it */
  readonly closes: boolean;
}

/**
 * Fields of a guest's answer for the client.
 * @param cookies names of cookies that the guest must not set
 */
export function answerFields(
  { status, fields }: ResponseHead,
  cookies: ReadonlySet<string>,
  { framing, closes }: AnswerForm,
): Fields {
  const kept = passing(fields, (name) => BEYOND_THE_HOST.test(name)).flatMap(([name, value]): Field[] => {
    if (normalized(name) !== "set-cookie") return [[name, value]];
    const cookie = cookieForGuestHost(value, cookies);
    return cookie === null ? [] : [[name, cookie]];
  });
  const length = framing === null && status >= 200 && status !== 204 ? contentLength(fields) : null;
  return [
    ...kept,
    ...(framing?.kind === "length" ? [["Content-Length", String(framing.bytes)] as const] : []),
    ...(length === null ? [] : [["Content-Length", String(length)] as const]),
    ...(framing?.kind === "chunked" ? [["Transfer-Encoding", "chunked"] as const] : []),
    ...(closes ? [["Connection", "close"] as const] : []),
  ];
}

/** Fields of an answer with a status below 200. */
export function interimFields({ fields }: ResponseHead): Fields {
  return passing(fields, (name) => BEYOND_THE_HOST.test(name) || name === "set-cookie");
}

/** Fields of the answer with which the connection becomes a tunnel. */
export function switchingFields(head: ResponseHead, cookies: ReadonlySet<string>): Fields {
  const upgrade = valuesOf(head.fields, "upgrade").map((value) => ["Upgrade", value] as const);
  return [...answerFields(head, cookies, { framing: null, closes: false }), ...upgrade, ["Connection", "Upgrade"]];
}
