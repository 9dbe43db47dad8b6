import { afterAll, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ApiError } from "../../../src/domain/errors.ts";
import { parseRegistryReference } from "../../../src/domain/registry-reference.ts";
import { openRegistryGate } from "../../../src/network/registry-gate.ts";
import type { RegistryHosts } from "../../../src/network/registry-policy.ts";
import { copyToLayout, inspectImage, type RegistryAccess } from "../../../src/oci/skopeo.ts";
import { runTool } from "../../../src/oci/tool.ts";
import { type ScratchDirectory, scratchDirectory } from "../../../src/system/scratch.ts";
import { ToolNetwork } from "../../../src/system/tool-network.ts";
import { throwing } from "../../support/failures.ts";
import { builtAssets } from "../../support/guests/vm.ts";
import { digestsIn, pushImage } from "../../support/images/images.ts";
import {
  type Bystander,
  bystander,
  type RedirectingRegistry,
  redirectingRegistry,
} from "../../support/images/redirecting-registry.ts";
import { Registry } from "../../support/images/registry.ts";
import { type TestGate, testGate } from "../../support/network/gate.ts";
import { type NameServer, nameServer } from "../../support/network/site/name-server.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(60_000);

const CREDENTIALS = { username: "alice", password: "hunter2-canary-p4ss" };
const BYTES = 24 * 1024 * 1024;

let network: ToolNetwork;
let outside: TestGate;
let names: NameServer;
/** the answers of the name server, in order; after them no name exists */
const answers: (readonly string[])[] = [];
let scratch: ScratchDirectory;
let plain: Registry;
let closed: Registry;
let redirecting: RedirectingRegistry;
let service: Bystander;

/** Another spelling of the loopback address. Go takes it for a name, and so sends it to the proxy. */
const named = (host: string): string => host.replace("127.0.0.1", "127.1");

beforeAll(async () => {
  network = new ToolNetwork();
  service = bystander();
  names = await nameServer((_name, asked) => {
    const addresses = answers[asked];
    return addresses === undefined ? null : { addresses, ttl: 0 };
  });
  outside = await testGate({ resolvers: [names.address] });
  [scratch, plain, closed] = await Promise.all([
    scratchDirectory(tmpdir(), "gate-"),
    Registry.start(),
    Registry.start({ credentials: CREDENTIALS, tls: true }),
  ]);
  redirecting = redirectingRegistry(plain);
  const content = Buffer.alloc(BYTES);
  crypto.getRandomValues(content.subarray(0, 65_536));
  const image = { layers: [[{ path: "file", content }]], compression: "none" } as const;
  await Promise.all([plain, closed].map((registry) => pushImage(registry, "team/app:1", image)));
});

afterAll(async () => {
  for (const owned of [redirecting, plain, closed, scratch, outside, names]) await owned[Symbol.asyncDispose]();
  for (const owned of [service, network]) owned[Symbol.dispose]();
});

beforeEach(() => {
  redirecting.blobsAt = null;
  redirecting.tokensAt = null;
});

let pulls = 0;
async function pull(host: string, hosts: RegistryHosts, more: Partial<RegistryAccess> = {}): Promise<string[]> {
  const reference = parseRegistryReference(`${host}/team/app:1`);
  const access: RegistryAccess = {
    credentials: null,
    settings: hosts[host] ?? {},
    hosts,
    network,
    gate: outside.gate,
    scratch: scratch.path,
    launcher: builtAssets().launcher,
    timeoutMs: 30_000,
    signal: new AbortController().signal,
    ...more,
  };
  const selection = await inspectImage(reference, access);
  pulls += 1;
  const directory = join(scratch.path, `layout-${pulls}`);
  await copyToLayout(reference, { ...access, selection, directory, onProgress: () => undefined });
  return await digestsIn(directory);
}

async function failure(promise: Promise<unknown>): Promise<[string, string]> {
  const error = await promise.then(
    () => new Error("it worked"),
    (reason: unknown) => reason,
  );
  if (!(error instanceof ApiError)) throw error;
  return [error.code, error.message];
}

/** Output of a program in the tools' network. */
async function inside(argv: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<string> {
  const confinement = { readable: [], writable: [], network: network.path };
  const bounds = { launcher: builtAssets().launcher, timeoutMs: 30_000, signal: new AbortController().signal };
  const stdout = await runTool({ argv, env, confinement, stdoutBytesMax: 2 * BYTES }, bounds);
  return Buffer.from(stdout).toString().trim();
}

async function listeners(): Promise<number> {
  return (await inside(["cat", "/proc/self/net/tcp", "/proc/self/net/tcp6"])).match(/ 0A /g)?.length ?? 0;
}

const elsewhere = (host: string, kind: string): [string, string] => {
  const address = host.replace(/:\d+$/, "").replace(/^127\.1$/, "127.0.0.1");
  const refusal = `the registry ${host} has the ${kind} address ${address}, which the operator has not allowed`;
  return ["forbidden", `the registry ${redirecting.host} sends its clients elsewhere, and ${refusal}`];
};

describe("a registry that redirects its clients", () => {
  test("to unlisted addresses of this host: nothing is contacted", async () => {
    const hosts = { [redirecting.host]: { insecure: true } };
    for (const host of [`127.0.0.1:${service.port}`, `127.1:${service.port}`]) {
      redirecting.blobsAt = `http://${host}`;
      expect(await failure(pull(redirecting.host, hosts))).toEqual(elsewhere(host, "loopback"));
    }
    redirecting.blobsAt = "http://169.254.169.254";
    expect(await failure(pull(redirecting.host, hosts))).toEqual(elsewhere("169.254.169.254:80", "metadata"));
    expect(service.callers).toBe(0);
  });

  test("to unlisted addresses of this host for a token: nothing is contacted", async () => {
    const hosts = { [redirecting.host]: { insecure: true } };
    for (const credentials of [null, CREDENTIALS]) {
      for (const host of [`127.0.0.1:${service.port}`, `127.1:${service.port}`]) {
        redirecting.tokensAt = `http://${host}/token`;
        expect(await failure(pull(redirecting.host, hosts, { credentials }))).toEqual(elsewhere(host, "loopback"));
      }
    }
    redirecting.tokensAt = "http://169.254.169.254/token";
    expect(await failure(pull(redirecting.host, hosts))).toEqual(elsewhere("169.254.169.254:80", "metadata"));
    expect(service.callers).toBe(0);
  });

  test("to hosts that the operator listed: they are contacted", async () => {
    for (const host of [plain.host, named(plain.host)]) {
      redirecting.blobsAt = `http://${host}`;
      const hosts = { [redirecting.host]: { insecure: true }, [host]: {}, "*": { allow: false } };
      expect(await pull(redirecting.host, hosts)).toHaveLength(3);
    }
  });

  test("to a host that the operator does not allow: the error names it", async () => {
    redirecting.blobsAt = "http://blobs.example";
    const hosts = { [redirecting.host]: { insecure: true }, "*": { allow: false } };
    const reason = "the operator does not allow the registry blobs.example:80";
    const message = `the registry ${redirecting.host} sends its clients elsewhere, and ${reason}`;
    expect(await failure(pull(redirecting.host, hosts))).toEqual(["forbidden", message]);
  });

  test("to a host that does not answer: the error names it", async () => {
    const gone = bystander();
    gone[Symbol.dispose]();
    const host = `127.1:${gone.port}`;
    redirecting.blobsAt = `http://${host}`;
    const hosts = { [redirecting.host]: { insecure: true }, [host]: {} };
    const message = `the registry ${redirecting.host} sends its clients elsewhere, and ${host} cannot be reached: connection refused`;
    expect(await failure(pull(redirecting.host, hosts))).toEqual(["unavailable", message]);
  });
});

describe("a registry behind a name", () => {
  test("is reached over TLS, with a login", async () => {
    const host = named(closed.host);
    const hosts = { [host]: { insecure: true } };
    expect(await pull(host, hosts, { credentials: CREDENTIALS })).toHaveLength(3);
    expect((await failure(pull(host, hosts)))[0]).toBe("forbidden");
  });

  test("is reached over plain HTTP, and as the mirror of another one", async () => {
    const host = named(plain.host);
    expect(await pull(host, { [host]: { insecure: true } })).toHaveLength(3);
    const mirrored = { mirrors: [{ host, insecure: true }] };
    expect(await pull("registry.invalid", { "registry.invalid": mirrored })).toHaveLength(3);
  });

  test("that is not listed and now resolves to this host is refused at the connection, whatever it resolved to before", async () => {
    const host = named(plain.host);
    const message = `the registry ${host} has the loopback address 127.0.0.1, which the operator has not allowed`;
    expect(await failure(pull(host, {}, { settings: { insecure: true } }))).toEqual(["forbidden", message]);
  });
});

describe("the gate", () => {
  const fetchArgv = (url: string) => ["curl", "--silent", "--show-error", "--max-time", "20", "--noproxy", "", url];
  const environment = (url: string) => ({ ALL_PROXY: url.replace("socks5:", "socks5h:"), HOME: "/tmp" });

  test("connects to the address that was checked, and checks every connection again", async () => {
    answers.push(["127.0.0.1"], ["10.0.0.1", "127.0.0.1"]);
    using gate = openRegistryGate({ network, gate: outside.gate, settings: {}, hosts: { [plain.host]: {} } });
    const env = environment(gate.environment["HTTP_PROXY"] ?? "");
    const port = plain.host.split(":")[1];
    for (const _answer of [...answers]) {
      expect(await throwing(inside(fetchArgv(`http://rebinding.example:${port}/v2/`), env))).toThrow("curl");
      expect(gate.failedHost("socks connect")).toMatchObject({ code: "forbidden", host: `rebinding.example:${port}` });
    }
    expect(names.asked.filter((each) => each.endsWith(" 1"))).toHaveLength(2);
    expect(await inside(fetchArgv(`http://${plain.host}/v2/`), env)).toBe("{}");
  });

  test("refuses unknown names, and other protocols", async () => {
    const before = names.asked.length;
    using gate = openRegistryGate({ network, gate: outside.gate, settings: {}, hosts: {} });
    const place = (gate.environment["HTTP_PROXY"] ?? "").replace("socks5://", "/dev/tcp/").replace(":", "/");
    const say = (words: string) =>
      inside(["bash", "-c", `exec 3<>${place}; printf '${words}' >&3; od -An -tx1 -N12 <&3 2>/dev/null || true`], {});
    expect(await say("\\x05\\x01\\x00\\x05\\x01\\x00\\x03\\x03a b\\x00\\x50")).toStartWith("05 00 05 02 ");
    expect(gate.failedHost("socks connect")?.code).toBe("forbidden");
    expect(names.asked).toHaveLength(before);
    for (const words of [
      "GET / HTTP/1.1\\r\\n\\r\\n",
      "\\x05\\x01\\x02",
      "\\x04\\x01\\x00\\x50\\x7f\\x00\\x00\\x01\\x00",
    ]) {
      expect(await say(words)).toBe("");
    }
    // Commands other than CONNECT.
    expect(await say("\\x05\\x01\\x00\\x05\\x03\\x00\\x01\\x7f\\x00\\x00\\x01\\x00\\x50")).toBe("05 00");
  });

  test("is shared by calls that may reach the same address, and closed after the last one", async () => {
    const options = { network, gate: outside.gate, settings: {}, hosts: { [plain.host]: {} } };
    const first = openRegistryGate(options);
    using second = openRegistryGate(options);
    first[Symbol.dispose]();
    expect(await inside(fetchArgv(`http://${plain.host}/v2/`))).toBe("{}");
    second[Symbol.dispose]();
    expect(await listeners()).toBe(0);
  });

  test("passes data at the speed of its reader", async () => {
    const content = Buffer.alloc(BYTES, "0123456789abcdef");
    using server = Bun.listen({
      hostname: "127.0.0.1",
      port: 0,
      data: { sent: 0 },
      socket: {
        open: (socket) => {
          socket.data = { sent: 0 };
          const head = `HTTP/1.1 200 OK\r\nContent-Length: ${BYTES}\r\nConnection: close\r\n\r\n`;
          socket.write(head);
          socket.data.sent = socket.write(content);
        },
        data: () => undefined,
        drain: (socket) => {
          socket.data.sent += socket.write(content.subarray(socket.data.sent));
          if (socket.data.sent === BYTES) socket.end();
        },
      },
    });
    const host = `127.0.0.1:${server.port}`;
    using gate = openRegistryGate({ network, gate: outside.gate, settings: {}, hosts: { [host]: {} } });
    const env = environment(gate.environment["HTTP_PROXY"] ?? "");
    const shell = `curl --silent --noproxy "" --limit-rate 20M http://${host}/ | sha256sum`;
    const expected = new Bun.CryptoHasher("sha256").update(content).digest("hex");
    expect(await inside(["sh", "-c", shell], env)).toStartWith(expected);
  });

  test("does not outlive a cancelled call", async () => {
    const silent = bystander();
    using _silent = silent;
    const host = `127.0.0.1:${silent.port}`;
    const controller = new AbortController();
    const cancelled = pull(host, { [host]: { insecure: true } }, { signal: controller.signal });
    cancelled.catch(() => "awaited below");
    await until("the tool asks", () => silent.callers > 0);
    controller.abort(new Error("cancelled"));
    expect(await throwing(cancelled)).toThrow("cancelled");
    expect(await listeners()).toBe(0);
  });
});
