import { existsSync, readFileSync } from "node:fs";
import { resolve } from "node:path";
import type { NamedHosts, NetworkRule, ProxyAddress } from "../domain/network.ts";
import type { LogLevel } from "../log.ts";
import { type E2bConfig, e2bConfig, e2bProblems } from "./e2b.ts";
import { type IngressConfig, ingressConfig, ingressProblems } from "./ingress.ts";
import { type ConfigKey, KEYS, type KeyName, type KeyValues } from "./keys.ts";
import { isLoopback } from "./listener.ts";
import { namedHosts, namedRules, parseProxy } from "./network.ts";
import { isTable, type RegistryHost, registryHosts } from "./registries.ts";

/** The operator's settings, validated and frozen. An absent setting is null. */
export interface Config {
  readonly dataDir: string;
  /** base of Location headers behind a reverse proxy, without a trailing slash */
  readonly publicUrl: string | null;
  readonly listen: {
    readonly host: string;
    readonly port: number;
    readonly tlsCert: string | null;
    readonly tlsKey: string | null;
    readonly insecure: boolean;
  };
  /** the listener for HTTP from outside to ports of sandboxes; null: there is none */
  readonly ingress: IngressConfig | null;
  /** the listener for clients of E2B; null: there is none */
  readonly e2b: E2bConfig | null;
  /** whether there is a page for people */
  readonly web: { readonly enabled: boolean };
  readonly vm: {
    readonly emulation: "never" | "allow";
    /** time limit for trying one way to run machines, in `milliseconds` */
    readonly probeTimeoutMs: number;
    /** how long callers wait for a machine while none can be started, in `milliseconds` */
    readonly probeGiveUpMs: number;
    readonly uidBase: number;
    readonly uidCount: number;
    readonly vcpusDefault: number;
    readonly memoryBytesDefault: number;
    readonly diskBytesDefault: number;
    readonly maxima: { readonly vcpus: number; readonly memoryBytes: number; readonly diskBytes: number };
    /** memory of all VMs and imports together, in `bytes`; null: three quarters of the host's */
    readonly memoryBudgetBytes: number | null;
    /** vCPUs of all VMs together; null: twice the host's CPUs */
    readonly cpuBudget: number | null;
  };
  readonly pool: { readonly size: number };
  readonly limits: {
    /** largest time limit of an instance, in `seconds` */
    readonly instanceTimeoutMax: number;
    /** largest time that a sandbox lives without a resume, in `seconds` */
    readonly sandboxTimeoutMax: number;
    /** largest size of the event log of a sandbox, in `bytes` */
    readonly sandboxLogBytes: number;
    /** space for kept memory of paused sandboxes, in `bytes` */
    readonly memoryImagesBytes: number;
    readonly fileBytesMax: number;
    /** free disk space below which no new work is accepted, in `bytes` */
    readonly diskReserveBytes: number;
    /** largest unpacked size of an imported image, in `bytes` */
    readonly imageBytesMax: number;
    /** largest number of files, directories and links of an imported image */
    readonly imageEntriesMax: number;
  };
  readonly checkpoint: {
    /** longest time for which the writes of an instance may be stopped, in `milliseconds` */
    readonly pauseMsMax: number;
  };
  readonly registries: {
    readonly default: string | null;
    readonly hosts: Readonly<Record<string, RegistryHost>>;
  };
  readonly network: {
    /** what instances may connect to at most; empty: no instance has a network */
    readonly allow: readonly NetworkRule[];
    /** names that may have addresses that are not public, and ranges of such addresses */
    readonly private: NamedHosts;
    /** whether runs may be recorded */
    readonly record: boolean;
    /** connections of an instance at the same time */
    readonly connectionsMax: number;
    /** connections and questions for names of an instance in a second */
    readonly opensPerSecond: number;
    /** bytes of an instance in both directions; null: no limit */
    readonly bytesMax: number | null;
    /** time without a byte after which a connection is ended, in `milliseconds` */
    readonly idleMs: number;
    /** name servers as `ADDRESS:PORT`, with an IPv6 address in brackets; empty: those of the host */
    readonly resolvers: readonly string[];
    readonly proxy: ProxyAddress | null;
    /** file that `readProxyCredentials` reads */
    readonly proxyCredentialsFile: string | null;
    /** destinations of direct connections, without the proxy */
    readonly proxyBypass: NamedHosts;
  };
  /** retention of ended operations, in `milliseconds` */
  readonly operations: { readonly retentionMs: number };
  /** space for the merged layers of an account, as a share of the bytes of its layers */
  readonly layers: { readonly mergedShare: number };
  /** `keepStates`: saved states without a tag that a sandbox keeps */
  readonly sandboxes: { readonly keepStates: number };
  readonly images: {
    /** retention of an unused image without a tag, in `milliseconds`; null: for ever */
    readonly untaggedTtlMs: number | null;
    /** retention of the memory of a paused sandbox, in `milliseconds` */
    readonly memoryTtlMs: number;
  };
  /** retention of an unused uploaded file, in `milliseconds`; null: for ever */
  readonly files: { readonly ttlMs: number | null };
  readonly log: { readonly level: LogLevel; readonly format: "auto" | "json" | "text" };
}

export type Environment = Readonly<Record<string, string | undefined>>;

/** A wrong configuration, with all of its problems. */
export class ConfigError extends Error {
  override readonly name = "ConfigError";
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(`the configuration has ${problems.length === 1 ? "a problem" : `${problems.length} problems`}`);
    this.problems = problems;
  }
}

const CONFIG_FILE_DEFAULT = "/etc/coppice/config.toml";
/** The line of a mistake is searched only in files of at most this many lines, because the search is slow. */
const FILE_LINES_SEARCHED_MAX = 2000;

/** Variables with our prefix that are not settings. Any other unknown one is reported as a misspelt setting. */
const OTHER_VARIABLES = new Set(["COPPICE_CONFIG", "COPPICE_URL", "COPPICE_TOKEN", "COPPICE_CA_FILE"]);
const TEST_PREFIX = "COPPICE_TEST_";

/** The environment of this process. Nothing else reads `process.env`. */
export function processEnvironment(): Environment {
  return process.env;
}

/**
 * Sets NODE_ENV to production, unless it is set: otherwise Elysia's error responses have details for developers. It must be
 * called before Elysia is loaded.
 */
export function declareProduction(): void {
  // In two steps, because the build replaces the whole expression by a constant.
  const environment = process.env;
  environment["NODE_ENV"] ??= "production";
}

/** The variable of a setting: COPPICE_LISTEN_PORT for `listen.port`. */
export function variableOf(key: string): string {
  return `COPPICE_${key.replaceAll(".", "_").toUpperCase()}`;
}

/** The flag of a setting, without dashes: `listen-port` for `listen.port`. */
export function flagOf(key: string): string {
  return key.replaceAll(/[._]/g, "-");
}

export interface ConfigSources {
  readonly environment: Environment;
  /** values of flags, by the names of `flagOf` */
  readonly flags: Readonly<Record<string, string>>;
  /** value of --config */
  readonly file?: string | undefined;
}

/** The source of each setting: a line of the file, a variable, or a flag. A setting with its default has none. */
export type Origins = ReadonlyMap<KeyName, string>;

export interface ExplainedConfig {
  readonly config: Config;
  readonly values: KeyValues;
  readonly origins: Origins;
  /** path of the file; null when there is none */
  readonly file: string | null;
}

/**
 * Reads the TOML file, COPPICE_* variables and flags, in ascending precedence.
 * @throws ConfigError with all problems
 */
export function loadConfig(sources: ConfigSources): Config {
  return explainConfig(sources).config;
}

/** Reads the configuration as `loadConfig` does, with the source of each setting. @throws ConfigError with all problems */
export function explainConfig(sources: ConfigSources): ExplainedConfig {
  const problems: string[] = [];
  const values = new Map<KeyName, unknown>();
  const origins = new Map<KeyName, string>();
  const take = (name: KeyName, raw: unknown, origin: string): void => {
    try {
      values.set(name, (KEYS[name] as ConfigKey<unknown>).parse(raw));
      origins.set(name, origin);
    } catch (error) {
      problems.push(withoutPassword(`${origin}: ${name} ${(error as Error).message}, not ${JSON.stringify(raw)}`));
    }
  };

  const hosts = readFile(sources, take, problems);
  const namesOfVariables = new Map(keyNames().map((name) => [variableOf(name), name]));
  for (const [variable, raw] of Object.entries(sources.environment)) {
    if (!variable.startsWith("COPPICE_") || raw === undefined) continue;
    const name = namesOfVariables.get(variable);
    if (name !== undefined) take(name, raw, variable);
    else if (!OTHER_VARIABLES.has(variable) && !variable.startsWith(TEST_PREFIX)) {
      problems.push(`${variable}: no such setting`);
    }
  }
  for (const name of keyNames()) {
    const raw = sources.flags[flagOf(name)];
    if (raw !== undefined) take(name, raw, `--${flagOf(name)}`);
  }

  const all = Object.fromEntries(
    keyNames().map((name) => [name, values.has(name) ? values.get(name) : KEYS[name].default]),
  ) as KeyValues;
  problems.push(...crossChecks(all));
  if (problems.length > 0) throw new ConfigError(problems);
  const path = pathOf(sources);
  return { config: deepFreeze(assemble(all, hosts)), values: all, origins, file: existsSync(path) ? path : null };
}

export function keyNames(): KeyName[] {
  return Object.keys(KEYS) as KeyName[];
}

function pathOf({ file, environment }: ConfigSources): string {
  return file ?? environment["COPPICE_CONFIG"] ?? CONFIG_FILE_DEFAULT;
}

type Take = (name: KeyName, raw: unknown, origin: string) => void;

/** Passes the settings of the file to `take`, and returns its registry hosts, which have no variables and flags. */
function readFile(sources: ConfigSources, take: Take, problems: string[]): Record<string, RegistryHost> {
  const path = pathOf(sources);
  if (!existsSync(path)) {
    if ((sources.file ?? sources.environment["COPPICE_CONFIG"]) !== undefined) problems.push(`${path}: no such file`);
    return {};
  }
  let text = "";
  let parsed: Record<string, unknown>;
  try {
    text = readFileSync(path, "utf8");
    parsed = Bun.TOML.parse(text) as Record<string, unknown>;
  } catch (error) {
    const { message } = error as Error;
    problems.push(`${path}${brokenLine(text, message)}: ${message}`);
    return {};
  }
  const origin = (key: string): string => `${path}${lineOf(text, key)}`;
  const { hosts, ...registries } = isTable(parsed["registries"]) ? parsed["registries"] : {};
  const rest = isTable(parsed["registries"]) ? { ...parsed, registries } : parsed;
  for (const [key, raw] of flatten(rest, "")) {
    if (key in KEYS) take(key as KeyName, raw, origin(key));
    else problems.push(`${origin(key)}: no such setting: ${key}`);
  }
  return registryHosts(hosts, (key, problem) => problems.push(`${origin(key)}: ${key} ${problem}`));
}

function flatten(table: Record<string, unknown>, prefix: string): [string, unknown][] {
  return Object.entries(table).flatMap(([name, value]): [string, unknown][] =>
    isTable(value) ? flatten(value, `${prefix}${name}.`) : [[`${prefix}${name}`, value]],
  );
}

/** Leaves out a user and a password that an address must not have. */
function withoutPassword(text: string): string {
  return text.replaceAll(/(\w:\/\/)[^/"\s]*@/g, "$1…@");
}

/** ":12" when line 12 makes the file invalid; the parser's error does not name the line. */
function brokenLine(text: string, message: string): string {
  const lines = text.split("\n");
  for (let count = 1; count <= lines.length && lines.length <= FILE_LINES_SEARCHED_MAX; count++) {
    try {
      Bun.TOML.parse(`${lines.slice(0, count).join("\n")}\n`);
    } catch (error) {
      // The first lines of a valid file can be invalid, too, such as those before the end of a multi-line string.
      if ((error as Error).message === message) return `:${count}`;
    }
  }
  return "";
}

/** ":12" when line 12 of the file sets the key; otherwise empty. The parser does not report the line of a value. */
function lineOf(text: string, key: string): string {
  let table = "";
  for (const [index, line] of text.split("\n").entries()) {
    const header = /^\s*\[\s*([^\]]+?)\s*\]/.exec(line)?.[1];
    if (header !== undefined) table = `${header.replaceAll(/["']/g, "")}.`;
    const name = /^\s*([\w."'-]+)\s*=/.exec(line)?.[1]?.replaceAll(/["']/g, "");
    if (`${table}${name}` === key || (header !== undefined && table === `${key}.`)) return `:${index + 1}`;
  }
  return "";
}

function crossChecks(values: KeyValues): string[] {
  const problems: string[] = [];
  if (resolve(values["data_dir"]).includes(":")) {
    problems.push("data_dir must not contain a colon: skopeo takes what follows one for a tag");
  }
  const loopback = isLoopback(values["listen.host"]);
  const tls = values["listen.tls_cert"] !== null && values["listen.tls_key"] !== null;
  if ((values["listen.tls_cert"] === null) !== (values["listen.tls_key"] === null)) {
    problems.push("listen.tls_cert and listen.tls_key belong together");
  }
  if (!loopback && !tls && !values["listen.insecure"]) {
    problems.push(
      `listen.host ${values["listen.host"]} is reachable from other machines: set listen.tls_cert and listen.tls_key, or listen.insecure = true`,
    );
  }
  problems.push(...ingressProblems(values), ...e2bProblems(values));
  for (const name of ["vcpus", "memory_bytes", "disk_bytes"] as const) {
    if (values[`vm.${name}_default`] > values[`vm.${name}_max`]) {
      problems.push(`vm.${name}_default must not be above vm.${name}_max`);
    }
  }
  if (values["network.proxy_credentials_file"] !== null && values["network.proxy"] === null) {
    problems.push("network.proxy_credentials_file needs network.proxy");
  }
  return problems;
}

function assemble(v: KeyValues, hosts: Record<string, RegistryHost>): Config {
  return {
    dataDir: resolve(v["data_dir"]),
    publicUrl: v["public_url"],
    listen: {
      host: v["listen.host"],
      port: v["listen.port"],
      tlsCert: v["listen.tls_cert"],
      tlsKey: v["listen.tls_key"],
      insecure: v["listen.insecure"],
    },
    ingress: ingressConfig(v),
    e2b: e2bConfig(v),
    web: { enabled: v["web.enabled"] },
    vm: {
      emulation: v["vm.emulation"],
      probeTimeoutMs: v["vm.probe_timeout"],
      probeGiveUpMs: v["vm.probe_give_up"],
      uidBase: v["vm.uid_base"],
      uidCount: v["vm.uid_count"],
      vcpusDefault: v["vm.vcpus_default"],
      memoryBytesDefault: v["vm.memory_bytes_default"],
      diskBytesDefault: v["vm.disk_bytes_default"],
      maxima: { vcpus: v["vm.vcpus_max"], memoryBytes: v["vm.memory_bytes_max"], diskBytes: v["vm.disk_bytes_max"] },
      memoryBudgetBytes: v["vm.memory_budget_bytes"],
      cpuBudget: v["vm.cpu_budget"],
    },
    pool: { size: v["pool.size"] },
    limits: {
      instanceTimeoutMax: Math.ceil(v["limits.instance_timeout_max"] / 1000),
      sandboxTimeoutMax: Math.ceil(v["limits.sandbox_timeout_max"] / 1000),
      sandboxLogBytes: v["limits.sandbox_log_bytes"],
      memoryImagesBytes: v["limits.memory_images_bytes"],
      fileBytesMax: v["limits.file_bytes_max"],
      diskReserveBytes: v["limits.disk_reserve_bytes"],
      imageBytesMax: v["limits.image_bytes_max"],
      imageEntriesMax: v["limits.image_entries_max"],
    },
    checkpoint: { pauseMsMax: v["checkpoint.pause_max"] },
    registries: { default: v["registries.default"], hosts },
    network: {
      allow: namedRules(v["network.allow"]),
      private: namedHosts(v["network.private"]),
      record: v["network.record"],
      connectionsMax: v["network.connections_max"],
      opensPerSecond: v["network.opens_per_second"],
      bytesMax: v["network.bytes_max"],
      idleMs: v["network.idle"],
      resolvers: v["network.resolvers"],
      proxy: v["network.proxy"] === null ? null : parseProxy(v["network.proxy"]),
      proxyCredentialsFile: v["network.proxy_credentials_file"],
      proxyBypass: namedHosts(v["network.proxy_bypass"]),
    },
    operations: { retentionMs: v["operations.retention"] },
    layers: { mergedShare: v["layers.merged_share"] },
    sandboxes: { keepStates: v["sandboxes.keep_states"] },
    images: { untaggedTtlMs: v["images.untagged_ttl"], memoryTtlMs: v["images.memory_ttl"] },
    files: { ttlMs: v["files.ttl"] },
    log: { level: v["log.level"], format: v["log.format"] },
  };
}

function deepFreeze<T extends object>(value: T): T {
  for (const item of Object.values(value)) if (typeof item === "object" && item !== null) deepFreeze(item);
  return Object.freeze(value);
}
