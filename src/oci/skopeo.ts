import { createHash } from "node:crypto";
import { basename, dirname } from "node:path";
import { ApiError } from "../domain/errors.ts";
import type { RegistryReference } from "../domain/registry-reference.ts";
import { scratchDirectory } from "../system/scratch.ts";
import type { ToolNetwork } from "../system/tool-network.ts";
import { checkLayoutPlatform, selectManifest } from "./manifest.ts";
import { openRegistryGate } from "./registry-gate.ts";
import type { RegistryHosts, RegistrySettings } from "./registry-policy.ts";
import { registryFailure } from "./skopeo-failure.ts";
import { type Credentials, prepareSkopeoHome, type SkopeoHome } from "./skopeo-home.ts";
import { runTool, type ToolBounds } from "./tool.ts";

/** Name of the image in the layout that `copyToLayout` writes. */
export const LAYOUT_TAG = "image";
/** What registries and image tools allow a manifest to have. */
export const MANIFEST_BYTES_MAX = 4_194_304;

export interface RegistryAccess extends ToolBounds {
  readonly credentials: Credentials | null;
  /** as `checkRegistryHost` gives it */
  readonly settings: RegistrySettings;
  /** decides about the places that the registry sends skopeo to */
  readonly hosts: RegistryHosts;
  readonly network: ToolNetwork;
  /** private directory; what is put there, the password too, is gone when the call returns */
  readonly scratch: string;
}

export interface CopyOptions extends RegistryAccess {
  /** the manifest to copy, as `inspectDigest` gave it: a tag may have moved meanwhile */
  readonly digest: string;
  /** OCI layout to be made; its parent exists, it does not */
  readonly directory: string;
}

/**
 * Asks the registry for the digest of the manifest that this platform (linux/amd64) would get.
 * @throws ApiError `not_found`, `forbidden` (the registry wants other credentials), `unavailable` (registry down,
 * time-out), `validation_error` (an image that cannot be used here)
 */
export async function inspectDigest(reference: RegistryReference, access: RegistryAccess): Promise<{ digest: string }> {
  await using directory = await scratchDirectory(access.scratch, "skopeo-");
  const home = await prepareSkopeoHome(directory.path, reference, access);
  const raw = await skopeo(inspectArgv(home, sourceName(reference, reference.digest)), home, directory.path, {
    reference,
    access,
  });
  const digest = `sha256:${createHash("sha256").update(raw).digest("hex")}`;
  if (reference.digest !== undefined && reference.digest !== digest) {
    throw new ApiError("unavailable", `the registry ${reference.host} sent another manifest than was asked for`, {
      registry: reference.host,
    });
  }
  return { digest: selectManifest(raw, digest) };
}

/**
 * Copies one image, by digest, into an OCI layout, where its tag is LAYOUT_TAG and its layers are what umoci can read:
 * zstd is recompressed.
 * @throws ApiError as `inspectDigest` does, `insufficient_storage`, `payload_too_large`
 */
export async function copyToLayout(reference: RegistryReference, options: CopyOptions): Promise<void> {
  await using directory = await scratchDirectory(options.scratch, "skopeo-");
  const home = await prepareSkopeoHome(directory.path, reference, options);
  const target = `oci:${basename(options.directory)}:${LAYOUT_TAG}`;
  const argv = copyArgv(home, sourceName(reference, options.digest), target);
  await skopeo(argv, home, dirname(options.directory), { reference, access: options });
  await checkLayoutPlatform(options.directory);
}

/** skopeo takes a tag or a digest, not both. */
function sourceName(reference: RegistryReference, digest: string | undefined): string {
  const name = `docker://${reference.host}/${reference.repository}`;
  return digest === undefined ? `${name}:${reference.tag}` : `${name}@${digest}`;
}

export function inspectArgv(home: SkopeoHome, source: string): string[] {
  const access = ["--cert-dir", home.certificates, ...(home.authFile ? ["--authfile", home.authFile] : ["--no-creds"])];
  return [...commonArgv(home), "inspect", "--raw", ...access, source];
}

/** Signatures are not checked here, and a layout has no place for them. */
export function copyArgv(home: SkopeoHome, source: string, target: string): string[] {
  const login = home.authFile ? ["--src-authfile", home.authFile] : ["--src-no-creds"];
  const options = ["--quiet", "--remove-signatures", "--dest-compress-format", "gzip"];
  return [...commonArgv(home), "copy", ...options, "--src-cert-dir", home.certificates, ...login, source, target];
}

/** The beginning of every command line: nothing of the host's configuration counts. */
export function commonArgv(home: SkopeoHome): string[] {
  return [
    ...["skopeo", "--policy", home.policy, "--registries.d", home.signatureConfig],
    ...["--registries-conf", home.registriesConf, "--tmpdir", home.temporary],
    ...["--override-os", "linux", "--override-arch", "amd64"],
  ];
}

async function skopeo(
  argv: readonly string[],
  home: SkopeoHome,
  cwd: string,
  context: { reference: RegistryReference; access: RegistryAccess },
): Promise<Uint8Array> {
  const { reference, access } = context;
  using gate = openRegistryGate(reference, access);
  try {
    const command = {
      argv,
      env: { ...home.environment, ...gate.environment },
      // A layout's name is relative to it: in an absolute one a colon would begin the tag.
      cwd,
      stdoutBytesMax: MANIFEST_BYTES_MAX,
      confinement: { readable: [], writable: [access.scratch, cwd], network: gate.network },
    };
    return await runTool(command, access);
  } catch (error) {
    throw registryFailure(error, reference, { ...access, deadEnd: gate.deadEnd });
  }
}
