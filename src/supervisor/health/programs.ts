import { findProgram } from "../../system/exec.ts";

/** A program of the host that the appliance runs. */
export interface Program {
  readonly name: string;
  /** what it does for the appliance */
  readonly meaning: string;
  /** the package of Debian that has it; default: `name` */
  readonly package?: string;
  /** makes it print its version; default `--version` */
  readonly argument?: string;
}

export const QEMU: Program = {
  name: "qemu-system-x86_64",
  meaning: "runs the virtual machines",
  package: "qemu-system-x86",
};

export const TOOLS: readonly Program[] = [
  { name: "skopeo", meaning: "pulls images from registries" },
  { name: "umoci", meaning: "unpacks images" },
  { name: "mkfs.erofs", meaning: "builds the disks of imported images", package: "erofs-utils", argument: "--help" },
  { name: "mke2fs", meaning: "formats the writable disks", package: "e2fsprogs", argument: "-V" },
  {
    name: "ip",
    meaning: "sets up the network namespace in which skopeo runs",
    package: "iproute2",
    argument: "-V",
  },
  { name: "setpriv", meaning: "ties tools to the life of the appliance", package: "util-linux" },
];

/** The Debian packages of all programs, in alphabetical order. */
export const DEBIAN_PACKAGES: readonly string[] = packagesOf([QEMU, ...TOOLS]);

/** The Debian packages of the programs that this host lacks, in alphabetical order. */
export function missingPackages(find: (name: string) => string | null = findProgram): string[] {
  return packagesOf([QEMU, ...TOOLS].filter(({ name }) => find(name) === null));
}

function packagesOf(programs: readonly Program[]): string[] {
  return [...new Set(programs.map(({ name, package: debianPackage = name }) => debianPackage))].sort();
}
