import { join } from "node:path";
import { ApiError } from "../domain/errors.ts";
import type { RegistryReference } from "../domain/registry-reference.ts";
import { openRegistryGate } from "../network/registry-gate.ts";
import type { RegistryHosts, RegistrySettings } from "../network/registry-policy.ts";
import { scratchDirectory } from "../system/scratch.ts";
import type { ToolNetwork } from "../system/tool-network.ts";
import { type ImageLayout, verifiedLayout } from "./layout.ts";
import { DOCUMENT_BYTES_MAX, digestOf, parseManifest, type Selection, selectManifest } from "./manifest.ts";
import { registryFailure } from "./skopeo-failure.ts";
import { type Credentials, prepareSkopeoHome, type SkopeoHome } from "./skopeo-home.ts";
import { runTool, type ToolBounds } from "./tool.ts";

/**
 * Signatures are not checked here, and nobody reads them later. Without `--preserve-digests` skopeo would write another
 * manifest rather than fail where something has to be changed.
 */
export const COPY_OPTIONS = ["--quiet", "--remove-signatures", "--preserve-digests"] as const;
/** What a copy is called in the directory that skopeo starts in: in an absolute name, a colon would be taken for more. */
export const COPY_NAME = "copy";

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
  /** the manifest to copy, as `inspectImage` gave it: a tag may have moved meanwhile */
  readonly selection: Selection;
  /** OCI layout to be made; its parent exists, it does not */
  readonly directory: string;
}

/**
 * Asks the registry which manifest this platform (linux/amd64) gets. That the registry has it, and what it names, is not
 * known yet.
 * @throws ApiError `not_found`, `forbidden` (the registry wants other credentials), `unavailable` (registry down,
 * time-out), `validation_error` (an image that cannot be used here)
 */
export async function inspectImage(reference: RegistryReference, access: RegistryAccess): Promise<Selection> {
  return selectManifest(await inspect(reference, reference.digest, access));
}

/**
 * Copies the selected image, by its digest, into an OCI layout, and verifies all of it.
 * @throws ApiError as `inspectImage` does, `insufficient_storage`, `payload_too_large`
 */
export async function copyToLayout(reference: RegistryReference, options: CopyOptions): Promise<ImageLayout> {
  const { selection, directory, signal } = options;
  // Nothing of an image is fetched, from wherever its manifest says, before that can be used at all.
  if (selection.isEntry) parseManifest(await inspect(reference, selection.digest, options));
  await using own = await scratchDirectory(options.scratch, "copy-");
  const source = sourceName(reference, selection.digest);
  await skopeo((home) => copyArgv(home, source, `dir:${COPY_NAME}`), reference, { ...options, scratch: own.path });
  return await verifiedLayout(join(own.path, COPY_NAME), selection.digest, { directory, signal });
}

/** The document that a registry gives for a tag, or for a digest, which then is the document's. */
async function inspect(
  reference: RegistryReference,
  digest: string | undefined,
  access: RegistryAccess,
): Promise<Uint8Array> {
  const source = sourceName(reference, digest);
  const document = await skopeo((home) => inspectArgv(home, source), reference, access);
  if (digest === undefined || digest === digestOf(document)) return document;
  throw new ApiError("unavailable", `the registry ${reference.host} sent another manifest than was asked for`, {
    registry: reference.host,
  });
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

export function copyArgv(home: SkopeoHome, source: string, target: string): string[] {
  const login = home.authFile ? ["--src-authfile", home.authFile] : ["--src-no-creds"];
  return [...commonArgv(home), "copy", ...COPY_OPTIONS, "--src-cert-dir", home.certificates, ...login, source, target];
}

/** The beginning of every command line: nothing of the host's configuration counts. */
export function commonArgv(home: SkopeoHome): string[] {
  return [
    ...["skopeo", "--policy", home.policy, "--registries.d", home.signatureConfig],
    ...["--registries-conf", home.registriesConf, "--tmpdir", home.temporary],
    ...["--override-os", "linux", "--override-arch", "amd64"],
  ];
}

/** Runs skopeo in `access.scratch`, where it may write, and in a network with one way out. */
async function skopeo(
  argvOf: (home: SkopeoHome) => readonly string[],
  reference: RegistryReference,
  access: RegistryAccess,
): Promise<Uint8Array> {
  await using own = await scratchDirectory(access.scratch, "skopeo-");
  const home = await prepareSkopeoHome(own.path, reference, access);
  using gate = openRegistryGate(access);
  try {
    const command = {
      argv: argvOf(home),
      env: { ...home.environment, ...gate.environment },
      cwd: access.scratch,
      stdoutBytesMax: DOCUMENT_BYTES_MAX,
      confinement: { readable: [], writable: [access.scratch], network: gate.network },
    };
    return await runTool(command, access);
  } catch (error) {
    throw registryFailure(error, reference, { ...access, deadEnd: gate.deadEnd });
  }
}
