import { expect } from "bun:test";
import { mkdtemp, readdir, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { DEBIAN_PACKAGES, QEMU, TOOLS } from "../../../src/supervisor/health/programs.ts";
import { run } from "../../../src/system/exec.ts";
import { bundledPackages } from "../../../src/tools/release-notices.ts";
import { EXECUTABLE, programTest } from "../../support/api/program.ts";

const ROOT = resolve(import.meta.dir, "../../..");
const RELEASE_MS_MAX = 120_000;

programTest(
  "a release holds the program, whose notices and checksums are right",
  async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-release-"));
    await using _directory = { [Symbol.asyncDispose]: () => rm(directory, { recursive: true }) };
    const script = [process.execPath, join(ROOT, "src/tools/release.ts"), "--outdir", directory];
    await run({
      argv: [...script, "--executable", resolve(EXECUTABLE ?? ""), "--timestamp", "1700000000"],
      timeoutMs: RELEASE_MS_MAX,
      env: { PATH: `${resolve(process.execPath, "..")}:/usr/bin:/bin` },
    });
    const [archive = "", sum = ""] = (await readdir(directory)).sort();
    expect(sum).toBe(`${archive}.sha256`);
    await run({ argv: ["sha256sum", "--check", "--strict", sum], cwd: directory, timeoutMs: 30_000 });
    await run({ argv: ["tar", "-xzf", archive], cwd: directory, timeoutMs: 60_000 });
    const inside = join(directory, archive.replace(".tar.gz", ""));
    expect((await readdir(inside)).sort()).toEqual([
      "CHANGELOG.md",
      "INSTALL",
      "LICENSE",
      "PACKAGES",
      "README.md",
      "SECURITY.md",
      "SHA256SUMS",
      "THIRD-PARTY-NOTICES",
      "coppice",
      "docs",
    ]);
    expect((await readdir(join(inside, "docs"))).sort()).toEqual((await readdir(join(ROOT, "docs"))).sort());
    expect(await readFile(join(inside, "PACKAGES"), "utf8")).toBe(`${DEBIAN_PACKAGES.join("\n")}\n`);
    const sums = await readFile(join(inside, "SHA256SUMS"), "utf8");
    expect(sums).toMatch(/^[0-9a-f]{64} {2}docs\/operations\.md$/m);
    await run({ argv: ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd: inside, timeoutMs: 30_000 });
    expect((await stat(join(inside, "coppice"))).mode & 0o777).toBe(0o755);
    expect((await stat(join(inside, "INSTALL"))).mtimeMs).toBe(1_700_000_000_000);
    const { stdout } = await run({ argv: [join(inside, "coppice"), "--version"], timeoutMs: 30_000 });
    expect(archive).toContain(Buffer.from(stdout).toString().trim().replace("coppice ", "coppice-"));

    const notices = await readFile(join(inside, "THIRD-PARTY-NOTICES"), "utf8");
    const kernel = await readFile(join(ROOT, "build/assets/KERNEL"), "utf8");
    const [, source, version] = /^built-using: (\S+) \(= (\S+)\)$/m.exec(kernel) ?? [];
    expect(notices).toContain(`apt-get source ${source}=${version}`);
    for (const { name, version: packageVersion } of await bundledPackages(ROOT)) {
      expect(notices).toContain(`\n${name} ${packageVersion}: `);
    }
    for (const name of ["musl", "JavaScriptCore", "GNU GENERAL PUBLIC LICENSE", "GNU LESSER GENERAL PUBLIC LICENSE"]) {
      expect(notices).toContain(name);
    }
  },
  RELEASE_MS_MAX,
);

programTest("the packages of a release have the programs that doctor checks", async () => {
  for (const { name, package: debianPackage = name } of [QEMU, ...TOOLS]) {
    const { stdout } = await run({ argv: ["dpkg-query", "--search", `*bin/${name}`], timeoutMs: 30_000 });
    expect(Buffer.from(stdout).toString()).toMatch(new RegExp(`^${debianPackage}: \\S+bin/${name}$`, "m"));
    expect(DEBIAN_PACKAGES).toContain(debianPackage);
  }
});
