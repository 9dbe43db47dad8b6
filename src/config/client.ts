import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { ConfigError, type Environment } from "./config.ts";

export const URL_DEFAULT = "http://127.0.0.1:8642";

/** Where the command line finds the appliance. */
export interface ClientConfig {
  /** without a trailing slash */
  readonly url: string;
  readonly token: string | null;
  /** authorities that may have signed the appliance's certificate, in PEM; null: those of the system */
  readonly ca: string | null;
  /** the variable, flag or file that each comes from; null where nothing sets it */
  readonly origins: { readonly url: string | null; readonly token: string | null; readonly ca: string | null };
}

interface Found {
  readonly value: string;
  readonly origin: string;
}

/**
 * Reads COPPICE_URL, COPPICE_TOKEN and COPPICE_CA_FILE, or the files `url`, `token` and `ca.pem` of the user.
 * @param urlFlag value of --url, which wins
 * @throws ConfigError
 */
export function loadClientConfig(environment: Environment, urlFlag?: string): ClientConfig {
  const file = (name: string): string => userFile(environment, name);
  const url =
    (urlFlag === undefined ? null : { value: urlFlag, origin: "--url" }) ??
    variable(environment, "COPPICE_URL") ??
    textOf(file("url"), false);
  if (url !== null && (!/^https?:\/\/[^/]/.test(url.value) || !URL.canParse(url.value))) {
    throw new ConfigError([`${url.origin}: must be an http or https address, not ${JSON.stringify(url.value)}`]);
  }
  const token = variable(environment, "COPPICE_TOKEN") ?? textOf(file("token"), false);
  // The value is a secret, also when it is a wrong one.
  if (token !== null && !/^[\x21-\x7e]+$/.test(token.value)) {
    throw new ConfigError([`${token.origin}: holds no token, which is one line without blanks`]);
  }
  const named = variable(environment, "COPPICE_CA_FILE");
  const ca = named === null ? textOf(file("ca.pem"), false) : textOf(named.value, true);
  return Object.freeze({
    url: (url?.value ?? URL_DEFAULT).replace(/\/+$/, "").replace(/\/v1$/, ""),
    token: token?.value ?? null,
    ca: ca?.value ?? null,
    origins: { url: url?.origin ?? null, token: token?.origin ?? null, ca: ca?.origin ?? null },
  });
}

/** Where the token of a user is looked for and saved. */
export function tokenFileOf(environment: Environment): string {
  return userFile(environment, "token");
}

function userFile(environment: Environment, name: string): string {
  const home = environment["XDG_CONFIG_HOME"] || join(environment["HOME"] || homedir(), ".config");
  return join(home, "coppice", name);
}

/** An empty variable is one that is not set. */
function variable(environment: Environment, name: string): Found | null {
  const value = environment[name]?.trim() ?? "";
  return value === "" ? null : { value, origin: name };
}

function textOf(path: string, isNeeded: boolean): Found | null {
  try {
    const value = readFileSync(path, "utf8").trim();
    return value === "" ? null : { value, origin: path };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (!isNeeded && (code === "ENOENT" || code === "ENOTDIR")) return null;
    throw new ConfigError([`${path}: cannot be read: ${code}`]);
  }
}
