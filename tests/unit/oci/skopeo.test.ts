import { describe, expect, test } from "bun:test";
import { readdir, readFile, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ApiError } from "../../../src/domain/errors.ts";
import { parseRegistryReference } from "../../../src/domain/registry-reference.ts";
import type { FailedHost } from "../../../src/network/registry-gate.ts";
import { erofsArgv, ext4Argv } from "../../../src/oci/base-disk.ts";
import { scratchArgv } from "../../../src/oci/scratch-disk.ts";
import { copyArgv, inspectArgv } from "../../../src/oci/skopeo.ts";
import { registryFailure } from "../../../src/oci/skopeo-failure.ts";
import { prepareSkopeoHome, registriesConf } from "../../../src/oci/skopeo-home.ts";
import { unpackArgv } from "../../../src/oci/umoci.ts";
import { CommandError } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { throwing } from "../../support/failures.ts";

const reference = parseRegistryReference("r.example:5000/team/app:1");
const home = {
  policy: "/s/policy.json",
  signatureConfig: "/s/signatures",
  registriesConf: "/s/registries.conf",
  temporary: "/s/tmp",
  certificates: "/s/certificates",
  authFile: "/s/auth.json",
  environment: {},
};
const COMMON =
  "skopeo --policy /s/policy.json --registries.d /s/signatures --registries-conf /s/registries.conf --tmpdir /s/tmp --override-os linux --override-arch amd64";

describe("argument vectors", () => {
  test("inspect", () => {
    expect(inspectArgv(home, "docker://r.example/a:1").join(" ")).toBe(
      `${COMMON} inspect --raw --cert-dir /s/certificates --authfile /s/auth.json docker://r.example/a:1`,
    );
    expect(inspectArgv({ ...home, authFile: null }, "docker://r.example/a:1").join(" ")).toBe(
      `${COMMON} inspect --raw --cert-dir /s/certificates --no-creds docker://r.example/a:1`,
    );
  });

  test("copy", () => {
    const options = "--quiet --remove-signatures --preserve-digests --src-cert-dir /s/certificates";
    expect(copyArgv(home, "docker://r.example/a@sha256:0", "dir:copy").join(" ")).toBe(
      `${COMMON} copy ${options} --src-authfile /s/auth.json docker://r.example/a@sha256:0 dir:copy`,
    );
    expect(copyArgv({ ...home, authFile: null }, "docker://r.example/a@sha256:0", "dir:copy").join(" ")).toBe(
      `${COMMON} copy ${options} --src-no-creds docker://r.example/a@sha256:0 dir:copy`,
    );
  });

  test("umoci, mkfs and other tools", () => {
    expect(unpackArgv({ layout: "/s/layout", into: "/s/staging/upper" }).join(" ")).toBe(
      "umoci raw unpack --image layout:image /s/staging/upper",
    );
    expect(erofsArgv({ staging: "/s/staging", path: "/s/disk" }).join(" ")).toBe(
      "mkfs.erofs -Enoinline_data -U c0bb1ce0-0000-4000-8000-000000000001 --quiet /s/disk /s/staging",
    );
    expect(ext4Argv({ staging: "/s/staging", path: "/s/disk", sizeBytes: 10_000_000, inodes: 300 }).join(" ")).toBe(
      "mke2fs -q -F -t ext4 -b 4096 -I 256 -m 0 -N 300 -U c0bb1ce0-0000-4000-8000-000000000001 " +
        "-O ^has_journal,^resize_inode,sparse_super2 " +
        "-E lazy_itable_init=0,assume_storage_prezeroed=1,packed_meta_blocks=1,num_backup_sb=0,nodiscard " +
        "-d /s/staging /s/disk 2442",
    );
    expect(scratchArgv({ path: "/s/disk", diskBytes: 10_737_418_240, content: "/s/content" }).join(" ")).toBe(
      "mke2fs -q -F -t ext4 -b 4096 -m 0 -G 128 -O ^has_journal,^resize_inode,sparse_super2,metadata_csum " +
        "-E lazy_itable_init=0,assume_storage_prezeroed=1,packed_meta_blocks=1,num_backup_sb=0,nodiscard,root_owner=0:0 " +
        "-d /s/content /s/disk 2621440",
    );
  });
});

describe("skopeo's home", () => {
  test("contains the login for one host, readable only by its owner", async () => {
    await using directory = await scratchDirectory(tmpdir(), "home-");
    const ca = join(directory.path, "own.pem");
    await writeFile(ca, "authority");
    const at = join(directory.path, "home-of-skopeo");
    const home = await prepareSkopeoHome(at, reference, {
      credentials: { username: "alice", password: "päss:w0rd" },
      settings: { caFile: ca },
    });
    const auth = JSON.parse(await readFile(home.authFile ?? "", "utf8"));
    expect(Object.keys(auth.auths)).toEqual(["r.example:5000"]);
    expect(Buffer.from(auth.auths["r.example:5000"].auth, "base64").toString()).toBe("alice:päss:w0rd");
    expect((await stat(home.authFile ?? "")).mode & 0o7777).toBe(0o600);
    expect((await readdir(home.certificates)).length).toBe(1);
    const { _CONTAINERS_ROOTLESS_UID, ...paths } = home.environment;
    expect(Object.keys(paths).sort()).toEqual(["HOME", "TMPDIR", "XDG_RUNTIME_DIR"]);
    expect(Object.values(paths).every((path) => path.startsWith(at))).toBe(true);
    const anonymous = await prepareSkopeoHome(join(directory.path, "second"), reference, {
      credentials: null,
      settings: {},
    });
    expect([anonymous.authFile, await readdir(anonymous.certificates)]).toEqual([null, []]);
  });

  test("names a missing CA file as the cause", async () => {
    await using directory = await scratchDirectory(tmpdir(), "home-");
    const preparing = prepareSkopeoHome(directory.path, reference, {
      credentials: null,
      settings: { caFile: "/no/ca" },
    });
    expect(await throwing(preparing)).toThrow("the CA file that is configured for the registry cannot be read");
  });

  test("the registry's settings are pinned for host and repository", () => {
    const settings = { insecure: true, mirrors: [{ host: "m.example" }] };
    const parsed = Bun.TOML.parse(registriesConf(reference, settings)) as { registry: object[] };
    const entry = (suffix: string) => ({
      prefix: `r.example:5000${suffix}`,
      location: `r.example:5000${suffix}`,
      insecure: true,
      blocked: false,
      mirror: [{ location: `m.example${suffix}`, insecure: false }],
    });
    expect(parsed.registry).toEqual([entry(""), entry("/team/app")]);
  });
});

describe("failures of a registry", () => {
  const fail = (
    message: string,
    credentials: { username: string; password: string } | null = null,
    failedHost: (words: string) => FailedHost | null = () => null,
  ): ApiError => {
    const stderrTail = `time="2026-01-01T00:00:00Z" level=fatal msg=${JSON.stringify(message)}`;
    const error = new CommandError("skopeo failed", {
      argv: ["skopeo"],
      exitCode: 1,
      signal: null,
      timedOut: false,
      stderrTail,
    });
    return registryFailure(error, reference, { credentials, timeoutMs: 5000, failedHost });
  };
  for (const [message, code] of [
    [
      'pinging container registry r: Get "https://r/v2/": dial tcp 10.0.0.1:443: connect: connection refused',
      "unavailable",
    ],
    [
      'pinging container registry r: Get "https://r/v2/": dial tcp: lookup r on 10.0.0.53:53: no such host',
      "unavailable",
    ],
    ['Get "https://r/v2/": net/http: TLS handshake timeout', "unavailable"],
    ['Get "https://r/v2/": x509: certificate signed by unknown authority', "unavailable"],
    ["reading manifest 1 in r/a: toomanyrequests: You have reached your pull rate limit", "unavailable"],
    ["reading manifest 1 in r/a: received unexpected HTTP status: 502 Bad Gateway", "unavailable"],
    ["writing blob: open /x: no space left on device", "insufficient_storage"],
    ["reading manifest 1 in r/a: manifest unknown: manifest unknown", "not_found"],
    ["reading manifest 1 in r/a: name unknown: repository name not known to registry", "not_found"],
    ["reading manifest 1 in r/a: StatusCode: 404, page not found", "not_found"],
    ["reading manifest 1 in r/a: unauthorized: authentication required", "forbidden"],
    ["reading manifest 1 in r/a: errors:\ndenied: requested access to the resource is denied", "forbidden"],
    ["reading manifest 1 in r/a: StatusCode: 403, {}", "forbidden"],
    ["unable to retrieve auth token: invalid username/password: unauthorized: no", "forbidden"],
    ["Error parsing image name: invalid reference format", "validation_error"],
    ["unsupported manifest media type and no default available: application/x", "validation_error"],
    ["an unknown message", "unavailable"],
  ] as const) {
    test(message, () => {
      const error = fail(message);
      expect(error.code).toBe(code);
      expect(error.details["registry"] ?? "r.example:5000").toBe("r.example:5000");
    });
  }

  test("names an unreachable address with the reason", () => {
    const failedHost = (host: string, code: FailedHost["code"], reason: string) =>
      fail("socks connect", null, () => ({ host, code, reason }));
    const own = failedHost("r.example:5000", "unavailable", "connection refused");
    expect(own.message).toBe("the registry r.example:5000 cannot be reached: connection refused");
    const other = failedHost("blobs.example:443", "unavailable", "no route to it");
    expect(other.message).toBe(
      "the registry r.example:5000 sends its clients elsewhere, and blobs.example:443 cannot be reached: no route to it",
    );
    expect(other.details).toMatchObject({ registry: "r.example:5000", host: "blobs.example:443" });
    const refused = failedHost("x.example:80", "forbidden", "the operator does not allow the registry x.example:80");
    expect([refused.code, refused.message]).toEqual([
      "forbidden",
      "the registry r.example:5000 sends its clients elsewhere, and the operator does not allow the registry x.example:80",
    ]);
  });

  test("reports the registry's failure rather than a mirror's", () => {
    const mirrors = "(Mirrors also failed: [m.example/a:1: reading manifest: socks connect tcp a->b: not allowed]): ";
    const seen: string[] = [];
    const error = fail(`${mirrors}r.example/a:1: reading manifest 1 in r/a: manifest unknown`, null, (words) => {
      seen.push(words);
      return null;
    });
    expect([error.code, seen]).toEqual(["not_found", ["r.example/a:1: reading manifest 1 in r/a: manifest unknown"]]);
  });

  test("does not repeat secrets and signed URLs", () => {
    const secret = fail("token for alice:hunter2 (aHVudGVyMg==) refused", { username: "alice", password: "hunter2" });
    expect(secret.details["reason"]).toBe("token for alice:*** (aHVudGVyMg==) refused");
    const short = fail("abcabc", { username: "u", password: "abc" });
    expect(short.details["reason"]).toBe("not shown: it may contain the password");
    const signed = fail('Get "https://cdn/blob?sig=SECRET&x=1": gone');
    expect(signed.details["reason"]).toBe('Get "https://cdn/blob?...": gone');
    expect(String(fail("x".repeat(5000)).details["reason"]).length).toBeLessThan(600);
  });

  test("an empty password masks nothing", () => {
    expect(fail("plain words", { username: "u", password: "" }).details["reason"]).toBe("plain words");
  });

  test("rethrows other errors", () => {
    const reason = new Error("cancelled");
    expect(() =>
      registryFailure(reason, reference, { credentials: null, timeoutMs: 1, failedHost: () => null }),
    ).toThrow(reason);
  });
});
