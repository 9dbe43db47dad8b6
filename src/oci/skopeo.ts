import { join } from "node:path";
import { ApiError } from "../domain/errors.ts";
import type { ImageDefaults } from "../domain/image-defaults.ts";
import type { RegistryReference } from "../domain/registry-reference.ts";
import type { Gate } from "../network/gate.ts";
import { openRegistryGate } from "../network/registry-gate.ts";
import type { RegistryHosts, RegistrySettings } from "../network/registry-policy.ts";
import { scratchDirectory } from "../system/scratch.ts";
import type { ToolNetwork } from "../system/tool-network.ts";
import { type CopyProgress, watchCopy } from "./copy-progress.ts";
import { type ImageLayout, verifiedLayout } from "./layout.ts";
import {
  DOCUMENT_BYTES_MAX,
  digestOf,
  parseConfig,
  parseManifest,
  type Selection,
  selectManifest,
} from "./manifest.ts";
import { registryFailure } from "./skopeo-failure.ts";
import { type Credentials, prepareSkopeoHome, type SkopeoHome } from "./skopeo-home.ts";
import { runTool, type ToolBounds } from "./tool.ts";

/**
 * Removes signatures, which are not used later. With `--preserve-digests`, skopeo fails when it would have to change the
 * manifest; otherwise it would write a different one.
 */
export const COPY_OPTIONS = ["--quiet", "--remove-signatures", "--preserve-digests"] as const;
/** Name of a copy in skopeo's working directory. It must be relative: in an absolute path, a colon has a meaning. */
export const COPY_NAME = "copy";

export interface RegistryAccess extends ToolBounds {
  readonly credentials: Credentials | null;
  /** as `checkRegistryHost` returns them */
  readonly settings: RegistrySettings;
  /** the policy for hosts to which the registry redirects skopeo */
  readonly hosts: RegistryHosts;
  readonly network: ToolNetwork;
  /** makes the connections of skopeo */
  readonly gate: Gate;
  /** private directory; everything put there, including the password, is removed before the call returns */
  readonly scratch: string;
}

export interface CopyOptions extends RegistryAccess {
  /** manifest that `inspectImage` selected, because the tag may have moved since */
  readonly selection: Selection;
  /** OCI layout to create, in an existing directory */
  readonly directory: string;
  /** called when more of the image has arrived */
  readonly onProgress: (progress: CopyProgress) => void;
}

/**
 * Asks the registry which manifest is for this platform (linux/amd64). Whether the registry has that manifest and its
 * blobs is not checked.
 * @throws ApiError `not_found`, `forbidden` (the registry requires other credentials), `unavailable` (registry down, time
 *   limit), `validation_error` (an image that cannot be used here)
 */
export async function inspectImage(reference: RegistryReference, access: RegistryAccess): Promise<Selection> {
  return selectManifest(await inspect(reference, reference.digest, access));
}

/**
 * The defaults for commands of the selected image, verified by the digest. The layers are not fetched.
 * @throws ApiError like `inspectImage`
 */
export async function inspectDefaults(
  reference: RegistryReference,
  selection: Selection,
  access: RegistryAccess,
): Promise<ImageDefaults> {
  const { config } = parseManifest(await inspect(reference, selection.digest, access));
  const source = sourceName(reference, selection.digest);
  const document = await skopeo((home) => inspectArgv(home, source, ["--config"]), reference, access);
  if (digestOf(document) === config.digest) return parseConfig(document);
  throw new ApiError("unavailable", `the registry ${reference.host} sent a config with another digest`, {
    registry: reference.host,
  });
}

/**
 * Copies the selected image by its digest to an OCI layout, and verifies all of it.
 * @throws ApiError like `inspectImage`; `insufficient_storage`, `payload_too_large`
 */
export async function copyToLayout(reference: RegistryReference, options: CopyOptions): Promise<ImageLayout> {
  const { selection, directory, signal } = options;
  // Check the manifest first: a layer that it refers to must not be fetched from another host.
  const layers = selection.layers ?? parseManifest(await inspect(reference, selection.digest, options)).layers;
  await using own = await scratchDirectory(options.scratch, "copy-");
  const source = sourceName(reference, selection.digest);
  const copy = join(own.path, COPY_NAME);
  await using watch = watchCopy(copy, layers, options.onProgress);
  await skopeo((home) => copyArgv(home, source, `dir:${COPY_NAME}`), reference, { ...options, scratch: own.path });
  await watch.finish();
  return await verifiedLayout(copy, selection.digest, { directory, signal });
}

/** The document for a tag or a digest. @throws ApiError `unavailable` when it does not have the given digest */
async function inspect(
  reference: RegistryReference,
  digest: string | undefined,
  access: RegistryAccess,
): Promise<Uint8Array> {
  const source = sourceName(reference, digest);
  const document = await skopeo((home) => inspectArgv(home, source), reference, access);
  if (digest === undefined || digest === digestOf(document)) return document;
  throw new ApiError("unavailable", `the registry ${reference.host} sent a manifest with another digest`, {
    registry: reference.host,
  });
}

/** The name of an image for skopeo, which accepts a tag or a digest, not both. */
function sourceName(reference: RegistryReference, digest: string | undefined): string {
  const name = `docker://${reference.host}/${reference.repository}`;
  return digest === undefined ? `${name}:${reference.tag}` : `${name}@${digest}`;
}

export function inspectArgv(home: SkopeoHome, source: string, options: readonly string[] = []): string[] {
  const access = ["--cert-dir", home.certificates, ...(home.authFile ? ["--authfile", home.authFile] : ["--no-creds"])];
  return [...commonArgv(home), "inspect", "--raw", ...options, ...access, source];
}

export function copyArgv(home: SkopeoHome, source: string, target: string): string[] {
  const login = home.authFile ? ["--src-authfile", home.authFile] : ["--src-no-creds"];
  return [...commonArgv(home), "copy", ...COPY_OPTIONS, "--src-cert-dir", home.certificates, ...login, source, target];
}

/** The start of every command line. It replaces all of the host's configuration. */
export function commonArgv(home: SkopeoHome): string[] {
  return [
    ...["skopeo", "--policy", home.policy, "--registries.d", home.signatureConfig],
    ...["--registries-conf", home.registriesConf, "--tmpdir", home.temporary],
    ...["--override-os", "linux", "--override-arch", "amd64"],
  ];
}

/** Runs skopeo in `access.scratch`, its only writable directory, with the gate as its only way out. */
async function skopeo(
  argvOf: (home: SkopeoHome) => readonly string[],
  reference: RegistryReference,
  access: RegistryAccess,
): Promise<Uint8Array> {
  await using own = await scratchDirectory(access.scratch, "skopeo-");
  const home = await prepareSkopeoHome(own.path, reference, access);
  using way = openRegistryGate(access);
  try {
    const command = {
      argv: argvOf(home),
      env: { ...home.environment, ...way.environment },
      cwd: access.scratch,
      stdoutBytesMax: DOCUMENT_BYTES_MAX,
      confinement: { readable: [], writable: [access.scratch], network: way.network },
    };
    return await runTool(command, access);
  } catch (error) {
    throw registryFailure(error, reference, { ...access, failedHost: way.failedHost });
  }
}
