import { existsSync, readFileSync } from "node:fs";
import { resolve } from "node:path";
import type { LogLevel } from "../log.ts";
import { type ConfigKey, KEYS, type KeyName, type KeyValues } from "./keys.ts";
import { isTable, type RegistryHost, registryHosts } from "./registries.ts";

/** What the operator decided, checked and frozen. Absent things are null. */
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
  readonly vm: {
    readonly emulation: "never" | "allow";
    /** of the trial of one way to run machines, in `milliseconds` */
    readonly probeTimeoutMs: number;
    /** while no way to run machines works, in `milliseconds` */
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
    /** longest run that a request may ask for, in `seconds` */
    readonly instanceTimeoutMax: number;
    readonly fileBytesMax: number;
    /** room on the disk, in `bytes`, below which no new work is taken */
    readonly diskReserveBytes: number;
    /** most that an imported image may unpack to, in `bytes` */
    readonly imageBytesMax: number;
    /** most files, directories and links of one */
    readonly imageEntriesMax: number;
  };
  readonly registries: {
    readonly default: string | null;
    readonly hosts: Readonly<Record<string, RegistryHost>>;
  };
  /** how long ended operations are kept, in `milliseconds` */
  readonly operations: { readonly retentionMs: number };
  /** bytes of merged layers, as a share of those of an account's layers */
  readonly layers: { readonly mergedShare: number };
  /** how long an unused uploaded file is kept, in `milliseconds`; null: for ever */
  readonly images: { readonly untaggedTtlMs: number | null };
  readonly files: { readonly ttlMs: number | null };
  readonly log: { readonly level: LogLevel; readonly format: "auto" | "json" | "text" };
}

export type Environment = Readonly<Record<string, string | undefined>>;

/** Everything that is wrong with a configuration, not only the first of it. */
export class ConfigError extends Error {
  override readonly name = "ConfigError";
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(`the configuration has ${problems.length === 1 ? "a problem" : `${problems.length} problems`}`);
    this.problems = problems;
  }
}

const CONFIG_FILE_DEFAULT = "/etc/coppice/config.toml";
/** Beyond this, nobody wrote the file by hand, and looking for a place in it takes long. */
const FILE_LINES_SEARCHED_MAX = 2000;

/** Variables that are no configuration keys; a misspelt key must not pass for one of them. */
const OTHER_VARIABLES = new Set(["COPPICE_CONFIG", "COPPICE_URL", "COPPICE_TOKEN", "COPPICE_CA_FILE"]);
const TEST_PREFIX = "COPPICE_TEST_";

/** The process's environment; nothing else reads it. */
export function processEnvironment(): Environment {
  return process.env;
}

/**
 * Elysia shows its development error pages unless the process says that it is in production, which is what an
 * executable always is. Must run before Elysia is loaded.
 */
export function declareProduction(): void {
  // Through a name of its own: the build replaces the expression by a constant.
  const environment = process.env;
  environment["NODE_ENV"] ??= "production";
}

/** Variable of a key: `listen.port` is COPPICE_LISTEN_PORT. */
export function variableOf(key: string): string {
  return `COPPICE_${key.replaceAll(".", "_").toUpperCase()}`;
}

/** Flag of a key: `listen.port` is --listen-port. */
export function flagOf(key: string): string {
  return key.replaceAll(/[._]/g, "-");
}

export interface ConfigSources {
  readonly environment: Environment;
  /** values of flags, by the names that `flagOf` gives */
  readonly flags: Readonly<Record<string, string>>;
  /** value of --config */
  readonly file?: string | undefined;
}

/** Where the value of a setting comes from: a place in the file, a variable, a flag. */
export type Origins = ReadonlyMap<KeyName, string>;

export interface ExplainedConfig {
  readonly config: Config;
  readonly values: KeyValues;
  /** has no entry for what has its default */
  readonly origins: Origins;
  /** the file that was read; null when there is none */
  readonly file: string | null;
}

/**
 * Reads the TOML file, COPPICE_* variables and flags, in rising precedence.
 * @throws ConfigError with every problem
 */
export function loadConfig(sources: ConfigSources): Config {
  return explainConfig(sources).config;
}

/** The same, and where everything comes from. @throws ConfigError with every problem */
export function explainConfig(sources: ConfigSources): ExplainedConfig {
  const problems: string[] = [];
  const values = new Map<KeyName, unknown>();
  const origins = new Map<KeyName, string>();
  const take = (name: KeyName, raw: unknown, origin: string): void => {
    try {
      values.set(name, (KEYS[name] as ConfigKey<unknown>).parse(raw));
      origins.set(name, origin);
    } catch (error) {
      problems.push(`${origin}: ${name} ${(error as Error).message}, not ${JSON.stringify(raw)}`);
    }
  };

  const hosts = readFile(sources, take, problems);
  const known = new Map(keyNames().map((name) => [variableOf(name), name]));
  for (const [variable, raw] of Object.entries(sources.environment)) {
    if (!variable.startsWith("COPPICE_") || raw === undefined) continue;
    const name = known.get(variable);
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

/** Reads the file into `take`; returns its registry hosts, which have no variable and no flag. */
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

/** ":12" when the file is broken from line 12 on: the parser says what is wrong, but not where. */
function brokenLine(text: string, message: string): string {
  const lines = text.split("\n");
  for (let count = 1; count <= lines.length && lines.length <= FILE_LINES_SEARCHED_MAX; count++) {
    try {
      Bun.TOML.parse(`${lines.slice(0, count).join("\n")}\n`);
    } catch (error) {
      // The beginning of a file can be broken in other ways, by a string that ends on a later line for one.
      if ((error as Error).message === message) return `:${count}`;
    }
  }
  return "";
}

/** ":12" when line 12 of the file sets the key, otherwise nothing: the parser does not tell where a value stood. */
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
  const loopback = /^(127\.|localhost$|::1$|\[::1\]$)/.test(values["listen.host"]);
  const tls = values["listen.tls_cert"] !== null && values["listen.tls_key"] !== null;
  if ((values["listen.tls_cert"] === null) !== (values["listen.tls_key"] === null)) {
    problems.push("listen.tls_cert and listen.tls_key belong together");
  }
  if (!loopback && !tls && !values["listen.insecure"]) {
    problems.push(
      `listen.host ${values["listen.host"]} is reachable from other machines: set listen.tls_cert and listen.tls_key, or listen.insecure = true`,
    );
  }
  for (const name of ["vcpus", "memory_bytes", "disk_bytes"] as const) {
    if (values[`vm.${name}_default`] > values[`vm.${name}_max`]) {
      problems.push(`vm.${name}_default must not be above vm.${name}_max`);
    }
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
      instanceTimeoutMax: v["limits.instance_timeout_max"],
      fileBytesMax: v["limits.file_bytes_max"],
      diskReserveBytes: v["limits.disk_reserve_bytes"],
      imageBytesMax: v["limits.image_bytes_max"],
      imageEntriesMax: v["limits.image_entries_max"],
    },
    registries: { default: v["registries.default"], hosts },
    operations: { retentionMs: v["operations.retention"] },
    layers: { mergedShare: v["layers.merged_share"] },
    images: { untaggedTtlMs: v["images.untagged_ttl"] },
    files: { ttlMs: v["files.ttl"] },
    log: { level: v["log.level"], format: v["log.format"] },
  };
}

function deepFreeze<T extends object>(value: T): T {
  for (const item of Object.values(value)) if (typeof item === "object" && item !== null) deepFreeze(item);
  return Object.freeze(value);
}
