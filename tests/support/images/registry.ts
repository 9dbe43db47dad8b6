import { createHash } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RegistrySettings } from "../../../src/network/registry-policy.ts";
import { type ChildProcess, DIE_WITH_PARENT, run, start } from "../../../src/system/exec.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { deadline, until } from "../waiting.ts";

const START_MS = 20_000;
/** Ends a registry that a test forgot. */
const LIFETIME_MS = 1_800_000;
const OPENSSL_MS = 30_000;

export interface RegistryOptions {
  /** requires this login of every client */
  readonly credentials?: { readonly username: string; readonly password: string };
  /** speaks HTTPS with a self-signed certificate */
  readonly tls?: boolean;
  /** port of the loopback; default is a free one */
  readonly port?: number;
}

/** A real container registry on the loopback, with its own empty storage. It dies with this process. */
export class Registry implements AsyncDisposable {
  /** `127.0.0.1:<port>` */
  readonly host: string;
  /** settings that a client needs to reach it */
  readonly settings: RegistrySettings;
  readonly credentials: RegistryOptions["credentials"];
  readonly caFile: string | null;
  readonly #process: ChildProcess;
  readonly #owned: AsyncDisposableStack;

  private constructor(parts: {
    host: string;
    options: RegistryOptions;
    caFile: string | null;
    process: ChildProcess;
    owned: AsyncDisposableStack;
  }) {
    this.host = parts.host;
    this.credentials = parts.options.credentials;
    this.caFile = parts.caFile;
    this.settings = parts.caFile === null ? { insecure: true } : { caFile: parts.caFile };
    this.#process = parts.process;
    this.#owned = parts.owned;
  }

  /** Resolves when the registry listens. */
  static async start(options: RegistryOptions = {}): Promise<Registry> {
    await using stack = new AsyncDisposableStack();
    const { path } = stack.use(await scratchDirectory(tmpdir(), "registry-"));
    const config = join(path, "config.json");
    const caFile = options.tls ? await makeCertificate(path) : null;
    await writeFile(config, JSON.stringify(await configuration(path, options)), { mode: 0o600 });
    const argv = [...DIE_WITH_PARENT, "docker-registry", "serve", config];
    const process = start({ argv, extraFds: [], stderr: "tail" });
    stack.defer(async () => {
      process.kill("SIGKILL");
      await process.exited;
    });
    stack.use(deadline(LIFETIME_MS, () => process.kill("SIGKILL")));
    const host = await listening(process);
    return new Registry({ host, options, caFile, process, owned: stack.move() });
  }

  get pid(): number {
    return this.#process.pid;
  }

  /** Sends a request of the registry protocol; `path` follows `/v2/`. */
  async fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const url = path.includes("://") ? path : `${this.caFile === null ? "http" : "https"}://${this.host}/v2/${path}`;
    const headers = new Headers(init.headers);
    const { username, password } = this.credentials ?? {};
    if (username !== undefined) headers.set("authorization", `Basic ${btoa(`${username}:${password}`)}`);
    const tls = this.caFile === null ? {} : { tls: { ca: Bun.file(this.caFile) } };
    return await fetch(url, { ...init, headers, ...tls, signal: AbortSignal.timeout(START_MS) });
  }

  async putBlob(repository: string, content: Uint8Array): Promise<string> {
    const digest = digestOf(content);
    const begun = await this.#expect(202, `${repository}/blobs/uploads/`, { method: "POST" });
    const location = new URL(begun.headers.get("location") ?? "", `http://${this.host}`);
    location.searchParams.set("digest", digest);
    const headers = { "content-type": "application/octet-stream" };
    await this.#expect(201, location.href, { method: "PUT", headers, body: new Uint8Array(content) });
    return digest;
  }

  /** Stores a manifest under a tag or its digest, and returns its digest. */
  async putManifest(repository: string, reference: string | null, mediaType: string, content: string): Promise<string> {
    const digest = digestOf(Buffer.from(content));
    const path = `${repository}/manifests/${reference ?? digest}`;
    await this.#expect(201, path, { method: "PUT", headers: { "content-type": mediaType }, body: content });
    return digest;
  }

  async #expect(status: number, path: string, init: RequestInit): Promise<Response> {
    const response = await this.fetch(path, init);
    if (response.status !== status) throw new Error(`registry: ${path}: ${response.status} ${await response.text()}`);
    return response;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync();
  }
}

export function digestOf(content: Uint8Array | string): string {
  return `sha256:${createHash("sha256").update(content).digest("hex")}`;
}

/** The registry's configuration is YAML, of which JSON is a subset. */
async function configuration(path: string, options: RegistryOptions): Promise<object> {
  const storage = join(path, "storage");
  await mkdir(storage);
  const auth = options.credentials && { htpasswd: { realm: "test", path: join(path, "htpasswd") } };
  if (options.credentials) {
    const { username, password } = options.credentials;
    const hash = await Bun.password.hash(password, { algorithm: "bcrypt", cost: 4 });
    await writeFile(join(path, "htpasswd"), `${username}:${hash}\n`, { mode: 0o600 });
  }
  return {
    version: 0.1,
    log: { level: "info", accesslog: { disabled: true } },
    storage: { filesystem: { rootdirectory: storage }, delete: { enabled: true } },
    http: {
      addr: `127.0.0.1:${options.port ?? 0}`,
      secret: "only for tests",
      ...(options.tls ? { tls: { certificate: join(path, "ca.crt"), key: join(path, "ca.key") } } : {}),
    },
    ...(auth ? { auth } : {}),
  };
}

async function makeCertificate(path: string): Promise<string> {
  const [certificate, key] = [join(path, "ca.crt"), join(path, "ca.key")];
  const subject = ["-subj", "/CN=registry", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"];
  const kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
  const argv = ["openssl", "req", "-x509", ...kind, ...subject, "-keyout", key, "-out", certificate];
  await run({ argv, timeoutMs: OPENSSL_MS });
  return certificate;
}

/** The registry chooses the port itself and logs it. */
async function listening(process: ChildProcess): Promise<string> {
  let ended = false;
  void process.exited.then(() => {
    ended = true;
  });
  const host = () => /listening on (127\.0\.0\.1:\d+)/.exec(process.stderrTail())?.[1];
  await until("the registry listens, or has ended", () => ended || host() !== undefined, START_MS);
  const address = host();
  if (address === undefined) throw new Error(`the registry does not start: ${process.stderrTail()}`);
  return address;
}
