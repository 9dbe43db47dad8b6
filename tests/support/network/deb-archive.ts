import { createHash } from "node:crypto";
import { chmod, mkdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import type { Files } from "./site/web.ts";

const DPKG_MS = 30_000;

interface DebianPackage {
  readonly name: string;
  readonly depends?: string;
  /** contents by path below the root; all files are programs */
  readonly files: Readonly<Record<string, string>>;
}

/** A library of one script, and the program that needs it. */
const PACKAGES: readonly DebianPackage[] = [
  { name: "hello-words", files: { "usr/share/hello-words/words": "hello from a package\n" } },
  {
    name: "hello-program",
    depends: "hello-words",
    files: { "usr/bin/hello-program": "#!/bin/sh\ncat /usr/share/hello-words/words\n" },
  },
];

/** A flat archive for `deb [trusted=yes] URL ./`: packages built by dpkg-deb, their index, and its sums. */
export async function debArchive(): Promise<Files> {
  await using scratch = await scratchDirectory(tmpdir(), "deb-archive-");
  const files: Record<string, Uint8Array | string> = {};
  const stanzas: string[] = [];
  for (const each of PACKAGES) {
    const { control, content } = await build(scratch.path, each);
    files[`${each.name}_1.0_all.deb`] = content;
    stanzas.push(
      `${control}Filename: ./${each.name}_1.0_all.deb\nSize: ${content.length}\nSHA256: ${sha256(content)}\n`,
    );
  }
  const index = stanzas.join("\n");
  files["Packages"] = index;
  files["Release"] =
    `Origin: test\nSuite: test\nDate: Sun, 01 Nov 2026 00:00:00 UTC\nSHA256:\n ${sha256(index)} ${index.length} Packages\n`;
  return files;
}

async function build(
  scratch: string,
  { name, depends, files }: DebianPackage,
): Promise<{ control: string; content: Uint8Array }> {
  const root = join(scratch, name);
  for (const [path, text] of Object.entries(files)) {
    await mkdir(join(root, path, ".."), { recursive: true });
    await writeFile(join(root, path), text);
    await chmod(join(root, path), 0o755);
  }
  const fields = [
    ...[`Package: ${name}`, "Version: 1.0", "Architecture: all", "Maintainer: nobody <nobody@localhost>"],
    ...(depends === undefined ? [] : [`Depends: ${depends}`]),
    "Description: a package of the tests",
  ];
  const control = `${fields.join("\n")}\n`;
  await mkdir(join(root, "DEBIAN"));
  await writeFile(join(root, "DEBIAN/control"), control);
  const path = `${root}.deb`;
  await run({ argv: ["dpkg-deb", "--build", "--root-owner-group", "-Znone", root, path], timeoutMs: DPKG_MS });
  return { control, content: await Bun.file(path).bytes() };
}

const sha256 = (content: Uint8Array | string): string => createHash("sha256").update(content).digest("hex");
