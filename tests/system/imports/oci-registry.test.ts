import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ApiError } from "../../../src/domain/errors.ts";
import { parseRegistryReference } from "../../../src/domain/registry-reference.ts";
import type { ImageLayout } from "../../../src/oci/layout.ts";
import type { ImageManifest } from "../../../src/oci/manifest.ts";
import { copyArgv, copyToLayout, inspectImage, type RegistryAccess } from "../../../src/oci/skopeo.ts";
import { prepareSkopeoHome } from "../../../src/oci/skopeo-home.ts";
import { readableLayout } from "../../../src/oci/skopeo-offline.ts";
import { unpack } from "../../../src/oci/umoci.ts";
import { run } from "../../../src/system/exec.ts";
import { type ScratchDirectory, scratchDirectory } from "../../../src/system/scratch.ts";
import { ToolNetwork } from "../../../src/system/tool-network.ts";
import { failureOf } from "../../support/failures.ts";
import { builtAssets } from "../../support/guests/vm.ts";
import { indexOf, layer, RawRegistry, rawImage } from "../../support/images/hostile-images.ts";
import {
  awkwardImage,
  busyboxImage,
  digestsIn,
  pushBusybox,
  pushImage,
  pushIndex,
  pushManifest,
} from "../../support/images/images.ts";
import { Registry } from "../../support/images/registry.ts";
import { testGate } from "../../support/network/gate.ts";

setDefaultTimeout(60_000);

const PASSWORD = "hunter2-canary-p4ss";
const CREDENTIALS = { username: "alice", password: PASSWORD };
const ZEROS = `sha256:${"0".repeat(64)}`;

let open: Registry;
let closed: Registry;
let busybox: string;
let scratch: ScratchDirectory;

beforeAll(async () => {
  [open, closed, scratch] = await Promise.all([
    Registry.start(),
    Registry.start({ credentials: CREDENTIALS, tls: true }),
    // Image tools take a colon for the beginning of a tag.
    scratchDirectory(tmpdir(), "oci:with a colon-"),
  ]);
  busybox = await pushBusybox(open, "team/busybox:1");
  await pushBusybox(closed, "private/busybox:1");
});

afterAll(async () => {
  // A call leaves nothing but its layout in the scratch directory.
  const left = (await readdir(scratch.path)).filter((name) => name.startsWith("skopeo-"));
  await Promise.all([open, closed, scratch, outside].map((owned) => owned[Symbol.asyncDispose]()));
  expect(left).toEqual([]);
});

const network = new ToolNetwork();
const outside = await testGate();
const access = (registry: Registry, more: Partial<RegistryAccess> = {}): RegistryAccess => ({
  credentials: null,
  settings: registry.settings,
  hosts: { [registry.host]: {} },
  network,
  gate: outside.gate,
  scratch: scratch.path,
  launcher: builtAssets().launcher,
  timeoutMs: 30_000,
  signal: new AbortController().signal,
  ...more,
});

/** A manifest as the registry stores it. */
async function bytesOf(repository: string, digest: string): Promise<Buffer> {
  const headers = { accept: "application/vnd.oci.image.manifest.v1+json" };
  return Buffer.from(await (await open.fetch(`${repository}/manifests/${digest}`, { headers })).bytes());
}

let layouts = 0;
async function pull(text: string, options: RegistryAccess): Promise<ImageLayout & { digest: string }> {
  const reference = parseRegistryReference(text);
  const selection = await inspectImage(reference, options);
  layouts += 1;
  const directory = join(scratch.path, `layout ${layouts}`);
  const layout = await copyToLayout(reference, { ...options, selection, directory, onProgress: () => undefined });
  return { ...layout, digest: selection.digest };
}

async function manifestIn(layout: string): Promise<ImageManifest> {
  const index = JSON.parse(await readFile(join(layout, "index.json"), "utf8"));
  return JSON.parse(await readFile(join(layout, "blobs", index.manifests[0].digest.replace(":", "/")), "utf8"));
}

async function failure(promise: Promise<unknown>): Promise<ApiError> {
  const error = await promise.then(
    () => new Error("it worked"),
    (reason: unknown) => reason,
  );
  if (!(error instanceof ApiError)) throw error;
  return error;
}

test("a public image is copied, and its digest is the registry's", async () => {
  const { directory, digest } = await pull(busybox, access(open));
  const response = await open.fetch("team/busybox/manifests/1", {
    headers: { accept: "application/vnd.oci.image.manifest.v1+json" },
  });
  expect(digest).toBe(response.headers.get("docker-content-digest") ?? "");
  const manifest = (await response.json()) as ImageManifest;
  expect(await manifestIn(directory)).toEqual(manifest);
  const pinned = parseRegistryReference(`docker://${open.host}/team/busybox:other@${digest}`);
  expect(await inspectImage(pinned, access(open))).toEqual({
    digest,
    isEntry: false,
    variant: "",
    layers: manifest.layers,
  });
});

test("a password gives access to a private registry over TLS, and is in no argument, environment or remaining file", async () => {
  const seen = new Set<string>();
  let secrets = 0;
  const timer = setInterval(() => {
    for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
      try {
        const command = readFileSync(`/proc/${pid}/cmdline`, "latin1");
        if (command.includes("skopeo")) seen.add(command);
        const environment = command.startsWith("skopeo") ? readFileSync(`/proc/${pid}/environ`, "latin1") : "";
        if ([command, environment].some((text) => text.includes(PASSWORD))) secrets += 1;
      } catch (error) {
        // ENOENT, ESRCH: the process ended meanwhile.
        expect(["ENOENT", "ESRCH"]).toContain((error as NodeJS.ErrnoException).code ?? "");
      }
    }
  }, 1);
  const name = `${closed.host}/private/busybox:1`;
  const { directory } = await pull(name, access(closed, { credentials: CREDENTIALS }));
  clearInterval(timer);
  expect([...seen].some((command) => command.includes("--authfile") && command.includes("inspect"))).toBe(true);
  expect(secrets).toBe(0);
  expect((await digestsIn(directory)).length).toBe(3);
  const everything = await Array.fromAsync(new Bun.Glob("**/*").scan({ cwd: scratch.path, dot: true }));
  for (const file of everything) {
    expect((await readFile(join(scratch.path, file), "latin1")).includes(btoa(`alice:${PASSWORD}`))).toBe(false);
  }
});

test("refused logins are forbidden, and never repeat the password", async () => {
  const name = `${closed.host}/private/busybox:1`;
  const anonymous = await failure(pull(name, access(closed)));
  expect([anonymous.code, anonymous.message]).toEqual(["forbidden", `the registry requires credentials for ${name}`]);
  const wrong = { username: "alice", password: "wr0ng-canary" };
  const refused = await failure(pull(name, access(closed, { credentials: wrong })));
  expect([refused.code, refused.message]).toEqual([
    "forbidden",
    `the registry does not accept the credentials for ${name}`,
  ]);
  expect(JSON.stringify(refused.body())).not.toContain("wr0ng-canary");
  const colon = { username: "a:b", password: "x" };
  expect((await failure(pull(name, access(closed, { credentials: colon })))).code).toBe("validation_error");
});

test("an unknown authority and a registry with plain HTTP are named as the cause", async () => {
  const untrusted = await failure(pull(`${closed.host}/private/busybox:1`, access(closed, { settings: {} })));
  expect([untrusted.code, untrusted.message]).toEqual([
    "unavailable",
    `the certificate of the registry ${closed.host} is not trusted: the operator may set ca_file for it`,
  ]);
  const plain = await failure(pull(busybox, access(open, { settings: {} })));
  expect([plain.code, plain.message]).toEqual([
    "unavailable",
    `the registry ${open.host} speaks plain HTTP: the operator may set insecure for it`,
  ]);
});

test("a missing tag, repository or digest is not found", async () => {
  for (const rest of ["team/busybox:nope", "missing/nothing:1", `team/busybox@${ZEROS}`]) {
    const error = await failure(pull(`${open.host}/${rest}`, access(open)));
    expect([error.code, error.message]).toEqual(["not_found", `there is no image ${open.host}/${rest}`]);
  }
});

test("a registry that is down is unavailable", async () => {
  const gone = await Registry.start();
  await gone[Symbol.asyncDispose]();
  const refused = await failure(pull(`${gone.host}/a:1`, access(gone)));
  expect([refused.code, refused.message]).toEqual([
    "unavailable",
    `the registry ${gone.host} cannot be reached: connection refused`,
  ]);
  expect(refused.details).toMatchObject({ registry: gone.host });
  const unknown = await failure(pull("registry.invalid/a:1", access(gone)));
  expect(unknown.message).toBe("the registry registry.invalid cannot be reached: its name does not resolve");
});

test("layers in every compression are converted for umoci", async () => {
  const types = { gzip: "tar+gzip", zstd: "tar+gzip", none: "tar" };
  for (const compression of ["gzip", "zstd", "none"] as const) {
    const image = { layers: [[{ path: "file", content: `in ${compression}` }]], compression };
    const layout = await pull(await pushImage(open, `packed-${compression}:1`, image), access(open));
    expect(layout.isReadable).toBe(compression !== "zstd");
    const bounds = { launcher: builtAssets().launcher, timeoutMs: 30_000, signal: new AbortController().signal };
    const directory = await readableLayout(layout, { ...bounds, directory: join(scratch.path, `readable ${layouts}`) });
    const { config, layers } = await manifestIn(directory);
    expect(config.digest).toBe(layout.configDigest);
    expect(layers.map(({ mediaType }) => mediaType)).toEqual([
      `application/vnd.oci.image.layer.v1.${types[compression]}`,
    ]);
    await unpack({ layout: directory, into: join(scratch.path, `root ${layouts}`), ...bounds });
    expect(await readFile(join(scratch.path, `root ${layouts}`, "file"), "utf8")).toBe(`in ${compression}`);
  }
});

test("an image in Docker's format becomes an OCI layout, under the registry's digest", async () => {
  const image = { layers: [[{ path: "file", content: "docker" }]], format: "docker" } as const;
  const reference = await pushImage(open, "docker:1", image);
  const { directory, digest } = await pull(reference, access(open));
  const headers = { accept: "application/vnd.docker.distribution.manifest.v2+json" };
  const response = await open.fetch("docker/manifests/1", { headers });
  expect(digest).toBe(response.headers.get("docker-content-digest") ?? "");
  await unpack({
    layout: directory,
    into: `${directory}-root`,
    launcher: builtAssets().launcher,
    timeoutMs: 30_000,
    signal: new AbortController().signal,
  });
  expect(await readFile(`${directory}-root/file`, "utf8")).toBe("docker");
});

test("the configuration of the host's own image tools is neither read nor written", async () => {
  const trace = join(scratch.path, "trace");
  const { directory } = await pull(busybox, access(open));
  expect(directory).toBeString();
  await using home = await scratchDirectory(scratch.path, "traced-");
  const skopeoHome = await prepareSkopeoHome(home.path, parseRegistryReference(busybox), access(open));
  const argv = copyArgv(skopeoHome, `docker://${busybox}`, "dir:traced");
  await run({
    argv: ["strace", "-f", "-qq", "-e", "trace=%file", "-o", trace, ...argv],
    env: skopeoHome.environment,
    cwd: scratch.path,
    timeoutMs: 30_000,
  });
  const touched = [...(await readFile(trace, "utf8")).matchAll(/"(\/[^"]*)".* = \d+/g)].map(([, path]) => path ?? "");
  expect(touched.length).toBeGreaterThan(10);
  const foreign = touched.filter(
    (path) => /containers|docker|\.config|auth\.json/.test(path) && !path.startsWith(scratch.path),
  );
  // Short names, which a full reference does not need; skopeo has no option for this directory.
  expect(foreign.filter((path) => !path.startsWith("/etc/containers/registries.conf.d"))).toEqual([]);
});

test("of an image for several platforms, the one for this machine is used", async () => {
  const image = (text: string, architecture: string) => ({
    layers: [[{ path: "arch", content: text }]],
    config: { os: "linux", architecture },
  });
  const { reference, digests } = await pushIndex(open, "many:1", {
    "linux/arm64": image("arm", "arm64"),
    "linux/amd64/v3": image("amd v3", "amd64"),
    "linux/amd64": image("amd", "amd64"),
  });
  const { digest, directory } = await pull(reference, access(open));
  expect(digest).toBe(digests["linux/amd64"] ?? "");
  const [layer] = (await manifestIn(directory)).layers;
  const archive = Bun.gunzipSync(await readFile(join(directory, "blobs", layer?.digest.replace(":", "/") ?? "")));
  expect(Buffer.from(archive).toString()).toMatch(/amd(?! v3)/);

  const arm = await pushIndex(open, "arm:1", { "linux/arm64": image("arm", "arm64") });
  const missing = await failure(pull(arm.reference, access(open)));
  expect([missing.code, missing.details]).toEqual(["not_found", { platforms: ["linux/arm64"] }]);
  await pushManifest(open, "arm", "single", image("arm", "arm64"));
  const single = await failure(pull(`${open.host}/arm:single`, access(open)));
  expect([single.code, single.message]).toEqual([
    "validation_error",
    "the image is for linux/arm64, not for linux/amd64",
  ]);
});

test("a cancelled copy ends at once with the reason, and so does one that is late", async () => {
  // It answers all requests, but blobs never end.
  const stalling = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    idleTimeout: 0,
    async fetch(request) {
      const url = new URL(request.url);
      if (!url.pathname.includes("/blobs/")) {
        const answer = await open.fetch(`http://${open.host}${url.pathname}`, { headers: request.headers });
        return new Response(await answer.bytes(), { status: answer.status, headers: answer.headers });
      }
      copying.resolve();
      return new Response(new ReadableStream({ pull: () => Promise.withResolvers<void>().promise }));
    },
  });
  const copying = Promise.withResolvers<void>();
  await using _server = { [Symbol.asyncDispose]: () => stalling.stop(true) };
  const host = `127.0.0.1:${stalling.port}`;
  const name = `${host}/team/busybox:1`;
  const stalled = (more: Partial<RegistryAccess>) => access(open, { hosts: { [host]: {} }, ...more });
  const controller = new AbortController();
  const reason = new Error("cancelled");
  const cancelled = pull(name, stalled({ signal: controller.signal }));
  cancelled.catch(() => "awaited below");
  await copying.promise;
  controller.abort(reason);
  expect(await failureOf(cancelled)).toBe(reason);
  const late = await failure(pull(name, stalled({ timeoutMs: 1000 })));
  expect([late.code, late.message]).toEqual(["unavailable", "import timed out after 1 s"]);
});

test("a mirror is asked first, and the named registry when the mirror lacks the image", async () => {
  await using mirror = await Registry.start();
  await pushImage(mirror, "team/mirrored:1", awkwardImage({ long: false }));
  await pushImage(open, "team/original:1", await busyboxImage());
  const settings = { insecure: true, mirrors: [{ host: mirror.host, insecure: true }] };
  await pull(`${open.host}/team/mirrored:1`, access(open, { settings }));
  await pull(`${open.host}/team/original:1`, access(open, { settings }));
  const without = await failure(pull(`${open.host}/team/mirrored:1`, access(open)));
  expect(without.code).toBe("not_found");
});

test("wrong content of a mirror is refused, for a tag and for a digest", async () => {
  using mirror = new RawRegistry();
  const planted = rawImage([layer({ path: "file", content: "planted" })]);
  const name = "team/lied-about";
  const reference = await pushImage(open, `${name}:1`, { layers: [[{ path: "file", content: "genuine" }]] });
  const digest = (await inspectImage(parseRegistryReference(reference), access(open))).digest;
  const settings = { insecure: true, mirrors: [{ host: mirror.host, insecure: true }] };
  const contents = async (): Promise<string | null> => {
    const pulled = await pull(reference, access(open, { settings })).catch((error: unknown) => {
      if (error instanceof ApiError) return null;
      throw error;
    });
    if (pulled === null) return null;
    const [only] = (await manifestIn(pulled.directory)).layers;
    const blob = await readFile(join(pulled.directory, "blobs", only?.digest.replace(":", "/") ?? ""));
    return `${pulled.digest === digest} ${Buffer.from(Bun.gunzipSync(blob)).includes("genuine")}`;
  };
  // The operator's mirror decides what a tag refers to, but content must match its digest.
  mirror.add(name, planted);
  expect(await contents()).toBe("false false");
  const genuine = { type: planted.manifest.type, bytes: await bytesOf(name, digest) };
  mirror.addDocument(name, "1", genuine);
  mirror.setDocument(name, digest, { ...planted.manifest, claimedDigest: digest });
  expect([null, "true true"]).toContain(await contents());
  mirror.addDocument(name, "1", indexOf(genuine));
  mirror.setDocument(name, digest, planted.manifest);
  expect([null, "true true"]).toContain(await contents());
  // The manifest is the genuine one, and its layer is not.
  mirror.addDocument(name, "1", genuine);
  const parsed = JSON.parse(genuine.bytes.toString()) as ImageManifest;
  for (const { digest: of } of [parsed.config, ...parsed.layers]) mirror.setBlob(of, Buffer.from("planted"));
  expect([null, "true true"]).toContain(await contents());
});
