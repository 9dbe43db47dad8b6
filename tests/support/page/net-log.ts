import { readFile } from "node:fs/promises";

/** The network requests of a browser, from its own log. */
export interface NetworkUse {
  /** addresses of what pages of the origin asked for, by whatever means: fetches, sockets, beacons, navigations */
  readonly requests: readonly string[];
  /** what was looked up or connected before anybody asked for it: a page hints at it by links and headers */
  readonly hints: readonly string[];
  /** `address:port` of every connection of the whole browser */
  readonly connections: readonly string[];
}

interface LogEvent {
  readonly type: number;
  readonly params?: Readonly<Record<string, unknown>>;
}

interface Log {
  readonly constants: { readonly logEventTypes: Readonly<Record<string, number>> };
  readonly events: readonly LogEvent[];
}

/**
 * Reads the log of a browser that has ended. Requests that Chromium makes for itself, such as for its updates and for its
 * opinion on forms, belong to no page: they are not told here, and its resolver fails them.
 */
export async function networkUse(path: string, origin: string): Promise<NetworkUse> {
  const { constants, events } = JSON.parse(await readFile(path, "utf8")) as Log;
  const named = (name: string): Readonly<Record<string, unknown>>[] => {
    const type = constants.logEventTypes[name];
    if (type === undefined) throw new Error(`this Chromium logs no ${name}`);
    return events.flatMap(({ type: own, params }) => (own === type && params !== undefined ? [params] : []));
  };
  const texts = (values: readonly unknown[]): string[] => values.filter((value) => typeof value === "string");
  // The first navigation has no initiator: the test opened the page.
  const requests = named("URL_REQUEST_START_JOB").filter(
    ({ initiator, url }) => initiator === origin || String(url).startsWith(origin),
  );
  const lookups = named("HOST_RESOLVER_MANAGER_REQUEST").filter(({ is_speculative: is }) => is === true);
  const preconnects = named("HTTP_STREAM_JOB_CONTROLLER").filter(({ is_preconnect: is }) => is === true);
  return {
    requests: texts(requests.map(({ url }) => url)),
    hints: texts([...lookups.map(({ host }) => host), ...preconnects.map(({ url }) => url)]),
    connections: texts(named("TCP_CONNECT_ATTEMPT").map(({ address }) => address)),
  };
}
