import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadClientConfig, tokenFileOf, URL_DEFAULT } from "../../../src/config/client.ts";
import {
  type Config,
  ConfigError,
  type ConfigSources,
  flagOf,
  keyNames,
  loadConfig,
  variableOf,
} from "../../../src/config/config.ts";
import { KEYS, shownDefault } from "../../../src/config/keys.ts";
import { readProxyCredentials } from "../../../src/config/network.ts";

let directory = "";
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "coppice-config-"));
});
afterAll(() => rmSync(directory, { recursive: true }));

function file(text: string): string {
  const path = join(directory, `${Bun.randomUUIDv7()}.toml`);
  writeFileSync(path, text);
  return path;
}

/** An empty file that replaces the host's own configuration, which a test must not read. */
const load = (sources: Partial<ConfigSources> = {}): Config =>
  loadConfig({ environment: {}, flags: {}, file: sources.file ?? file(""), ...sources });

function problemsOf(sources: Partial<ConfigSources>): readonly string[] {
  try {
    load(sources);
  } catch (error) {
    if (error instanceof ConfigError) return error.problems;
    throw error;
  }
  return [];
}

describe("defaults", () => {
  test("are a complete configuration", () => {
    expect(load()).toMatchObject({
      dataDir: "/var/lib/coppice",
      publicUrl: null,
      listen: { host: "127.0.0.1", port: 8642, tlsCert: null, tlsKey: null, insecure: false },
      vm: { emulation: "never", memoryBytesDefault: 536_870_912, maxima: { vcpus: 8 }, memoryBudgetBytes: null },
      pool: { size: 2 },
      limits: {
        instanceTimeoutMax: 3600,
        fileBytesMax: 5 * 1024 ** 3,
        diskReserveBytes: 1024 ** 3,
        imageEntriesMax: 1_000_000,
      },
      registries: { default: null, hosts: {} },
      operations: { retentionMs: 90 * 86_400_000 },
      files: { ttlMs: null },
      log: { level: "info", format: "auto" },
    });
  });

  test("are deeply frozen", () => {
    const config = load({ file: file('[registries.hosts."r:1"]\ninsecure = true') });
    for (const part of [config, config.vm, config.vm.maxima, config.registries.hosts, config.registries.hosts["r:1"]]) {
      expect(Object.isFrozen(part)).toBe(true);
    }
  });

  test.each(keyNames())("%s accepts its own default in the form shown", (name) => {
    const unset = KEYS[name].default === null || Array.isArray(KEYS[name].default);
    if (unset) return expect(KEYS[name].parse("")).toEqual(KEYS[name].default);
    expect(KEYS[name].parse(shownDefault(name))).toEqual(KEYS[name].default);
  });
});

describe("precedence", () => {
  test("a flag overrides a variable, a variable overrides the file", () => {
    const path = file("[listen]\nport = 1001\n[pool]\nsize = 3\n[log]\nlevel = 'warn'");
    const config = load({
      file: path,
      environment: { COPPICE_LISTEN_PORT: "1002", COPPICE_POOL_SIZE: "4" },
      flags: { "listen-port": "1003" },
    });
    expect([config.listen.port, config.pool.size, config.log.level]).toEqual([1003, 4, "warn"]);
  });

  test("COPPICE_CONFIG names the file, and --config overrides it", () => {
    const [a, b] = [file("[pool]\nsize = 5"), file("[pool]\nsize = 6")];
    expect(loadConfig({ environment: { COPPICE_CONFIG: a }, flags: {} }).pool.size).toBe(5);
    expect(loadConfig({ environment: { COPPICE_CONFIG: a }, flags: {}, file: b }).pool.size).toBe(6);
  });

  test("an empty variable unsets an optional value of the file", () => {
    const path = file("[vm]\nmemory_budget_bytes = '4GiB'");
    expect(load({ file: path }).vm.memoryBudgetBytes).toBe(4 * 1024 ** 3);
    expect(load({ file: path, environment: { COPPICE_VM_MEMORY_BUDGET_BYTES: "" } }).vm.memoryBudgetBytes).toBeNull();
  });

  test("each key has its own variable and flag", () => {
    expect(new Set(keyNames().map(variableOf)).size).toBe(keyNames().length);
    expect(new Set(keyNames().map(flagOf)).size).toBe(keyNames().length);
  });
});

describe("values", () => {
  test.each([
    ["limits.file_bytes_max = 1048576", 1_048_576],
    ["limits.file_bytes_max = '5GiB'", 5 * 1024 ** 3],
    ["limits.file_bytes_max = '512 MiB'", 512 * 1024 ** 2],
    ["limits.file_bytes_max = '512M'", 512 * 1024 ** 2],
    ["limits.file_bytes_max = '1.5g'", 1.5 * 1024 ** 3],
  ])("size: %s", (text, bytes) => expect(load({ file: file(text) }).limits.fileBytesMax).toBe(bytes));

  test.each([
    ["operations.retention = '90s'", 90_000],
    ["operations.retention = '2w'", 1_209_600_000],
    ["operations.retention = '250ms'", 250],
    ["operations.retention = '60'", 60_000],
    ["operations.retention = 60", 60_000],
  ])("duration: %s", (text, ms) => expect(load({ file: file(text) }).operations.retentionMs).toBe(ms));

  test("duration with a maximum, and size with a minimum", () => {
    const flags = (value: string) => ({ flags: { "limits-instance-timeout-max": value } });
    expect(["60", "2h", "7d"].map((value) => load(flags(value)).limits.instanceTimeoutMax)).toEqual([
      60, 7200, 604_800,
    ]);
    expect(problemsOf(flags("8d"))[0]).toEndWith('or a number of seconds, at most 7d, not "8d"');
    expect(problemsOf({ flags: { "limits-sandbox-log-bytes": "9K" } })[0]).toEndWith(', at least 1M, not "9K"');
  });

  test.each([
    ["COPPICE_LISTEN_PORT", "65536"],
    ["COPPICE_LISTEN_PORT", "-1"],
    ["COPPICE_LISTEN_PORT", "80.5"],
    ["COPPICE_LISTEN_PORT", ""],
    ["COPPICE_VM_EMULATION", "yes"],
    ["COPPICE_LISTEN_INSECURE", "1"],
    ["COPPICE_OPERATIONS_RETENTION", "90 days"],
    ["COPPICE_OPERATIONS_RETENTION", "0d"],
    ["COPPICE_LIMITS_FILE_BYTES_MAX", "5GO"],
    ["COPPICE_LIMITS_FILE_BYTES_MAX", "99999999TiB"],
    ["COPPICE_PUBLIC_URL", "https://example.net/"],
    ["COPPICE_DATA_DIR", ""],
  ])("%s=%s is refused", (variable, value) => {
    const problems = problemsOf({ environment: { [variable]: value } });
    expect(problems).toHaveLength(1);
    expect(problems[0]).toContain(variable);
    expect(problems[0]).toContain("must be");
  });

  test("a relative data directory is resolved where the daemon starts", () => {
    expect(load({ flags: { "data-dir": "data" } }).dataDir).toBe(join(process.cwd(), "data"));
  });

  test("refuses a data directory with a colon, where no archive could be imported", () => {
    expect(problemsOf({ flags: { "data-dir": "/srv/a:b" } })).toEqual([
      "data_dir must not contain a colon: skopeo takes what follows one for a tag",
    ]);
  });

  test("parses network rules from an array of the file or from text with blanks", () => {
    const allow = [
      { host: "*.example.org", ports: [80, 443] },
      { host: "10.0.7.0/24", ports: [5432] },
      { host: "2001:db8::1", ports: "*" },
    ];
    const texts = ["*.Example.org", "10.0.7.0/24:5432", "[2001:DB8::1]:*"];
    expect(load({ file: file(`network.allow = ${JSON.stringify(texts)}`) }).network.allow).toEqual(allow as never);
    expect(load({ environment: { COPPICE_NETWORK_ALLOW: ` ${texts.join("  ")} ` } }).network.allow).toEqual(
      allow as never,
    );
    expect(load({ flags: { "network-allow": "a.example:80,443" } }).network.allow).toEqual([
      { host: "a.example", ports: [80, 443] },
    ]);
    expect(load({ file: file(`network.allow = ["*"]`), flags: { "network-allow": "" } }).network.allow).toEqual([]);
  });

  test("parses hosts with addresses of the site, the proxy and the name servers", () => {
    const text = `
      [network]
      private = ["*.Lan.example", "db", "10.0.7.0/24", "fd00::1"]
      proxy = "http://Proxy.Lan.example:3128"
      proxy_credentials_file = "/etc/coppice/proxy"
      proxy_bypass = ["*.lan.example", "::ffff:10.0.0.0/104"]
      resolvers = ["192.0.2.1", "192.0.2.2:5353", "[2001:DB8::1]", "[2001:db8::1]:5353"]
      bytes_max = "1GiB"
    `;
    expect(load({ file: file(text) }).network).toMatchObject({
      private: {
        names: [
          { host: "*.lan.example", ports: "*" },
          { host: "db", ports: "*" },
        ],
        ranges: ["10.0.7.0/24", "fd00::1"],
      },
      proxy: { kind: "http", host: "proxy.lan.example", port: 3128 },
      proxyBypass: { names: [{ host: "*.lan.example", ports: "*" }], ranges: ["10.0.0.0/8"] },
      resolvers: ["192.0.2.1:53", "192.0.2.2:5353", "[2001:db8::1]:53", "[2001:db8::1]:5353"],
      bytesMax: 1024 ** 3,
    });
    const proxy = { kind: "socks5", host: "2001:db8::1", port: 1080 } as const;
    expect(load({ flags: { "network-proxy": "socks5://[2001:DB8::1]:1080" } }).network.proxy).toEqual(proxy);
    expect(KEYS["network.proxy"].parse("socks5://[2001:DB8::1]:1080")).toBe("socks5://[2001:db8::1]:1080");
    expect(load().network).toMatchObject({ allow: [], proxy: null, resolvers: [], record: false, connectionsMax: 256 });
  });

  test.each([
    ["network-allow", "a.example b.example:0", '"b.example:0"'],
    ["network-allow", "10.0.7.5/24", '"10.0.7.5/24"'],
    ["network-private", "*", "must not be *"],
    ["network-private", "db.example:5432", '"db.example:5432"'],
    ["network-connections-max", "257", "from 1 to 256"],
    ["network-resolvers", "dns.example", '"dns.example"'],
    ["network-resolvers", "192.0.2.1:0", '"192.0.2.1:0"'],
    ["network-resolvers", "2001:db8::1", '"2001:db8::1"'],
    ["network-proxy", "https://proxy.example:3128", "must be http://HOST:PORT or socks5://HOST:PORT"],
    ["network-proxy", "http://proxy.example", "must be http://HOST:PORT"],
    ["network-proxy", "http://proxy.example:70000", "must be http://HOST:PORT"],
    ["network-proxy", "http://127.1:3128", "must be http://HOST:PORT"],
    ["network-proxy-credentials-file", "/secret", "needs network.proxy"],
  ])("--%s %s is refused", (name, value, message) => {
    const problems = problemsOf({ flags: { [name]: value } });
    expect(problems).toHaveLength(1);
    expect(problems[0]).toContain(message);
  });

  test("the proxy's credentials are one line of a file that only the owner can read", () => {
    const credentials = (text: string, mode = 0o600) => {
      const path = file(text);
      chmodSync(path, mode);
      return path;
    };
    expect(readProxyCredentials(credentials("me:pass:word \n"))).toEqual({ user: "me", password: "pass:word " });
    expect(readProxyCredentials(credentials("m e:pässwörd\r\n"))).toEqual({ user: "m e", password: "pässwörd" });
    expect(readProxyCredentials(credentials("me:x"))).toEqual({ user: "me", password: "x" });
    expect(() => readProxyCredentials(credentials("me:hunter2", 0o640))).toThrow("chmod 0600");
    expect(() => readProxyCredentials("/nonexistent")).toThrow("/nonexistent cannot be read: ENOENT");
    for (const text of [
      "",
      "me",
      "me:",
      ":x",
      "me:hunter2\nmore\n",
      "me:h\0",
      `me:${"x".repeat(256)}`,
      `me:${"ä".repeat(128)}`,
    ]) {
      expect(() => readProxyCredentials(credentials(text))).toThrow(
        / must have one line, USER:PASSWORD, each of at most 255 bytes$/,
      );
    }
  });

  test("refuses a password in the address of the proxy, and does not repeat it", () => {
    const problems = problemsOf({ environment: { COPPICE_NETWORK_PROXY: "http://me:hunter2@proxy.example:3128" } });
    expect(problems).toEqual([
      'COPPICE_NETWORK_PROXY: network.proxy must be http://HOST:PORT or socks5://HOST:PORT, not "http://…@proxy.example:3128"',
    ]);
    const nested = problemsOf({ file: file('network.allow = ["http://me:hunter2@a.example"]') });
    expect(JSON.stringify(nested)).not.toContain("hunter2");
  });

  test("registry hosts", () => {
    const text =
      '[registries.hosts."R.example.net:5000"]\ninsecure = true\n[registries.hosts.other]\nca_file = "/ca.pem"';
    expect(load({ file: file(text) }).registries.hosts).toEqual({
      "r.example.net:5000": { insecure: true, allow: true, caFile: null, mirrors: [] },
      other: { insecure: false, allow: true, caFile: "/ca.pem", mirrors: [] },
    });
  });
});

test("mirrors, and settings for all hosts without their own", () => {
  const text =
    '[registries.hosts."*"]\nallow = false\n[registries.hosts.r]\nmirrors = [{ host = "M:1", insecure = true }]';
  expect(load({ file: file(text) }).registries.hosts).toEqual({
    "*": { insecure: false, allow: false, caFile: null, mirrors: [] },
    r: { insecure: false, allow: true, caFile: null, mirrors: [{ host: "m:1", insecure: true, caFile: null }] },
  });
  expect(problemsOf({ file: file("[registries.hosts.r]\nmirrors = [{ host = 'a b' }, 'c']") })).toHaveLength(2);
  expect(problemsOf({ file: file("[registries]\nhosts = 'r'") })).toHaveLength(1);
});

describe("problems", () => {
  test("are all reported at once, each with its line", () => {
    const path = file('typo = 1\n\n[listen]\nport = "no"\n[vm]\nemulation = "maybe"\n[registries.hosts.r]\nsecure = 1');
    const problems = problemsOf({
      file: path,
      environment: { COPPICE_POOL_SIZE: "many", COPPICE_LISTEN_PROT: "1" },
      flags: { "log-level": "loud" },
    });
    expect(problems).toEqual([
      `${path}:1: no such setting: typo`,
      `${path}:4: listen.port must be an integer from 0 to 65535, not "no"`,
      `${path}:6: vm.emulation must be one of never, allow, not "maybe"`,
      `${path}:8: registries.hosts.r.secure is no such setting`,
      `COPPICE_POOL_SIZE: pool.size must be an integer from 0 to 64, not "many"`,
      "COPPICE_LISTEN_PROT: no such setting",
      `--log-level: log.level must be one of debug, info, warn, error, not "loud"`,
    ]);
  });

  test("include a file that is not TOML, and a missing one", () => {
    expect(problemsOf({ file: file("[") })).toHaveLength(1);
    expect(problemsOf({ file: "/nonexistent/coppice.toml" })).toEqual(["/nonexistent/coppice.toml: no such file"]);
  });

  test("do not include variables of the client and of tests", () => {
    expect(problemsOf({ environment: { COPPICE_URL: "x", COPPICE_TOKEN: "y", COPPICE_TEST_Z: "z" } })).toEqual([]);
  });

  test.each(["0.0.0.0", "192.168.1.5", "::", "server.example.net"])(
    "include listening on %s without TLS or consent",
    (host) => {
      expect(problemsOf({ flags: { "listen-host": host } })[0]).toContain("listen.insecure");
      expect(problemsOf({ flags: { "listen-host": host, "listen-insecure": "true" } })).toEqual([]);
      expect(problemsOf({ flags: { "listen-host": host, "listen-tls-cert": "/c", "listen-tls-key": "/k" } })).toEqual(
        [],
      );
    },
  );

  test.each(["127.0.0.1", "127.1.2.3", "localhost", "::1"])("do not include listening on %s", (host) => {
    expect(problemsOf({ flags: { "listen-host": host } })).toEqual([]);
  });

  test("include a certificate without its key, and a default above its maximum", () => {
    expect(problemsOf({ flags: { "listen-tls-cert": "/c" } })).toEqual([
      "listen.tls_cert and listen.tls_key belong together",
    ]);
    expect(problemsOf({ flags: { "vm-vcpus-default": "9" } })).toEqual([
      "vm.vcpus_default must not be above vm.vcpus_max",
    ]);
  });
});

describe("client", () => {
  test("defaults to the loopback appliance and no token", () => {
    const nothing = { url: null, token: null, ca: null };
    const defaults = { url: URL_DEFAULT, token: null, ca: null, origins: nothing };
    expect(loadClientConfig({ HOME: directory })).toEqual(defaults);
    expect(loadClientConfig({ HOME: directory, COPPICE_URL: "", COPPICE_TOKEN: " " })).toEqual(defaults);
    expect(tokenFileOf({ HOME: directory, XDG_CONFIG_HOME: "" })).toBe(join(directory, ".config/coppice/token"));
  });

  test("address, token and authority come from the user's files, with their origin", async () => {
    const home = join(directory, "full");
    const at = (name: string) => join(home, ".config/coppice", name);
    await Bun.write(at("url"), "https://box.example.net:8642\n");
    await Bun.write(at("token"), "abc\n");
    await Bun.write(at("ca.pem"), "PEM\n");
    const own = { url: "https://box.example.net:8642", token: "abc", ca: "PEM" };
    const origins = { url: at("url"), token: at("token"), ca: at("ca.pem") };
    expect(loadClientConfig({ HOME: home })).toEqual({ ...own, origins });
    const other = loadClientConfig({ HOME: home, COPPICE_URL: "http://b", COPPICE_CA_FILE: at("token") }, "http://c");
    expect(other).toMatchObject({ url: "http://c", ca: "abc", origins: { url: "--url", ca: at("token") } });
  });

  test.each([
    [{ COPPICE_CA_FILE: "/nonexistent/ca.pem" }, "/nonexistent/ca.pem: cannot be read: ENOENT"],
    [{ COPPICE_TOKEN: "two\nlines" }, "COPPICE_TOKEN: must have a token, which is one line without blanks"],
    [{ COPPICE_TOKEN: "grün" }, "COPPICE_TOKEN: must have a token, which is one line without blanks"],
  ])("%j is refused without a trace of the value", (environment, problem) => {
    let problems: readonly string[] = [];
    try {
      loadClientConfig({ HOME: directory, ...environment });
    } catch (error) {
      problems = (error as ConfigError).problems;
    }
    expect(problems).toEqual([problem]);
  });

  test("a file that cannot be read is reported", async () => {
    const home = join(directory, "odd");
    await Bun.write(join(home, ".config/coppice/token/inside"), "");
    expect(() => loadClientConfig({ HOME: home })).toThrow(ConfigError);
  });

  test("the variable overrides the file", async () => {
    await Bun.write(join(directory, "xdg/coppice/token"), "from-file\n");
    const environment = { XDG_CONFIG_HOME: join(directory, "xdg") };
    expect(loadClientConfig(environment).token).toBe("from-file");
    expect(loadClientConfig({ ...environment, COPPICE_TOKEN: " from-variable\n" }).token).toBe("from-variable");
  });

  test.each([
    ["https://box.example.net/", "https://box.example.net"],
    ["https://box.example.net/sandbox/v1/", "https://box.example.net/sandbox"],
  ])("%s is used as %s", (url, used) => {
    expect(loadClientConfig({ HOME: directory, COPPICE_URL: url }).url).toBe(used);
  });

  test.each(["box:8642", "ftp://box", "http://"])("the address %j is refused", (url) => {
    expect(() => loadClientConfig({ HOME: directory, COPPICE_URL: url })).toThrow(ConfigError);
  });
});
