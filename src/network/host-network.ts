import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { type AddressRange, localAddresses } from "../system/netlink.ts";
import { addressText } from "./addresses.ts";

/** Files are read again after this time, in `milliseconds`. */
const FILES_KEEP_MS = 5000;
/**
 * How long own addresses are kept, as a multiple of the time that they took to read: milliseconds on most hosts, so that an
 * address which is added counts at once, and longer on one with thousands.
 */
const OWN_KEEP_RATIO = 20;
/** Limit of name servers, as in the C library. */
const SERVERS_COUNT_MAX = 3;
const HOSTS_BYTES_MAX = 1_048_576;

/** The host's own addresses, its name servers, and its file of names. All of them may change while the daemon runs. */
export class HostNetwork {
  readonly #files: { readonly resolvConf: string; readonly hosts: string };
  #readAt = Number.NEGATIVE_INFINITY;
  #present: Present | null = null;
  #own: readonly string[] = [];
  #ownUntil = Number.NEGATIVE_INFINITY;

  constructor(files = { resolvConf: "/etc/resolv.conf", hosts: "/etc/hosts" }) {
    this.#files = files;
  }

  /** addresses, and ranges of them as CIDRs, at which this host reaches itself, whatever the state of their interfaces */
  get own(): readonly string[] {
    const startedAt = performance.now();
    if (startedAt >= this.#ownUntil) {
      this.#own = [...new Set(localAddresses().map(rangeText))];
      const endedAt = performance.now();
      this.#ownUntil = endedAt + OWN_KEEP_RATIO * (endedAt - startedAt);
    }
    return this.#own;
  }

  /** name servers, in the form of `setServers` of node:dns; this host itself when none is set, as in the C library */
  get servers(): readonly string[] {
    return this.#read().servers;
  }

  /** The addresses of a name in the file of names; null when it is not there. */
  addressesOf(name: string): readonly string[] | null {
    return this.#read().hosts.get(name) ?? null;
  }

  #read(): Present {
    if (this.#present === null || performance.now() - this.#readAt > FILES_KEEP_MS) {
      this.#present = {
        servers: parseServers(textOf(this.#files.resolvConf)),
        hosts: parseHosts(textOf(this.#files.hosts)),
      };
      this.#readAt = performance.now();
    }
    return this.#present;
  }
}

interface Present {
  readonly servers: readonly string[];
  readonly hosts: ReadonlyMap<string, readonly string[]>;
}

function rangeText({ bytes, bits }: AddressRange): string {
  const text = addressText(bytes);
  return bits === 8 * bytes.length ? text : `${text}/${bits}`;
}

function textOf(path: string): string {
  try {
    return readFileSync(path, "utf8").slice(0, HOSTS_BYTES_MAX);
  } catch {
    // A host may lack the file.
    return "";
  }
}

/** The name servers of a resolv.conf (resolv.conf(5)). One with a zone is left out: the resolver would lose the zone. */
export function parseServers(text: string): string[] {
  const servers = [...text.matchAll(/^\s*nameserver\s+(\S+)/gm)].flatMap(([, address = ""]) =>
    isIP(address) !== 0 && !address.includes("%") ? [address] : [],
  );
  return servers.length === 0 ? ["127.0.0.1"] : servers.slice(0, SERVERS_COUNT_MAX);
}

/** The addresses of each name of a hosts(5) file, in lower case. */
export function parseHosts(text: string): Map<string, readonly string[]> {
  const addresses = new Map<string, readonly string[]>();
  for (const line of text.split("\n")) {
    const [address = "", ...names] = line.replace(/#.*/, "").trim().split(/\s+/);
    if (isIP(address) === 0) continue;
    for (const name of names.map((each) => each.toLowerCase())) {
      addresses.set(name, [...new Set([...(addresses.get(name) ?? []), address])]);
    }
  }
  return addresses;
}
