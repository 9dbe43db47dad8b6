/** Version of Cloud Hypervisor as its releases count. */
export interface CloudHypervisorVersion {
  readonly major: number;
  readonly minor: number;
  /** as the program tells it, without the `v` */
  readonly text: string;
}

/**
 * The first release with all that is used here: restoring memory on demand (release-notes.md, v52.0), and
 * connections of the vsock device that are reset by a restore instead of hanging.
 */
export const CLOUD_HYPERVISOR_MAJOR_MIN = 52;
/** Where packages and people put it; the first that exists is taken. */
export const CLOUD_HYPERVISOR_PROGRAMS = ["/usr/local/bin/cloud-hypervisor", "/usr/bin/cloud-hypervisor"] as const;
export const CLOUD_HYPERVISOR_RELEASES = "github.com/cloud-hypervisor/cloud-hypervisor/releases";

/** The program is absent, older than what is needed, or says something else than a version. */
export class CloudHypervisorVersionError extends Error {
  override readonly name = "CloudHypervisorVersionError";
}

/**
 * Reads what `cloud-hypervisor --version` prints, `cloud-hypervisor v53.0` or, when built from a checkout,
 * `cloud-hypervisor v53.0-246-gae44c2971`.
 * @throws CloudHypervisorVersionError
 */
export function parseCloudHypervisorVersion(output: string): CloudHypervisorVersion {
  const match = /^\S+ v?((\d{1,6})\.(\d{1,6})[0-9A-Za-z.+-]{0,64})\s*$/m.exec(output);
  const [, text, major, minor] = match ?? [];
  if (text === undefined) {
    const said = JSON.stringify(output.slice(0, 100));
    throw new CloudHypervisorVersionError(`the version of Cloud Hypervisor cannot be read from ${said}`);
  }
  return { text, major: Number(major), minor: Number(minor) };
}

/** @throws CloudHypervisorVersionError that says which version there is, which is needed and where to get it */
export function requireCloudHypervisorVersion(version: CloudHypervisorVersion, program: string): void {
  if (version.major >= CLOUD_HYPERVISOR_MAJOR_MIN) return;
  throw new CloudHypervisorVersionError(
    `Cloud Hypervisor v${version.text} (${program}) is too old: v${CLOUD_HYPERVISOR_MAJOR_MIN}.0 or newer is needed; ` +
      `${CLOUD_HYPERVISOR_RELEASES} has static binaries`,
  );
}
