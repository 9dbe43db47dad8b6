import { copyFile, mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ApiError } from "../domain/errors.ts";
import type { RegistryReference } from "../domain/registry-reference.ts";
import type { RegistrySettings } from "../network/registry-policy.ts";

export interface Credentials {
  readonly username: string;
  readonly password: string;
}

/** Files and directories that replace the host's own configuration of skopeo. */
export interface SkopeoHome {
  readonly policy: string;
  readonly signatureConfig: string;
  readonly registriesConf: string;
  readonly temporary: string;
  readonly certificates: string;
  /** file of mode 0600; null for anonymous access */
  readonly authFile: string | null;
  readonly environment: Readonly<Record<string, string>>;
}

/** Signatures are not checked: content is verified by its digests. */
const POLICY = { default: [{ type: "insecureAcceptAnything" }] };

/**
 * Writes skopeo's complete configuration to an empty private directory. With it, skopeo contacts only the named registry
 * and its mirrors, according to the settings, and uses no credentials but the given ones.
 * @throws ApiError `validation_error` for a user name with a colon, `unavailable` when a CA file cannot be read
 */
export async function prepareSkopeoHome(
  directory: string,
  reference: RegistryReference,
  access: { readonly credentials: Credentials | null; readonly settings: RegistrySettings },
): Promise<SkopeoHome> {
  const at = (name: string): string => join(directory, name);
  // skopeo reads drop-in files of the system after the main file, but before those in the home directory.
  const dropIns = at("home/.config/containers/registries.conf.d");
  for (const path of [at("tmp"), at("run"), at("certificates"), at("signatures"), dropIns]) {
    await mkdir(path, { recursive: true, mode: 0o700 });
  }
  await writeFile(at("policy.json"), JSON.stringify(POLICY));
  await writeFile(at("registries.conf"), 'unqualified-search-registries = []\nshort-name-mode = "disabled"\n');
  await writeFile(join(dropIns, "registry.conf"), registriesConf(reference, access.settings));
  await copyAuthorities(at("certificates"), access.settings);
  const { credentials } = access;
  if (credentials !== null) await writeFile(at("auth.json"), authFile(reference.host, credentials), { mode: 0o600 });
  return {
    policy: at("policy.json"),
    signatureConfig: at("signatures"),
    registriesConf: at("registries.conf"),
    temporary: at("tmp"),
    certificates: at("certificates"),
    authFile: credentials === null ? null : at("auth.json"),
    environment: {
      HOME: at("home"),
      XDG_RUNTIME_DIR: at("run"),
      TMPDIR: at("tmp"),
      // As root, skopeo would use a cache that the whole host shares; for other users it lies below HOME.
      _CONTAINERS_ROOTLESS_UID: "1",
    },
  };
}

/** Entries for the host and for the repository: the most specific entry counts, so drop-ins of the host cannot override. */
export function registriesConf(reference: RegistryReference, settings: RegistrySettings): string {
  const entries = ["", `/${reference.repository}`].map((suffix) => {
    const place = JSON.stringify(`${reference.host}${suffix}`);
    const mirrors = (settings.mirrors ?? []).map(
      (mirror) =>
        `[[registry.mirror]]\nlocation = ${JSON.stringify(`${mirror.host}${suffix}`)}\ninsecure = ${mirror.insecure === true}\n`,
    );
    const own = `[[registry]]\nprefix = ${place}\nlocation = ${place}\ninsecure = ${settings.insecure === true}\nblocked = false\n`;
    return own + mirrors.join("");
  });
  return entries.join("\n");
}

function authFile(host: string, { username, password }: Credentials): string {
  if (username.includes(":")) {
    throw new ApiError("validation_error", "the user name of a registry cannot contain a colon", {
      field: "credentials",
    });
  }
  return JSON.stringify({ auths: { [host]: { auth: Buffer.from(`${username}:${password}`).toString("base64") } } });
}

async function copyAuthorities(directory: string, settings: RegistrySettings): Promise<void> {
  const files = [settings.caFile, ...(settings.mirrors ?? []).map((mirror) => mirror.caFile)];
  for (const [index, file] of files.entries()) {
    if (!file) continue;
    await copyFile(file, join(directory, `${index}.crt`)).catch((error: unknown) => {
      throw new ApiError(
        "unavailable",
        "the CA file that is configured for the registry cannot be read",
        {},
        { cause: error },
      );
    });
  }
}
