import { createHash } from "node:crypto";
import { gzipSync } from "node:zlib";
import { tar } from "../../images/tar.ts";
import type { Files } from "./web.ts";

interface NpmPackage {
  readonly name: string;
  readonly main: string;
  readonly dependencies: Readonly<Record<string, string>>;
}

const PACKAGES: readonly NpmPackage[] = [
  { name: "test-words", main: 'module.exports = "hello from npm";\n', dependencies: {} },
  {
    name: "test-greeting",
    main: 'console.log(require("test-words"));\n',
    dependencies: { "test-words": "^1.0.0" },
  },
];

/** The answer of a registry at this URL for a package, and for the one that it depends on. */
export function npmRegistry(url: string): Files {
  const files: Record<string, Uint8Array | string> = {};
  for (const { name, main, dependencies } of PACKAGES) {
    const manifest = { name, version: "1.0.0", main: "index.js", dependencies };
    const archive = gzipSync(
      tar([
        { path: "package/package.json", content: JSON.stringify(manifest) },
        { path: "package/index.js", content: main },
      ]),
    );
    const tarball = `${name}/-/${name}-1.0.0.tgz`;
    const integrity = `sha512-${createHash("sha512").update(archive).digest("base64")}`;
    const version = { ...manifest, dist: { tarball: `${url}${tarball}`, integrity } };
    files[tarball] = archive;
    files[name] = JSON.stringify({ name, "dist-tags": { latest: "1.0.0" }, versions: { "1.0.0": version } });
  }
  return files;
}
