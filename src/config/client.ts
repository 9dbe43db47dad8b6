import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { ConfigError, type Environment } from "./config.ts";

export const URL_DEFAULT = "http://127.0.0.1:8642";

/** Settings of the command line as a client of an appliance. */
export interface ClientConfig {
  /** address of the appliance, without a trailing slash */
  readonly url: string;
  readonly token: string | null;
  /** certificates of trusted authorities, in PEM; null: those of the system */
  readonly ca: string | null;
  /** the variable, flag or file that sets each value; null when none does */
  readonly origins: { readonly url: string | null; readonly token: string | null; readonly ca: string | null };
}

interface Found {
  readonly value: string;
  readonly origin: string;
}

/**
 * Reads COPPICE_URL, COPPICE_TOKEN and COPPICE_CA_FILE, or else the user's files `url`, `token` and `ca.pem`.
 * @param urlFlag value of --url, which takes precedence
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
  // The message does not show the value: it may be a secret although it is malformed.
  if (token !== null && !/^[\x21-\x7e]+$/.test(token.value)) {
    throw new ConfigError([`${token.origin}: must have a token, which is one line without blanks`]);
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

/** Path of the file with the user's token. */
export function tokenFileOf(environment: Environment): string {
  return userFile(environment, "token");
}

function userFile(environment: Environment, name: string): string {
  const home = environment["XDG_CONFIG_HOME"] || join(environment["HOME"] || homedir(), ".config");
  return join(home, "coppice", name);
}

/** The value of a variable; an empty one counts as unset. */
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
