import { existsSync, readdirSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";

interface PackageManifest {
  readonly name: string;
  readonly version: string;
  readonly license?: string;
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly optionalDependencies?: Readonly<Record<string, string>>;
  readonly peerDependencies?: Readonly<Record<string, string>>;
  readonly devDependencies?: Readonly<Record<string, string>>;
}

/** A package whose code may be in the executable. */
export interface BundledPackage {
  readonly name: string;
  readonly version: string;
  readonly license: string;
  /** text of the licence; null when the package has none */
  readonly text: string | null;
}

const LICENSE_FILE = /^(licen[cs]e|copying)(\.\w+)?$/i;
const RULE = "\n\n----------------------------------------------------------------------\n\n";

/** The program's dependencies and all of their dependencies, as they are installed. */
export async function bundledPackages(root: string): Promise<readonly BundledPackage[]> {
  const modules = join(root, "node_modules");
  const packages = new Map<string, BundledPackage>();
  const own = await manifestIn(root);
  const queue = Object.keys(own.dependencies ?? {});
  for (let name = queue.pop(); name !== undefined; name = queue.pop()) {
    const directory = join(modules, name);
    // Optional packages for other platforms are not installed. A peer dependency may be one of our development tools.
    if (packages.has(name) || !existsSync(directory) || own.devDependencies?.[name] !== undefined) continue;
    const {
      version,
      license = "unknown",
      dependencies,
      optionalDependencies,
      peerDependencies,
    } = await manifestIn(directory);
    const file = readdirSync(directory).find((entry) => LICENSE_FILE.test(entry));
    const text = file === undefined ? null : (await readFile(join(directory, file), "utf8")).trim();
    packages.set(name, { name, version, license, text });
    queue.push(...Object.keys({ ...dependencies, ...optionalDependencies, ...peerDependencies }));
  }
  return [...packages.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

async function manifestIn(directory: string): Promise<PackageManifest> {
  return JSON.parse(await readFile(join(directory, "package.json"), "utf8")) as PackageManifest;
}

/** The notices about all third-party software in the executable, with licences and the location of its source. */
export async function thirdPartyNotices(root: string, bunVersion: string): Promise<string> {
  const kernel = await readFile(join(root, "build/assets/KERNEL"), "utf8");
  const packages = await bundledPackages(root);
  const parts = [
    `Third-party software in the executable of Coppice

Coppice itself is under the Apache License 2.0 (LICENSE). Its executable holds the following, too.`,
    `The guest's kernel and its modules: Linux, GNU General Public License version 2

Binaries of Debian, the kernel uncompressed and the modules without debugging sections, otherwise unchanged. They run as
a program of their own in virtual machines and are not linked to Coppice.

${kernel.trim()}

${kernelSource(kernel)}

${await debianCopyright("linux-libc-dev")}`,
    `musl, in the guest's agent and the launcher: MIT license\n\n${await debianCopyright("musl")}`,
    `Bun ${bunVersion}, the runtime: MIT license, with parts under others

${await bunLicense(root)}`,
    ...packages.map(packageNotice),
    `GNU General Public License, version 2\n\n${await commonLicense("GPL-2")}`,
    `GNU Lesser General Public License, version 2.1\n\n${await commonLicense("LGPL-2.1")}`,
  ];
  return `${parts.join(RULE)}\n`;
}

/** The notices about these packages alone. */
export function packageNotices(packages: readonly BundledPackage[]): string {
  return `${packages.map(packageNotice).join(RULE)}\n`;
}

function packageNotice({ name, version, license, text }: BundledPackage): string {
  const body = text ?? `The package has no text of its licence (${license}); Apache-2.0 is in LICENSE.`;
  return `${name} ${version}: ${license}\n\n${body}`;
}

function kernelSource(kernel: string): string {
  const built = /^built-using: (\S+) \(= (\S+)\)$/m.exec(kernel);
  if (built === null)
    throw new Error("build/assets/KERNEL does not name the source of the kernel; make assets writes it");
  const [, name, version] = built;
  return `Its complete source is Debian's source package ${name}, version ${version}:
  apt-get source ${name}=${version}
or https://snapshot.debian.org/package/${name}/${version}/`;
}

/** The licence in Bun's documentation, without the page's front matter. */
async function bunLicense(root: string): Promise<string> {
  const page = await readFile(join(root, "node_modules/bun-types/docs/project/license.mdx"), "utf8");
  return page.replace(/^---\n[\s\S]*?\n---\n/, "").trim();
}

async function debianCopyright(name: string): Promise<string> {
  return (await readFile(`/usr/share/doc/${name}/copyright`, "utf8")).trim();
}

async function commonLicense(name: string): Promise<string> {
  return (await readFile(`/usr/share/common-licenses/${name}`, "utf8")).trim();
}
