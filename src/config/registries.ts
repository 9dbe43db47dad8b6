import { REGISTRY_ACCESS_KEYS, REGISTRY_ALLOW_KEY } from "./keys.ts";

/** How to connect to a host. */
export interface RegistryAccess {
  /** use plain HTTP, or accept any certificate */
  readonly insecure: boolean;
  /** PEM file of the authority that signed the host's certificate; null for those of the system */
  readonly caFile: string | null;
}

export interface RegistryMirror extends RegistryAccess {
  readonly host: string;
}

/** Settings of a registry host. A host with settings may have any address, even a loopback one. */
export interface RegistryHost extends RegistryAccess {
  /** false: the host is refused */
  readonly allow: boolean;
  /** mirrors, which are tried first, in this order */
  readonly mirrors: readonly RegistryMirror[];
}

type Table = Record<string, unknown>;
/** Reports a problem; the message completes "KEY …". */
type Report = (key: string, problem: string) => void;

const HOST = /^[A-Za-z0-9.[\]:-]+$/;
/** The table for all hosts without a table of their own. */
const ANY_HOST = "*";
const HOST_FORM = "a host, with its port if it has one";

export function isTable(value: unknown): value is Table {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Reads the tables below `registries.hosts`. It passes problems to `report`, and leaves out tables that have any. */
export function registryHosts(raw: unknown, report: Report): Record<string, RegistryHost> {
  if (raw === undefined) return {};
  if (!isTable(raw)) {
    report("registries.hosts", "must be a table of tables");
    return {};
  }
  const hosts: Record<string, RegistryHost> = {};
  for (const [host, settings] of Object.entries(raw)) {
    const key = `registries.hosts.${host}`;
    if (isTable(settings) && (host === ANY_HOST || HOST.test(host))) {
      hosts[host.toLowerCase()] = registryHost(settings, key, report);
    } else report(key, `must be a table named after ${HOST_FORM}, or "${ANY_HOST}"`);
  }
  return hosts;
}

function registryHost({ allow, mirrors, ...rest }: Table, key: string, report: Report): RegistryHost {
  const list = Array.isArray(mirrors) ? mirrors : [];
  if (mirrors !== undefined && !Array.isArray(mirrors)) report(`${key}.mirrors`, "must be an array of tables");
  return {
    ...registryAccess(rest, key, report),
    allow: read(REGISTRY_ALLOW_KEY, allow, `${key}.allow`, report),
    mirrors: list.flatMap((entry: unknown) => {
      if (isTable(entry) && typeof entry["host"] === "string" && HOST.test(entry["host"])) {
        const { host, ...access } = entry;
        return [{ host: entry["host"].toLowerCase(), ...registryAccess(access, `${key}.mirrors`, report) }];
      }
      report(`${key}.mirrors`, `must be tables with host: ${HOST_FORM}`);
      return [];
    }),
  };
}

function registryAccess({ insecure, ca_file: caFile, ...unknown }: Table, key: string, report: Report): RegistryAccess {
  for (const name of Object.keys(unknown)) report(`${key}.${name}`, "is no such setting");
  return {
    insecure: read(REGISTRY_ACCESS_KEYS.insecure, insecure, `${key}.insecure`, report),
    caFile: read(REGISTRY_ACCESS_KEYS.ca_file, caFile, `${key}.ca_file`, report),
  };
}

interface Reader<T> {
  readonly default: T;
  parse(raw: unknown): T;
}

function read<T>(reader: Reader<T>, raw: unknown, key: string, report: Report): T {
  if (raw === undefined) return reader.default;
  try {
    return reader.parse(raw);
  } catch (error) {
    report(key, (error as Error).message);
    return reader.default;
  }
}
