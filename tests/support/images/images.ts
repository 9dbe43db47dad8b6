import { readdir, readFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";
import { run } from "../../../src/system/exec.ts";
import { digestOf, type Registry } from "./registry.ts";
import { type TarEntry, tar } from "./tar.ts";

const BUSYBOX = "/bin/busybox";
const BUSYBOX_MS = 5000;

const INDEX_TYPE = "application/vnd.oci.image.index.v1+json";

const MEDIA_TYPES = {
  oci: {
    manifest: "application/vnd.oci.image.manifest.v1+json",
    config: "application/vnd.oci.image.config.v1+json",
    layer: {
      gzip: "application/vnd.oci.image.layer.v1.tar+gzip",
      zstd: "application/vnd.oci.image.layer.v1.tar+zstd",
      none: "application/vnd.oci.image.layer.v1.tar",
    },
  },
  docker: {
    manifest: "application/vnd.docker.distribution.manifest.v2+json",
    config: "application/vnd.docker.container.image.v1+json",
    layer: {
      gzip: "application/vnd.docker.image.rootfs.diff.tar.gzip",
      zstd: "application/octet-stream",
      none: "application/vnd.docker.image.rootfs.diff.tar",
    },
  },
} as const;

export interface ImageSpec {
  /** lowest first */
  readonly layers: readonly (readonly TarEntry[])[];
  readonly compression?: "gzip" | "zstd" | "none";
  /** media types of the manifest; Docker's own have no zstd */
  readonly format?: "oci" | "docker";
  /** fields of the image's config in addition to `rootfs`; default is the platform */
  readonly config?: Readonly<Record<string, unknown>>;
}

/** Pushes an image to a registry, `name` being `<repository>:<tag>`, and returns its reference. */
export async function pushImage(registry: Registry, name: string, image: ImageSpec): Promise<string> {
  const [repository = "", tag = "latest"] = name.split(":");
  await pushManifest(registry, repository, tag, image);
  return `${registry.host}/${repository}:${tag}`;
}

/** The digest of the manifest; without a tag it can be a part of an index. */
export async function pushManifest(
  registry: Registry,
  repository: string,
  tag: string | null,
  image: ImageSpec,
): Promise<string> {
  const types = MEDIA_TYPES[image.format ?? "oci"];
  const compression = image.compression ?? "gzip";
  const layers: { mediaType: string; digest: string; size: number }[] = [];
  const diffIds: string[] = [];
  for (const entries of image.layers) {
    const archive = tar(entries);
    const blob = compress(archive, compression);
    diffIds.push(digestOf(archive));
    const digest = await registry.putBlob(repository, blob);
    layers.push({ mediaType: types.layer[compression], digest, size: blob.length });
  }
  const platform = { architecture: "amd64", os: "linux" };
  const config = Buffer.from(
    JSON.stringify({ ...(image.config ?? platform), rootfs: { type: "layers", diff_ids: diffIds } }),
  );
  const manifest = {
    schemaVersion: 2,
    mediaType: types.manifest,
    config: { mediaType: types.config, digest: await registry.putBlob(repository, config), size: config.length },
    layers,
  };
  return await registry.putManifest(repository, tag, types.manifest, JSON.stringify(manifest));
}

/** An image for several platforms; the keys are `os/architecture` or `os/architecture/variant`. */
export async function pushIndex(
  registry: Registry,
  name: string,
  images: Readonly<Record<string, ImageSpec>>,
): Promise<{ reference: string; digests: Record<string, string> }> {
  const [repository = "", tag = "latest"] = name.split(":");
  const digests: Record<string, string> = {};
  const manifests: object[] = [];
  for (const [key, image] of Object.entries(images)) {
    const [os = "", architecture = "", variant] = key.split("/");
    const digest = await pushManifest(registry, repository, null, image);
    const size = (
      await (await registry.fetch(`${repository}/manifests/${digest}`, { headers: { accept: "*/*" } })).bytes()
    ).length;
    digests[key] = digest;
    const platform = { os, architecture, ...(variant === undefined ? {} : { variant }) };
    manifests.push({ mediaType: MEDIA_TYPES.oci.manifest, digest, size, platform });
  }
  const index = JSON.stringify({ schemaVersion: 2, mediaType: INDEX_TYPE, manifests });
  await registry.putManifest(repository, tag, INDEX_TYPE, index);
  return { reference: `${registry.host}/${repository}:${tag}`, digests };
}

function compress(archive: Buffer, compression: NonNullable<ImageSpec["compression"]>): Buffer {
  switch (compression) {
    case "gzip":
      return gzipSync(archive, { level: 1 });
    case "zstd":
      return Buffer.from(Bun.zstdCompressSync(archive));
    case "none":
      return archive;
  }
}

/** A root file system with every applet of this machine's static busybox; needs no network. */
export async function busyboxImage(): Promise<ImageSpec> {
  const { stdout } = await run({ argv: [BUSYBOX, "--list-full"], timeoutMs: BUSYBOX_MS });
  const applets = Buffer.from(stdout)
    .toString()
    .split("\n")
    .filter((path) => path !== "" && path !== "bin/busybox");
  const directories = [
    "bin",
    "sbin",
    "usr",
    "usr/bin",
    "usr/sbin",
    "etc",
    "var",
    "var/tmp",
    "home",
    "root",
    "tmp",
    "run",
  ];
  const modes: Record<string, number> = { root: 0o700, tmp: 0o1777, "var/tmp": 0o1777 };
  return {
    layers: [
      [
        { path: "./", type: "directory" },
        ...directories.map((path) => ({ path: `${path}/`, type: "directory", mode: modes[path] ?? 0o755 }) as const),
        { path: "bin/busybox", mode: 0o755, content: await readFile(BUSYBOX) },
        ...applets.map((path) => ({ path, type: "symlink", mode: 0o777, target: "/bin/busybox" }) as const),
        { path: "etc/passwd", content: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n" },
        { path: "etc/group", content: "root:x:0:\nnogroup:x:65534:\n" },
        { path: "etc/shadow", mode: 0o640, gid: 42, content: "root:*:19000:0:99999:7:::\n" },
        { path: "etc/hosts", content: "127.0.0.1 localhost\n::1 localhost\n" },
        { path: "etc/profile", content: "export PATH=/usr/sbin:/usr/bin:/sbin:/bin\n" },
        {
          path: "etc/os-release",
          content: 'ID=busybox\nNAME="BusyBox"\nPRETTY_NAME="BusyBox, from busybox-static"\n',
        },
      ],
    ],
  };
}

/** Pushes the busybox image to a registry and returns its reference. */
export async function pushBusybox(registry: Registry, name = "busybox:latest"): Promise<string> {
  return await pushImage(registry, name, await busyboxImage());
}

/** Names and contents that break tools; `long` adds a name of 255 bytes, which mkfs.erofs 1.5 refuses. */
export function awkwardImage(options: { long: boolean }): ImageSpec {
  const first: TarEntry[] = [
    { path: "./", type: "directory", mode: 0o755 },
    { path: "bin/", type: "directory" },
    { path: "bin/suid", mode: 0o4755, content: "s" },
    { path: "bin/sgid", mode: 0o2755, uid: 12, gid: 34, content: "g" },
    { path: "bin/link", type: "hardlink", target: "bin/suid" },
    { path: "owned", uid: 1_000_000, gid: 4_294_967_294, mode: 0o600, mtime: 1_234_567_890, content: "o" },
    { path: "dev/", type: "directory" },
    { path: "dev/null", type: "char", mode: 0o666, device: [1, 3] },
    { path: "dev/disk", type: "block", mode: 0o660, gid: 6, device: [8, 1] },
    { path: "fifo", type: "fifo", mode: 0o640 },
    { path: "dangling", type: "symlink", target: "/no/where" },
    { path: "tmp", type: "symlink", target: "/var" },
    { path: "attributes", content: "a", xattrs: { "user.color": "blue", "trusted.bytes": Buffer.from([0, 255, 10]) } },
    { path: Buffer.from([0xff, 0xfe, 0x41]), content: "bytes" },
    { path: "new\nline", content: "n" },
    { path: "ünï", content: "u" },
    { path: "n".repeat(254), content: "254" },
    { path: "implicit/parent/file", content: "i" },
    { path: "gone", content: "removed by the next layer" },
    { path: "kept/", type: "directory" },
    { path: "kept/old", content: "hidden by an opaque directory" },
    { path: "was-file", content: "f" },
    { path: "was-directory/", type: "directory" },
    { path: "was-directory/inner", content: "i" },
    { path: "big", content: Buffer.alloc(300_000, "0123456789") },
    { path: "empty", content: "" },
  ];
  const second: TarEntry[] = [
    { path: ".wh.gone" },
    { path: "kept/", type: "directory" },
    { path: "kept/.wh..wh..opq" },
    { path: "kept/new", content: "n" },
    { path: "was-file", type: "directory", mode: 0o711 },
    { path: "was-directory", content: "now a file" },
  ];
  const long: TarEntry[] = options.long ? [{ path: "l".repeat(255), content: "255" }] : [];
  return {
    layers: [[...first, ...long], second],
    config: {
      architecture: "amd64",
      os: "linux",
      config: { Env: ["SECRET=1"], Entrypoint: ["/bin/suid"], Cmd: ["x"], User: "12", WorkingDir: "/kept" },
    },
  };
}

/** The digests of all blobs in an OCI layout. */
export async function digestsIn(layout: string): Promise<string[]> {
  return (await readdir(`${layout}/blobs/sha256`)).map((name) => `sha256:${name}`);
}
