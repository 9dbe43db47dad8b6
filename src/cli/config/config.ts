import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { loadClientConfig } from "../../config/client.ts";
import { type Config, ConfigError, type Environment, explainConfig, keyNames } from "../../config/config.ts";
import { readProxyCredentials } from "../../config/network.ts";
import { REDACTED } from "../../log.ts";
import { type Command, command, EXIT_USAGE, expectPositionals, JSON_OPTION } from "../command.ts";
import { table } from "../table.ts";
import { CONFIG_OPTIONS, sourcesOf } from "./config-options.ts";

/** One effective setting. */
interface Setting {
  readonly setting: string;
  readonly value: unknown;
  readonly origin: string;
}

export const configCommands: readonly Command[] = [
  command({
    name: "config check",
    summary: "check the settings and the files that they name",
    synopsis: "[--json] [OPTIONS]",
    description:
      "Reads the same settings as coppice serve, and reports all mistakes at once. The exit code is 0 when there are\nnone.",
    examples: ["coppice config check --config new.toml && install -m 0600 new.toml /etc/coppice/config.toml"],
    options: { ...JSON_OPTION, ...CONFIG_OPTIONS },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const { json = false, ...rest } = options;
      const { file, problems } = checked(rest, environment);
      if (json === true) {
        await io.stdout(`${JSON.stringify({ valid: problems.length === 0, file, problems })}\n`);
        return problems.length === 0 ? 0 : EXIT_USAGE;
      }
      if (problems.length > 0) throw new ConfigError(problems);
      await io.stdout(`${file ?? "no configuration file"}: no mistakes\n`);
      return 0;
    },
  }),
  command({
    name: "config show",
    summary: "show every setting with the source of its value",
    synopsis: "[--json] [OPTIONS]",
    description: "Secrets are masked, so the output can be shared.",
    options: { ...JSON_OPTION, ...CONFIG_OPTIONS },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const { json = false, ...rest } = options;
      const settings = settingsOf(rest, environment);
      const rows = settings.map(({ setting, value, origin }) => [setting, shownValue(value), origin]);
      await io.stdout(json ? `${JSON.stringify(settings)}\n` : table(["SETTING", "VALUE", "ORIGIN"], rows, io.columns));
      return 0;
    },
  }),
];

/** All mistakes in the settings, or, if there are none, in the files that the settings name. */
function checked(
  options: Parameters<typeof sourcesOf>[0],
  environment: Environment,
): { readonly file: string | null; readonly problems: readonly string[] } {
  try {
    const { config, file } = explainConfig(sourcesOf(options, environment));
    return { file, problems: fileProblems(config, new Date()) };
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return { file: null, problems: error.problems };
  }
}

function settingsOf(options: Parameters<typeof sourcesOf>[0], environment: Environment): Setting[] {
  const { config, values, origins, file } = explainConfig(sourcesOf(options, environment));
  const server = keyNames().map((name) => ({
    setting: name,
    value: masked(values[name]),
    origin: origins.get(name) ?? "default",
  }));
  const hosts = Object.entries(config.registries.hosts).map(([host, settings]) => ({
    setting: `registries.hosts.${JSON.stringify(host)}`,
    value: settings,
    origin: file ?? "default",
  }));
  return [...server, ...hosts, ...clientSettings(environment)];
}

/** The settings of the client's commands: not settings of the appliance, but users look for them here. */
function clientSettings(environment: Environment): Setting[] {
  const { url, token, origins } = loadClientConfig(environment);
  return [
    { setting: "client.url", value: masked(url), origin: origins.url ?? "default" },
    { setting: "client.token", value: token === null ? null : REDACTED, origin: origins.token ?? "default" },
    { setting: "client.ca", value: origins.ca, origin: origins.ca ?? "default" },
  ];
}

/** Masks a user and a password in an address. */
function masked(value: unknown): unknown {
  return typeof value === "string" ? value.replace(/^(https?:\/\/)[^/@\s]+@/, `$1${REDACTED}@`) : value;
}

function shownValue(value: unknown): string {
  if (value === null) return "unset";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Mistakes in the files that settings name, which would make the daemon fail after its start. */
export function fileProblems(config: Config, now: Date): string[] {
  const { tlsCert, tlsKey } = config.listen;
  const authorities = Object.entries(config.registries.hosts).flatMap(([host, { caFile, mirrors }]) => [
    { key: `registries.hosts.${JSON.stringify(host)}.ca_file`, path: caFile },
    ...mirrors.map((mirror) => ({ key: `registries.hosts.${JSON.stringify(host)}.mirrors`, path: mirror.caFile })),
  ]);
  return [
    ...(tlsCert === null || tlsKey === null ? [] : tlsProblems("listen", { cert: tlsCert, key: tlsKey }, now)),
    ...(config.ingress?.tls ? tlsProblems("ingress", config.ingress.tls, now) : []),
    ...(config.e2b?.tls ? tlsProblems("e2b", config.e2b.tls, now) : []),
    ...credentialsProblems(config.network.proxyCredentialsFile),
    ...authorities.flatMap(({ key, path }) => {
      if (path === null) return [];
      const certificate = parsed(key, path, (pem) => new X509Certificate(pem));
      return typeof certificate === "string" ? [certificate] : [];
    }),
  ];
}

function credentialsProblems(path: string | null): string[] {
  if (path === null) return [];
  try {
    readProxyCredentials(path);
    return [];
  } catch (error) {
    return [(error as Error).message];
  }
}

function tlsProblems(
  table: "listen" | "ingress" | "e2b",
  paths: { readonly cert: string; readonly key: string },
  now: Date,
): string[] {
  const [certSetting, keySetting] = [`${table}.tls_cert`, `${table}.tls_key`];
  const certificate = parsed(certSetting, paths.cert, (pem) => new X509Certificate(pem));
  const key = parsed(keySetting, paths.key, createPrivateKey);
  const problems = [certificate, key].filter((item) => typeof item === "string");
  if (typeof certificate === "string" || typeof key === "string") return problems;
  if (!certificate.checkPrivateKey(key)) problems.push(`${keySetting} is not the key of ${certSetting}`);
  const end = new Date(certificate.validTo);
  if (end <= now) problems.push(`${certSetting}: ${paths.cert} ended on ${end.toISOString()}`);
  if (new Date(certificate.validFrom) > now) problems.push(`${certSetting}: ${paths.cert} is not valid yet`);
  return problems;
}

/** The parsed content of a file, or the mistake in it as a text. */
function parsed<T>(key: string, path: string, parse: (pem: Buffer) => T): T | string {
  let pem: Buffer;
  try {
    pem = readFileSync(path);
  } catch (error) {
    return `${key}: ${path} cannot be read: ${(error as NodeJS.ErrnoException).code}`;
  }
  try {
    return parse(pem);
  } catch (error) {
    return `${key}: ${path} has other content: ${(error as Error).message}`;
  }
}
