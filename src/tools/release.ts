/**
 * Makes the archive of a release: `bun src/tools/release.ts [--executable PATH] [--outdir PATH] [--timestamp SECONDS]`. It
 * is not part of the executable.
 */
import { chmod, copyFile, cp, mkdir, readdir, rm } from "node:fs/promises";
import { join, relative, resolve } from "node:path";
import { parseArgs } from "node:util";
import { DEBIAN_PACKAGES } from "../supervisor/health/programs.ts";
import { run } from "../system/exec.ts";
import { VERSION } from "../version.ts";
import { thirdPartyNotices } from "./release-notices.ts";

const root = join(import.meta.dir, "../..");
/** Time limit of the compression, which takes seconds on an idle machine. */
const ARCHIVE_MS_MAX = 300_000;

const INSTALL = `Coppice ${VERSION} for Debian 12 and alike, x86_64.

  sha256sum -c SHA256SUMS
  apt-get install --no-install-recommends $(cat PACKAGES)
  ./coppice doctor
  ./coppice install --start
  coppice token create --account me --save

PACKAGES lists the Debian packages that it needs; where the machine has no network, bring them along
(apt-get download). README.md and docs/ explain everything else.
`;

/** Documents of the repository that are included. */
const DOCUMENTS = ["README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "docs"];

async function release(executable: string, outdir: string, timestamp: string): Promise<void> {
  const name = `coppice-${VERSION}-linux-x86_64`;
  const directory = join(outdir, name);
  await rm(directory, { recursive: true, force: true });
  await mkdir(directory, { recursive: true });
  await copyFile(executable, join(directory, "coppice"));
  await chmod(join(directory, "coppice"), 0o755);
  for (const document of DOCUMENTS) await cp(join(root, document), join(directory, document), { recursive: true });
  await Bun.write(join(directory, "THIRD-PARTY-NOTICES"), await thirdPartyNotices(root, Bun.version));
  await Bun.write(join(directory, "PACKAGES"), `${DEBIAN_PACKAGES.join("\n")}\n`);
  await Bun.write(join(directory, "INSTALL"), INSTALL);
  await Bun.write(join(directory, "SHA256SUMS"), await checksums(directory));
  const archive = join(outdir, `${name}.tar.gz`);
  // Options for a reproducible archive.
  const stable = [
    "--sort=name",
    `--mtime=@${timestamp}`,
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--mode=u=rwX,go=rX",
  ];
  const argv = [
    "tar",
    "--create",
    ...stable,
    "--use-compress-program=gzip -n",
    "--file",
    archive,
    "--directory",
    outdir,
    name,
  ];
  await run({ argv, timeoutMs: ARCHIVE_MS_MAX });
  await rm(directory, { recursive: true });
  const sum = `${await sha256(archive)}  ${name}.tar.gz\n`;
  await Bun.write(`${archive}.sha256`, sum);
  process.stdout.write(`${archive}: ${Math.round(Bun.file(archive).size / 1024 ** 2)} MiB\n`);
}

async function checksums(directory: string): Promise<string> {
  const entries = await readdir(directory, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile());
  const names = files.map(({ parentPath, name }) => relative(directory, join(parentPath, name))).sort();
  const lines = await Promise.all(names.map(async (name) => `${await sha256(join(directory, name))}  ${name}\n`));
  return lines.join("");
}

async function sha256(path: string): Promise<string> {
  const hash = new Bun.CryptoHasher("sha256");
  for await (const chunk of Bun.file(path).stream()) hash.update(chunk);
  return hash.digest("hex");
}

const { values } = parseArgs({
  options: {
    executable: { type: "string", default: "dist/coppice" },
    outdir: { type: "string", default: "dist/release" },
    timestamp: { type: "string", default: "0" },
  },
});
await release(resolve(root, values.executable), resolve(root, values.outdir), values.timestamp);
