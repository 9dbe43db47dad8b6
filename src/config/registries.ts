import { REGISTRY_ACCESS_KEYS, REGISTRY_ALLOW_KEY } from "./keys.ts";

/** How one host is spoken to. */
export interface RegistryAccess {
  /** speak plain HTTP, or accept any certificate */
  readonly insecure: boolean;
  /** PEM file of the authority that signed the host's certificate; null for the system's own */
  readonly caFile: string | null;
}

export interface RegistryMirror extends RegistryAccess {
  readonly host: string;
}

/** How the appliance treats one registry host. A host that is listed may have any address, loopback too. */
export interface RegistryHost extends RegistryAccess {
  /** false refuses the host */
  readonly allow: boolean;
  /** asked first, in this order */
  readonly mirrors: readonly RegistryMirror[];
}

type Table = Record<string, unknown>;
type Complain = (key: string, problem: string) => void;

const HOST = /^[A-Za-z0-9.[\]:-]+$/;
/** Stands for every host that has no table of its own. */
const ANY_HOST = "*";
const HOST_FORM = "a host, with its port if it has one";

export function isTable(value: unknown): value is Table {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Reads the tables below `registries.hosts`. Problems go to `complain`, and what has them is left out. */
export function registryHosts(raw: unknown, complain: Complain): Record<string, RegistryHost> {
  if (raw === undefined) return {};
  if (!isTable(raw)) {
    complain("registries.hosts", "must be a table of tables");
    return {};
  }
  const hosts: Record<string, RegistryHost> = {};
  for (const [host, settings] of Object.entries(raw)) {
    const key = `registries.hosts.${host}`;
    if (isTable(settings) && (host === ANY_HOST || HOST.test(host))) {
      hosts[host.toLowerCase()] = registryHost(settings, key, complain);
    } else complain(key, `must be a table named after ${HOST_FORM}, or "${ANY_HOST}"`);
  }
  return hosts;
}

function registryHost({ allow, mirrors, ...rest }: Table, key: string, complain: Complain): RegistryHost {
  const list = Array.isArray(mirrors) ? mirrors : [];
  if (mirrors !== undefined && !Array.isArray(mirrors)) complain(`${key}.mirrors`, "must be an array of tables");
  return {
    ...registryAccess(rest, key, complain),
    allow: read(REGISTRY_ALLOW_KEY, allow, `${key}.allow`, complain),
    mirrors: list.flatMap((entry: unknown) => {
      if (isTable(entry) && typeof entry["host"] === "string" && HOST.test(entry["host"])) {
        const { host, ...access } = entry;
        return [{ host: entry["host"].toLowerCase(), ...registryAccess(access, `${key}.mirrors`, complain) }];
      }
      complain(`${key}.mirrors`, `must be tables with host: ${HOST_FORM}`);
      return [];
    }),
  };
}

function registryAccess(
  { insecure, ca_file: caFile, ...unknown }: Table,
  key: string,
  complain: Complain,
): RegistryAccess {
  for (const name of Object.keys(unknown)) complain(`${key}.${name}`, "is no such setting");
  return {
    insecure: read(REGISTRY_ACCESS_KEYS.insecure, insecure, `${key}.insecure`, complain),
    caFile: read(REGISTRY_ACCESS_KEYS.ca_file, caFile, `${key}.ca_file`, complain),
  };
}

interface Reader<T> {
  readonly default: T;
  parse(raw: unknown): T;
}

function read<T>(reader: Reader<T>, raw: unknown, key: string, complain: Complain): T {
  if (raw === undefined) return reader.default;
  try {
    return reader.parse(raw);
  } catch (error) {
    complain(key, (error as Error).message);
    return reader.default;
  }
}
