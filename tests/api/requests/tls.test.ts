import { afterAll, beforeAll, expect } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { EXECUTABLE, programTest } from "../../support/api/program.ts";
import { throwing } from "../../support/failures.ts";
import { until } from "../../support/waiting.ts";

/** Longest that the program may take to listen, in `milliseconds`. */
const LISTEN_MS_MAX = 30_000;

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-tls-"));
});
afterAll(() => rm(directory, { recursive: true, force: true }));

const at = (name: string): string => join(directory, name);

async function selfSigned(): Promise<{ cert: string; key: string }> {
  const cert = at("cert.pem");
  const key = at("key.pem");
  const names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"];
  const options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert];
  await run({ argv: ["openssl", "req", "-x509", ...options, ...names], timeoutMs: 30_000 });
  return { cert, key };
}

/** Starts the program with these flags, and returns the address that it logs, or its log when it ends. */
async function serve(flags: readonly string[]) {
  const argv = [resolve(EXECUTABLE ?? ""), "serve", "--data-dir", at("data"), "--log-format", "json", ...flags];
  const logPath = at(`${Bun.randomUUIDv7()}.log`);
  await Bun.write(logPath, "");
  const child = Bun.spawn(argv, {
    env: { PATH: process.env["PATH"] ?? "", HOME: directory, TMPDIR: tmpdir() },
    stdin: "ignore",
    stderr: Bun.file(logPath),
    timeout: LISTEN_MS_MAX,
  });
  let log = "";
  let url: string | null = null;
  await until("the program listens, or has ended", async () => {
    const hasEnded = child.exitCode !== null;
    log = await Bun.file(logPath).text();
    url = /"url":"(http[^"]+)"/.exec(log)?.[1] ?? null;
    return url !== null || hasEnded;
  });
  return { child, url: url as string | null, log };
}

programTest("the listener speaks TLS only", async () => {
  const { cert, key } = await selfSigned();
  const tlsFlags = ["--listen-tls-cert", cert, "--listen-tls-key", key];
  // With TLS, it may listen on all addresses.
  const { child, url } = await serve([...tlsFlags, "--listen-host", "0.0.0.0", "--listen-port", "0"]);
  expect(url).toStartWith("https://0.0.0.0:");
  const address = `https://localhost:${new URL(url ?? "").port}`;
  const ca = await Bun.file(cert).text();
  const answer = await fetch(`${address}/healthz`, { tls: { ca } });
  expect(await answer.json()).toMatchObject({ status: "ok" });
  expect(await throwing(fetch(`${address}/healthz`))).toThrow(/self.signed|certificate/i);
  expect(await throwing(fetch(`${address.replace("https", "http")}/healthz`))).toThrow();
  const session = ["openssl", "s_client", "-connect", address.slice("https://".length), "-CAfile", cert, "-brief"];
  const { stderr } = await run({ argv: session, stdin: new Uint8Array(), timeoutMs: 10_000 });
  expect(stderr).toMatch(/TLSv1\.[23]/);
  expect(stderr).toContain("Verification: OK");
  const create = [resolve(EXECUTABLE ?? ""), "token", "create", "--data-dir", at("data"), "--account", "me"];
  const { stdout } = await run({ argv: create, timeoutMs: 20_000 });
  const token = Buffer.from(stdout).toString();
  const signedIn = await fetch(`${address}/web/session`, {
    method: "POST",
    headers: { origin: address },
    body: JSON.stringify({ token }),
    tls: { ca },
  });
  const cookie = signedIn.headers.get("set-cookie") ?? "";
  expect(cookie).toMatch(/^__Host-coppice-\d+=[\w-]{43}; Path=\/; HttpOnly; SameSite=Strict; Secure$/);
  const { csrf } = (await signedIn.json()) as { readonly csrf: string };
  const headers = { cookie: cookie.split(";")[0] ?? "", "x-csrf-token": csrf };
  expect((await fetch(`${address}/web/api/v1/images`, { headers, tls: { ca } })).status).toBe(200);
  child.kill("SIGTERM");
  expect(await child.exited).toBe(0);
});

programTest("with web.enabled = false there is no page", async () => {
  const { child, url } = await serve(["--listen-port", "0", "--web-enabled", "false"]);
  for (const path of ["/", "/runs", "/web/session", "/web/api/v1/images"]) {
    expect((await fetch(`${url}${path}`)).status).toBe(404);
  }
  expect((await fetch(`${url}/healthz`)).status).toBe(200);
  child.kill("SIGTERM");
  expect(await child.exited).toBe(0);
});

programTest("without TLS it does not listen on addresses that other hosts can reach", async () => {
  const { child, url, log } = await serve(["--listen-host", "0.0.0.0", "--listen-port", "0"]);
  expect(url).toBeNull();
  expect(log).toContain("set listen.tls_cert and listen.tls_key");
  expect(await child.exited).toBe(2);
});
