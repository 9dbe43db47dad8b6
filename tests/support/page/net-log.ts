import { readFile } from "node:fs/promises";

/** What a browser asked the network for, as its own log tells. */
export interface NetworkUse {
  /** addresses of what pages of the origin asked for, by whatever means: fetches, sockets, beacons, prefetches */
  readonly requests: readonly string[];
  /** what the resolver was asked for pages of the origin */
  readonly lookups: readonly string[];
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
 * Reads the log of a browser that has ended. Requests that Chromium makes for itself, such as for its updates, belong
 * to no page: they are not told here, and its resolver fails them.
 */
export async function networkUse(path: string, origin: string): Promise<NetworkUse> {
  const { constants, events } = JSON.parse(await readFile(path, "utf8")) as Log;
  const { hostname } = new URL(origin);
  const site = `http://${hostname}`;
  const named = (name: string): string[][] => {
    const type = constants.logEventTypes[name];
    if (type === undefined) throw new Error(`this Chromium logs no ${name}`);
    return events.flatMap(({ type: own, params = {} }) => {
      const partition = String(params["network_isolation_key"] ?? params["network_anonymization_key"] ?? "");
      const isOfPage = partition.includes(site) || String(params["initiator"] ?? "").startsWith(site);
      const what = params["url"] ?? params["host"] ?? params["address"];
      return own === type && typeof what === "string" ? [[what, isOfPage ? "page" : "browser"]] : [];
    });
  };
  const ofPage = (name: string): string[] => named(name).flatMap(([what = "", who]) => (who === "page" ? [what] : []));
  return {
    requests: ofPage("URL_REQUEST_START_JOB"),
    lookups: ofPage("HOST_RESOLVER_MANAGER_REQUEST"),
    connections: named("TCP_CONNECT_ATTEMPT").map(([address = ""]) => address),
  };
}
