/** Version of Cloud Hypervisor as its releases count. */
export interface CloudHypervisorVersion {
  readonly major: number;
  readonly minor: number;
  /** the version that the program prints, without the `v` */
  readonly text: string;
}

/**
 * First release with everything that is needed: vsock connections that a restore resets instead of leaving them open
 * (release-notes.md, v52.0).
 */
export const CLOUD_HYPERVISOR_MAJOR_MIN = 52;
/** Usual paths of the program; the first that exists is used. */
export const CLOUD_HYPERVISOR_PROGRAMS = ["/usr/local/bin/cloud-hypervisor", "/usr/bin/cloud-hypervisor"] as const;
export const CLOUD_HYPERVISOR_RELEASES = "github.com/cloud-hypervisor/cloud-hypervisor/releases";

/** The program is missing, too old, or does not print a version. */
export class CloudHypervisorVersionError extends Error {
  override readonly name = "CloudHypervisorVersionError";
}

/**
 * Parses the output of `cloud-hypervisor --version`: `cloud-hypervisor v53.0` or, when built from a checkout,
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

/** @throws CloudHypervisorVersionError that names the found version, the needed one and where to get it */
export function requireCloudHypervisorVersion(version: CloudHypervisorVersion, program: string): void {
  if (version.major >= CLOUD_HYPERVISOR_MAJOR_MIN) return;
  throw new CloudHypervisorVersionError(
    `Cloud Hypervisor v${version.text} (${program}) is too old: v${CLOUD_HYPERVISOR_MAJOR_MIN}.0 or newer is needed; ` +
      `${CLOUD_HYPERVISOR_RELEASES} has static binaries`,
  );
}
