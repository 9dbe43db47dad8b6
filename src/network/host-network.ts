import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { networkInterfaces } from "node:os";

/** What this host says about itself is read again after this time, in `milliseconds`. */
const KEEP_MS = 5000;
/** Name servers that are asked; the C library takes no more. */
const SERVERS_COUNT_MAX = 3;
const HOSTS_BYTES_MAX = 1_048_576;

/** The host's own addresses, its name servers, and its file of names. All of them may change while the daemon runs. */
export class HostNetwork {
  readonly #files: { readonly resolvConf: string; readonly hosts: string };
  #readAt = Number.NEGATIVE_INFINITY;
  #present: Present | null = null;

  constructor(files = { resolvConf: "/etc/resolv.conf", hosts: "/etc/hosts" }) {
    this.#files = files;
  }

  /** addresses of all interfaces */
  get own(): readonly string[] {
    return this.#read().own;
  }

  /** name servers, as `setServers` of node:dns takes them; as the C library, this host itself when none is set */
  get servers(): readonly string[] {
    return this.#read().servers;
  }

  /** The addresses of a name in the file of names; null when it is not there. */
  addressesOf(name: string): readonly string[] | null {
    return this.#read().hosts.get(name) ?? null;
  }

  #read(): Present {
    if (this.#present === null || performance.now() - this.#readAt > KEEP_MS) {
      const own = Object.values(networkInterfaces()).flatMap((each) => each ?? []);
      this.#present = {
        own: own.map(({ address }) => address),
        servers: parseServers(textOf(this.#files.resolvConf)),
        hosts: parseHosts(textOf(this.#files.hosts)),
      };
      this.#readAt = performance.now();
    }
    return this.#present;
  }
}

interface Present {
  readonly own: readonly string[];
  readonly servers: readonly string[];
  readonly hosts: ReadonlyMap<string, readonly string[]>;
}

function textOf(path: string): string {
  try {
    return readFileSync(path, "utf8").slice(0, HOSTS_BYTES_MAX);
  } catch {
    // A host may lack the file; the C library does without it, too.
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
  const found = new Map<string, readonly string[]>();
  for (const line of text.split("\n")) {
    const [address = "", ...names] = line.replace(/#.*/, "").trim().split(/\s+/);
    if (isIP(address) === 0) continue;
    for (const name of names.map((each) => each.toLowerCase())) {
      found.set(name, [...new Set([...(found.get(name) ?? []), address])]);
    }
  }
  return found;
}
