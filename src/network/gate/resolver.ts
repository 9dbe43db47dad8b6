import { Resolver } from "node:dns/promises";
import { isIP } from "node:net";
import { withinTime } from "../../system/waiting.ts";
import { GateError } from "../gate.ts";
import { ADDRESSES_COUNT_MAX, type Lookup } from "./messages.ts";

/** Longest time for which an answer is cached, even if the name servers allow more. */
const KEEP_MS_MAX = 60_000;
/** A name that does not exist now may soon. */
const KEEP_MISSING_MS = 5000;
const ENTRIES_COUNT_MAX = 4096;
/** Limit of concurrent look-ups: as many as the daemon, which shares them between accounts, can request. */
const LOOKUPS_COUNT_MAX = 1024;
const LOOKUP_MS_MAX = 10_000;
/** Time limit for one try with one server. */
const TRY_MS = 2500;
const TRIES_COUNT = 2;
/** How long the answer of one family waits for the other, which a broken name server may never send. */
const OTHER_FAMILY_MS = 300;

interface Entry {
  readonly result: Promise<readonly string[]>;
  /** time until which the result holds; Infinity while it is awaited */
  until: number;
}

interface LookupResult {
  readonly addresses: readonly string[];
  readonly keepMs: number;
}

/**
 * Resolves names by name servers alone: it reads no file of this host, uses no other service, and adds no search domain.
 * Answers are cached for their time to live, within bounds.
 */
export class NameResolver {
  readonly #entries = new Map<string, Entry>();
  readonly #clock: () => number;
  #lookups = 0;

  /** @param clock in `milliseconds` */
  constructor(clock: () => number = () => performance.now()) {
    this.#clock = clock;
  }

  /**
   * The addresses of a name, at least one, those of IPv4 first.
   * @throws GateError `no_such_name`, `unreachable`, `timed_out` or `limited`
   */
  async resolve({ host, servers, hostsFile }: Lookup): Promise<readonly string[]> {
    if (isIP(host)) return [host];
    if (hostsFile !== null) return hostsFile.slice(0, ADDRESSES_COUNT_MAX);
    const key = `${host} ${servers.join(" ")}`;
    const cached = this.#entries.get(key);
    if (cached !== undefined && cached.until > this.#clock()) return await cached.result;
    if (this.#lookups >= LOOKUPS_COUNT_MAX) throw new GateError("limited", "too many names are being looked up");
    return await this.#ask(key, host, servers);
  }

  async #ask(key: string, host: string, servers: readonly string[]): Promise<readonly string[]> {
    const asked = askServers(host, servers);
    const entry: Entry = { result: asked.then(({ addresses }) => existing(addresses)), until: Infinity };
    // Every caller that waits for the result handles its failure.
    entry.result.catch(() => undefined);
    this.#remember(key, entry);
    this.#lookups += 1;
    try {
      const { keepMs } = await asked;
      entry.until = this.#clock() + keepMs;
    } catch {
      // The next call asks again; this one gets the error below.
      if (this.#entries.get(key) === entry) this.#entries.delete(key);
    }
    this.#lookups -= 1;
    return await entry.result;
  }

  #remember(key: string, entry: Entry): void {
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    if (this.#entries.size <= ENTRIES_COUNT_MAX) return;
    const oldest = this.#entries.keys().next().value;
    if (oldest !== undefined) this.#entries.delete(oldest);
  }
}

function existing(addresses: readonly string[]): readonly string[] {
  if (addresses.length === 0) throw new GateError("no_such_name", "its name does not resolve");
  return addresses;
}

/** @throws GateError when there is no answer; a name without addresses is an answer */
async function askServers(host: string, servers: readonly string[]): Promise<LookupResult> {
  // A new one each time: a resolver caches answers longer than allowed here, and keeps one source port.
  const resolver = new Resolver({ timeout: TRY_MS, tries: TRIES_COUNT });
  try {
    resolver.setServers(servers);
  } catch (error) {
    throw new GateError(
      "unreachable",
      `the name servers ${servers.join(", ")} cannot be asked: ${(error as Error).message}`,
    );
  }
  const deadline = setTimeout(() => resolver.cancel(), LOOKUP_MS_MAX);
  using _queries = {
    [Symbol.dispose]: () => {
      clearTimeout(deadline);
      resolver.cancel();
    },
  };
  const v4 = resolver.resolve4(host, { ttl: true }).then(resultOf, missing);
  const v6 = resolver.resolve6(host, { ttl: true }).then(resultOf, missing);
  return await bothFamilies(v4, v6);
}

/** The addresses of both families, or of one when the other is late or fails. */
async function bothFamilies(v4: Promise<LookupResult>, v6: Promise<LookupResult>): Promise<LookupResult> {
  const settled = Promise.allSettled([v4, v6]);
  const first = await Promise.any([nonEmpty(v4), nonEmpty(v6)]).catch(() => null);
  const results = first === null ? await settled : await withinTime(settled, OTHER_FAMILY_MS, () => null);
  if (results === null) return first as LookupResult;
  const answers = results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
  const failure = results.find((result) => result.status === "rejected");
  if (failure !== undefined && first === null) throw failure.reason;
  return {
    addresses: answers.flatMap(({ addresses }) => addresses).slice(0, ADDRESSES_COUNT_MAX),
    keepMs: Math.min(...answers.map(({ keepMs }) => keepMs)),
  };
}

async function nonEmpty(asked: Promise<LookupResult>): Promise<LookupResult> {
  const result = await asked;
  if (result.addresses.length === 0) throw new Error("no address");
  return result;
}

function resultOf(records: readonly { readonly address: string; readonly ttl: number }[]): LookupResult {
  const seconds = Math.min(...records.map(({ ttl }) => ttl));
  return {
    // Half for each family, so that neither hides the other.
    addresses: records.map(({ address }) => address).slice(0, ADDRESSES_COUNT_MAX / 2),
    keepMs: Math.min(KEEP_MS_MAX, 1000 * seconds),
  };
}

function missing(error: unknown): LookupResult {
  const code = (error as NodeJS.ErrnoException).code ?? "";
  switch (code) {
    case "ENOTFOUND":
    case "ENODATA":
    case "EBADNAME":
      return { addresses: [], keepMs: KEEP_MISSING_MS };
    case "ETIMEOUT":
    case "ECANCELLED":
      throw new GateError("timed_out", "no name server answers for it");
    default:
      throw new GateError("unreachable", `the name servers fail for it (${code})`);
  }
}
