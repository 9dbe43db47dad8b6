import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileProblems } from "../../../src/cli/config/config.ts";
import { loadConfig } from "../../../src/config/config.ts";
import { run } from "../../../src/system/exec.ts";
import { cli } from "../../support/cli/cli.ts";

const directory = await mkdtemp(join(tmpdir(), "coppice-config-"));
beforeAll(async () => {
  for (const name of ["one", "two"]) await certificate(name, 30);
});
afterAll(() => rm(directory, { recursive: true }));

const at = (name: string): string => join(directory, name);

async function certificate(name: string, days: number): Promise<void> {
  const key = ["-newkey", "rsa:2048", "-nodes", "-keyout", at(`${name}.key`)];
  const argv = ["openssl", "req", "-x509", ...key, "-out", at(`${name}.pem`), "-days", String(days), "-subj", "/CN=x"];
  await run({ argv, timeoutMs: 30_000 });
}

async function file(text: string): Promise<string> {
  await writeFile(at("config.toml"), text);
  return at("config.toml");
}

const show = async (argv: readonly string[], environment: Record<string, string> = {}) => {
  const { code, stdout } = await cli(["config", "show", "--json", ...argv], {
    environment: { HOME: "/x", ...environment },
  });
  expect(code).toBe(0);
  const settings = JSON.parse(stdout.toString()) as { setting: string; value: unknown; origin: string }[];
  return (name: string) => settings.find(({ setting }) => setting === name);
};

describe("config show", () => {
  test("shows where each value comes from, in rising precedence", async () => {
    const path = await file("data_dir = '/a'\n\n[listen]\nport = 1\nhost = '127.0.0.2'\n\n[pool]\nsize = 7\n");
    const setting = await show(["--config", path, "--listen-port", "3"], {
      COPPICE_LISTEN_PORT: "2",
      COPPICE_LISTEN_HOST: "127.0.0.3",
    });
    expect(setting("listen.port")).toEqual({ setting: "listen.port", value: 3, origin: "--listen-port" });
    expect(setting("listen.host")).toMatchObject({ value: "127.0.0.3", origin: "COPPICE_LISTEN_HOST" });
    expect(setting("pool.size")).toMatchObject({ value: 7, origin: `${path}:8` });
    expect(setting("data_dir")).toMatchObject({ value: "/a", origin: `${path}:1` });
    expect(setting("log.level")).toMatchObject({ value: "info", origin: "default" });
  });

  test("shows rules in full, as the file may have them", async () => {
    const setting = await show(["--network-allow", "*.Example.org [2001:DB8::1]:*"]);
    const value = ["*.example.org:80,443", "[2001:db8::1]:*"];
    expect(setting("network.allow")).toEqual({ setting: "network.allow", value, origin: "--network-allow" });
  });

  test("shows no secret", async () => {
    const environment = {
      COPPICE_TOKEN: "eyJsecret.secret.secret",
      COPPICE_PUBLIC_URL: "https://me:hunter2@x.example",
    };
    const { stdout } = await cli(["config", "show"], { environment: { HOME: "/x", ...environment } });
    expect(stdout.toString()).not.toContain("secret");
    expect(stdout.toString()).not.toContain("hunter2");
    expect(stdout.toString()).toMatch(/^client\.token +\[redacted\] +COPPICE_TOKEN$/m);
    expect(stdout.toString()).toMatch(/^public_url +https:\/\/\[redacted\]@x\.example +COPPICE_PUBLIC_URL$/m);
  });

  test("shows registries too", async () => {
    const path = await file('[registries.hosts."r:5000"]\ninsecure = true\n');
    const setting = await show(["--config", path]);
    expect(setting('registries.hosts."r:5000"')).toMatchObject({
      origin: path,
      value: { insecure: true, allow: true },
    });
  });
});

describe("config check", () => {
  test("finds credentials of the proxy that others can read", async () => {
    await writeFile(at("proxy"), "me:hunter2\n", { mode: 0o644 });
    const text = `[network]\nproxy = "http://proxy.example:3128"\nproxy_credentials_file = "${at("proxy")}"`;
    const argv = ["config", "check", "--config", await file(text)];
    const { code, stderr } = await cli(argv, { environment: { HOME: "/x" } });
    expect(code).toBe(2);
    expect(stderr).toContain(`network.proxy_credentials_file: ${at("proxy")} must be readable by its owner only`);
    expect(stderr).not.toContain("hunter2");
  });

  const check = async (text: string) => cli(["config", "check", "--config", await file(text)], { environment: {} });
  const tls = (cert: string, key: string) => `[listen]\ntls_cert = "${at(cert)}"\ntls_key = "${at(key)}"\n`;

  test("accepts a valid configuration", async () => {
    expect(await check(tls("one.pem", "one.key"))).toMatchObject({ code: 0, stderr: "" });
  });

  test("reports all problems at once, with their lines", async () => {
    const { code, stderr } = await check('[listen]\nport = "x"\nbogus = 1\n\n[vm]\nvcpus_max = 0\n');
    expect(code).toBe(2);
    expect(stderr).toContain("config.toml:2: listen.port must be an integer");
    expect(stderr).toContain("config.toml:3: no such setting: listen.bogus");
    expect(stderr).toContain("config.toml:6: vm.vcpus_max must be an integer");
  });

  test("reports the same as JSON", async () => {
    const path = await file("[pool]\nsize = -1\n");
    const bad = await cli(["config", "check", "--json", "--config", path], { environment: {} });
    const problem = expect.stringContaining("config.toml:2: pool.size must be");
    expect([bad.code, JSON.parse(bad.stdout.toString())]).toEqual([
      2,
      { valid: false, file: null, problems: [problem] },
    ]);
    await file("[pool]\nsize = 1\n");
    const good = await cli(["config", "check", "--json", "--config", path], { environment: {} });
    expect([good.code, JSON.parse(good.stdout.toString())]).toEqual([0, { valid: true, file: path, problems: [] }]);
  });

  test("names the line at which the file cannot be parsed", async () => {
    const { code, stderr } = await check('[listen]\nport = 1\n# fine\nhost = = "x"\n[pool]\nsize = 1\n');
    expect(code).toBe(2);
    expect(stderr).toContain("config.toml:4: ");
  });

  test.each([
    ["a key of another certificate", tls("one.pem", "two.key"), "is not the key of"],
    ["a missing file", tls("none.pem", "one.key"), "none.pem cannot be read: ENOENT"],
    ["a file of another kind", tls("one.key", "one.key"), "has other content"],
    ["a missing authority", '[registries.hosts."r"]\nca_file = "/none.pem"\n', "/none.pem cannot be read: ENOENT"],
  ])("finds %s", async (_what, text, problem) => {
    const { code, stderr } = await check(text);
    expect(code).toBe(2);
    expect(stderr).toContain(problem.startsWith("/") ? `: ${problem}` : problem);
  });

  test("finds a certificate that has expired, or is not yet valid", async () => {
    const path = await file(tls("one.pem", "one.key"));
    const config = loadConfig({ environment: {}, flags: {}, file: path });
    const inDays = (days: number): Date => new Date(Date.now() + days * 86_400_000);
    expect(fileProblems(config, inDays(29))).toEqual([]);
    expect(fileProblems(config, inDays(31))).toEqual([expect.stringContaining("one.pem ended on")]);
    expect(fileProblems(config, inDays(-1))).toEqual([expect.stringContaining("not valid yet")]);
  });
});
