import { afterAll, beforeAll, expect } from "bun:test";
import { mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, relative, resolve } from "node:path";
import { programTest } from "../../support/api/program.ts";
import { Executable } from "../../support/executable.ts";

const ROOT = resolve(import.meta.dir, "../../..");

let executable: Executable;
let root: string;
beforeAll(async () => {
  if (process.env["COPPICE_TEST_EXECUTABLE"] === undefined) return;
  executable = await Executable.place();
  root = await mkdtemp(join(tmpdir(), "coppice-root-"));
});
afterAll(async () => {
  if (root === undefined) return;
  await executable[Symbol.asyncDispose]();
  await rm(root, { recursive: true });
});

const at = (path: string): string => join(root, path);

/** Files and empty directories below the staging root, with their modes. */
async function placed(): Promise<Record<string, string>> {
  const names = (await readdir(root, { recursive: true, withFileTypes: true })).map((entry) =>
    join(entry.parentPath, entry.name),
  );
  const modes: [string, string][] = [];
  for (const path of names) {
    const facts = await stat(path);
    if (facts.isDirectory() && (await readdir(path)).length > 0) continue;
    modes.push([relative(root, path), (facts.mode & 0o7777).toString(8)]);
  }
  return Object.fromEntries(modes.sort());
}

const ALL = {
  "etc/coppice/config.toml": "640",
  "run/coppice": "755",
  "usr/local/bin/coppice": "755",
  "usr/local/lib/systemd/system/coppice-machines.service": "644",
  "usr/local/lib/systemd/system/coppice.service": "644",
  "usr/local/lib/sysusers.d/coppice.conf": "644",
  "usr/local/lib/tmpfiles.d/coppice.conf": "644",
  "usr/local/share/bash-completion/completions/coppice": "644",
  "usr/local/share/doc/coppice/config.toml": "644",
  "usr/local/share/fish/vendor_completions.d/coppice.fish": "644",
  "usr/local/share/zsh/site-functions/_coppice": "644",
  "var/lib/coppice": "700",
};

programTest("install puts everything in place below a root, and the installed program works", async () => {
  const { code, stderr } = await executable.run(["install", "--root", root]);
  expect(stderr).toContain("is installed as");
  expect(code).toBe(0);
  expect(await placed()).toEqual(ALL);
  for (const unit of ["coppice.service", "coppice-machines.service"]) {
    const installed = await readFile(at(`usr/local/lib/systemd/system/${unit}`), "utf8");
    expect(installed).toBe(await readFile(join(ROOT, "systemd", unit), "utf8"));
  }
  const installed = Bun.spawn(
    [at("usr/local/bin/coppice"), "config", "check", "--config", at("etc/coppice/config.toml")],
    {
      stdout: "pipe",
      env: { PATH: "/usr/bin:/bin", HOME: root, TMPDIR: tmpdir() },
      timeout: 30_000,
    },
  );
  expect(await new Response(installed.stdout).text()).toContain("no mistakes");
});

programTest("an upgrade replaces the program while it runs, and keeps configuration and data", async () => {
  await writeFile(at("etc/coppice/config.toml"), "[pool]\nsize = 5\n");
  await writeFile(at("var/lib/coppice/precious"), "data");
  await writeFile(at("usr/local/lib/sysusers.d/coppice.conf"), "outdated");
  const before = (await stat(at("usr/local/bin/coppice"))).ino;
  const running = Bun.spawn(
    [at("usr/local/bin/coppice"), "serve", "--data-dir", at("elsewhere"), "--listen-port", "0"],
    {
      env: { PATH: "/usr/bin:/bin", HOME: root, TMPDIR: tmpdir() },
      stderr: "ignore",
      timeout: 30_000,
    },
  );
  const { code, stderr } = await executable.run(["install", "--root", root]);
  running.kill("SIGTERM");
  await running.exited;
  expect(code).toBe(0);
  expect(stderr).toContain("exists and stays unchanged");
  expect((await stat(at("usr/local/bin/coppice"))).ino).not.toBe(before);
  expect(await readFile(at("etc/coppice/config.toml"), "utf8")).toBe("[pool]\nsize = 5\n");
  expect(await readFile(at("usr/local/lib/sysusers.d/coppice.conf"), "utf8")).toContain("g coppice");
  expect(await readFile(at("var/lib/coppice/precious"), "utf8")).toBe("data");
  await rm(at("elsewhere"), { recursive: true, force: true });
});

programTest("uninstall leaves data and configuration, except with --purge", async () => {
  const kept = await executable.run(["uninstall", "--root", root]);
  expect(kept.code).toBe(0);
  expect(kept.stderr).toContain("stay; --purge removes them");
  expect(await placed()).toMatchObject({
    "etc/coppice/config.toml": "640",
    "var/lib/coppice/precious": expect.any(String),
  });
  expect(Object.keys(await placed()).filter((path) => /coppice/.test(path) && !/^(etc|var)/.test(path))).toEqual([]);
  expect((await executable.run(["uninstall", "--purge", "--root", root])).code).toBe(0);
  expect(Object.keys(await placed()).filter((path) => path.includes("coppice"))).toEqual([]);
});

programTest("installing on the system needs root, and contradictory options are refused", async () => {
  expect((await executable.run(["install", "--root", root, "--start"])).code).toBe(2);
  const unprivileged = Bun.spawn(["setpriv", "--reuid", "65534", "--clear-groups", executable.path, "install"], {
    stderr: "pipe",
    env: { PATH: "/usr/bin:/bin", HOME: "/nonexistent", TMPDIR: "/tmp" },
    timeout: 30_000,
  });
  expect(await new Response(unprivileged.stderr).text()).toMatch(/needs root|denied/i);
  expect(await unprivileged.exited).not.toBe(0);
});
