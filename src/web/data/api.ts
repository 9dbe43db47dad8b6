import { Client } from "../../client/client.ts";
import { noteAnswer, noteSilence } from "./connection.ts";
import { openEventSocket } from "./event-socket.ts";
import { isAbort, Problem } from "./problem.ts";
import { csrf, endSession, loadSession, refusalOf } from "./session.ts";

const PREFIX = "/web/api";
const EVENT_STREAM = "text/event-stream";

/**
 * `/v1/…` as this page reaches it without header fields: for links that download, and for WebSockets. It contains half of
 * the session, so it must not be displayed or stored.
 */
export function addressOf(path: string): string {
  return `${PREFIX}/~${csrf()}${path}`;
}

/** `/v1/…` as this page reaches it with the header field of the session, for requests that `fetch` cannot make. */
export function headedAddressOf(path: string): string {
  return PREFIX + path;
}

/** A request with the cookie of the session. Updates the state of the session and of the connection. */
async function exchange(url: URL | string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = csrf();
  headers.set("x-csrf-token", key);
  let response: Response;
  try {
    const isStream = headers.get("accept") === EVENT_STREAM && key !== "";
    const address = isStream ? addressed(new URL(url, location.href)) : null;
    const stream = address === null ? null : await openEventSocket(address, headers, init.signal);
    response = stream ?? (await fetch(url, { ...init, headers }));
  } catch (error) {
    if (!isAbort(error) && init.signal?.aborted !== true) noteSilence(loadSession);
    throw error;
  }
  // Another tab may have signed in since: this response is about the previous session.
  if (response.status === 401 && key === csrf()) endSession();
  if (isFromAppliance(response)) noteAnswer();
  else noteSilence(loadSession);
  return response;
}

/** False for the response of a proxy that does not reach the appliance. */
function isFromAppliance({ status, headers }: Response): boolean {
  const isUnavailable = status === 503 && headers.get("content-type")?.startsWith("application/json") !== true;
  return status !== 502 && status !== 504 && !isUnavailable;
}

/** The typed client of the appliance, with the session in place of a token. */
export const api = new Client({
  url: `${location.origin}${PREFIX}`,
  token: null,
  fetch: exchange,
  // A WebSocket of a browser has no header fields.
  socket: (url, { protocols }) => new WebSocket(addressed(url), [...protocols]),
});

function addressed(url: URL): URL {
  const path = url.pathname.slice(PREFIX.length);
  return new URL(addressOf(path) + url.search, url);
}

/**
 * One request by the rules of the session.
 * @param path such as `/v1/images`, with its query
 * @throws Problem for a status of 400 and above, and where nothing answers; the reason of `init.signal`
 */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const response = await exchange(headedAddressOf(path), init).catch((error: unknown) => {
    if (init.signal?.aborted === true) throw init.signal.reason;
    throw new Problem("The appliance does not answer.", { code: "unreachable", cause: error });
  });
  if (response.status >= 400) throw await refusalOf(response);
  return response;
}
