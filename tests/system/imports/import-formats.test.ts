import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { Appliance } from "../../support/appliance/appliance.ts";
import {
  busyboxImage,
  type ImageSpec,
  pushBusybox,
  pushImage,
  pushIndex,
  pushManifest,
} from "../../support/images/images.ts";
import { Registry } from "../../support/images/registry.ts";
import type { TarEntry } from "../../support/images/tar.ts";
import { type Body, download, execute, list, names, operationOf } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(120_000);

const owned = new AsyncDisposableStack();
let registry: Registry;
let appliance: Appliance;
let busybox: ImageSpec;

beforeAll(async () => {
  registry = owned.use(await Registry.start());
  appliance = owned.use(await Appliance.start({ registries: [registry.host], poolSize: 2 }));
  busybox = await busyboxImage();
});

afterAll(async () => {
  await owned.disposeAsync();
});

interface Imported {
  readonly image: string;
  readonly digest: string;
  readonly tag?: string;
  readonly size_bytes: number;
}

const imported = async (reference: string, more: Body = {}): Promise<Imported> => {
  const operation = await appliance.finished(await appliance.submitImport(reference, more));
  if (operation.status !== "SUCCESS") throw new Error(JSON.stringify(operation));
  return operation.result as unknown as Imported;
};
const failed = async (reference: string) =>
  (await appliance.finished(await appliance.submitImport(reference))) as unknown as { status: string; error: Body };
const layers = async () => (await readdir(join(appliance.dataDir, "layers"))).filter((name) => name.endsWith(".disk"));
const file = (path: string, content: string): TarEntry => ({ path, content });
const one = (content: string, more: Partial<ImageSpec> = {}): ImageSpec => ({
  layers: [[file("marker", content)]],
  ...more,
});
const marker = async (image: string) => await (await download(appliance, image, "/marker")).text();

describe("POST /images/import", () => {
  // spec: images.import, service.import
  test("answers 202 with a Location to the operation and its id; the result has image, tag, digest and size", async () => {
    const reference = await pushBusybox(registry, "answers:1");
    const request = { registry: reference, tag: "bb", timeout: 100, extra: "ignored" };
    const response = await appliance.post("/images/import", request);
    const body = (await response.json()) as { uuid: string };
    expect(response.status).toBe(202);
    expect(body).toEqual({ uuid: expect.stringMatching(/^[0-9a-f-]{36}$/) });
    expect(response.headers.get("location")).toBe(`/v1/operations/${body.uuid}`);
    const operation = (await appliance.finished(body.uuid)) as unknown as Body;
    expect(operation).toMatchObject({ id: body.uuid, kind: "image_import", status: "SUCCESS" });
    const result = operation["result"] as unknown as Imported;
    expect(Object.keys(result).sort()).toEqual(["digest", "image", "size_bytes", "tag"]);
    expect(result).toMatchObject({ tag: "bb", digest: expect.stringMatching(/^sha256:[0-9a-f]{64}$/) });
    expect(result.size_bytes).toBeGreaterThan(1_000_000);
    const images = (await (await appliance.fetch("/images?tag=bb")).json()) as Body[];
    expect(images).toMatchObject([{ uuid: result.image, tag: "bb" }]);
  });

  // spec: images.import.tag, images.tag.move
  test.concurrent("a tag that exists moves to the new image", async () => {
    const first = await imported(await pushImage(registry, "moves:1", one("1")), { tag: "moving" });
    const second = await imported(await pushImage(registry, "moves:2", one("2")), { tag: "moving" });
    const images = (await (await appliance.fetch("/images?tag=moving")).json()) as Body[];
    expect(images.map((image) => image["uuid"])).toEqual([second.image]);
    expect(await (await appliance.fetch(`/inspect/${first.image}/`)).json()).not.toHaveProperty("tag");
  });

  // spec: images.import.registry
  test.concurrent("by tag, by digest, by both (the digest wins), with docker:// and without a tag (latest)", async () => {
    const old = await pushManifest(registry, "named", "v", one("old"));
    const latest = await pushManifest(registry, "named", "latest", one("latest"));
    await pushManifest(registry, "named", "v", one("new"));
    const name = `${registry.host}/named`;
    const spellings: [string, string][] = [
      [`${name}:v`, "new"],
      [`${name}@${old}`, "old"],
      [`${name}:v@${old}`, "old"],
      [`docker://${name}:v`, "new"],
      [name, "latest"],
    ];
    for (const [spelling, content] of spellings) {
      const { image, digest } = await imported(spelling);
      expect([spelling, await marker(image)]).toEqual([spelling, content]);
      if (content !== "new") expect(digest).toBe(content === "old" ? old : latest);
    }
  });

  test.concurrent("of a multi-architecture image imports the host's platform, and fails without it", async () => {
    const of = (architecture: string) => one(architecture, { config: { os: "linux", architecture } });
    const many = await pushIndex(registry, "many:1", {
      "linux/arm64": of("arm64"),
      "windows/amd64": of("windows"),
      "linux/amd64": of("amd64"),
    });
    const result = await imported(many.reference);
    expect(await marker(result.image)).toBe("amd64");
    expect(result.digest).toBe(many.digests["linux/amd64"] ?? "");
    const arm = await pushIndex(registry, "arm:1", { "linux/arm64": of("arm64") });
    expect(await failed(arm.reference)).toMatchObject({ status: "FAILED", error: { error: "not_found" } });
  });

  test.concurrent("Docker's and OCI's media types, and gzip, zstd and plain layers, give the same files", async () => {
    const images = { oci: ["gzip", "zstd", "none"], docker: ["gzip", "none"] } as const;
    for (const [format, compressions] of Object.entries(images)) {
      for (const compression of compressions) {
        const spec = one(`${format} ${compression}`, { format: format as "oci" | "docker", compression });
        const { image } = await imported(await pushImage(registry, `packed-${format}-${compression}:1`, spec));
        expect(await marker(image)).toBe(`${format} ${compression}`);
      }
    }
  });

  test.concurrent("layers apply in order: whiteouts, opaque directories, a file for a directory, hard links", async () => {
    const below: TarEntry[] = [
      file("gone", "x"),
      { path: "kept/", type: "directory" },
      file("kept/hidden", "x"),
      file("was/inner", "x"),
      file("original", "both"),
    ];
    const above: TarEntry[] = [
      { path: ".wh.gone" },
      { path: "kept/", type: "directory" },
      { path: "kept/.wh..wh..opq" },
      file("kept/new", "x"),
      { path: ".wh.was" },
      file("was", "now a file"),
      { path: "linked", type: "hardlink", target: "original" },
    ];
    const { image } = await imported(await pushImage(registry, "stacked:1", { layers: [below, above] }));
    expect(await names(appliance, image, "/kept")).toEqual(["new"]);
    const root = await names(appliance, image, "/");
    expect(root).toEqual(expect.arrayContaining(["kept", "linked", "original", "was"]));
    expect(root).not.toContain("gone");
    expect(await (await download(appliance, image, "/was")).text()).toBe("now a file");
    expect(await (await download(appliance, image, "/linked")).text()).toBe("both");
  });

  // spec: service.file-system-only
  test.concurrent("the OCI config's ENV, USER, WORKDIR, ENTRYPOINT and CMD change nothing in a run", async () => {
    const config = {
      architecture: "amd64",
      os: "linux",
      config: {
        Env: ["PATH=/nowhere", "SECRET=1", "HOME=/home/other"],
        User: "nobody",
        WorkingDir: "/usr/bin",
        Entrypoint: ["/bin/echo", "entry"],
        Cmd: ["cmd"],
        ExposedPorts: { "80/tcp": {} },
        Volumes: { "/data": {} },
        StopSignal: "SIGINT",
        Shell: ["/bin/false"],
      },
    };
    const { image } = await imported(await pushImage(registry, "config:1", { ...busybox, config }));
    const command =
      'id -u; id -g; pwd; env | cut -d= -f1 | grep -v -e SHLVL -e PWD -e "^_" | sort | tr "\\n" " "; ls -d /data';
    const result = await execute(appliance, { image, command, shell: true });
    expect(result.out).toBe("0\n0\n/root\nHOME HOSTNAME PATH ");
    const plain = await execute(appliance, { image, command: "echo", args: ["only me"] });
    expect(plain.out).toBe("only me\n");
  });

  test("re-import of an unchanged digest reuses the layer, under another tag too", async () => {
    const reference = await pushImage(registry, "again:1", {
      ...busybox,
      layers: [...busybox.layers, [file("marker", "a")]],
    });
    const first = await imported(reference);
    const before = await layers();
    const second = await imported(reference, { tag: "again" });
    expect(second.image).not.toBe(first.image);
    expect(second).toMatchObject({ digest: first.digest, size_bytes: first.size_bytes });
    expect(await layers()).toEqual(before);
    expect(await marker(second.image)).toBe("a");
    await pushManifest(registry, "again", "1", one("b"));
    expect(await marker((await imported(reference)).image)).toBe("b");
  });

  test("concurrent imports of one digest make an image each and one layer", async () => {
    const reference = await pushImage(registry, "same:1", one("same"));
    const before = new Set(await layers());
    const results = await Promise.all([1, 2, 3].map(() => imported(reference)));
    expect(new Set(results.map(({ image }) => image)).size).toBe(3);
    for (const { image } of results) expect(await marker(image)).toBe("same");
    // An import ends before it removes its own copy of a layer that another import has published.
    await until("one layer is left of all three", async () => {
      return (await layers()).filter((name) => !before.has(name)).length === 1;
    });
  });

  test.concurrent("an unusable image fails with the reason, and leaves nothing behind", async () => {
    const damaged = await registry.putBlob("damaged", Buffer.from("no archive at all"));
    const config = await registry.putBlob("damaged", Buffer.from('{"architecture":"amd64","os":"linux"}'));
    const manifest = JSON.stringify({
      schemaVersion: 2,
      mediaType: "application/vnd.oci.image.manifest.v1+json",
      config: { mediaType: "application/vnd.oci.image.config.v1+json", digest: config, size: 37 },
      layers: [{ mediaType: "application/vnd.oci.image.layer.v1.tar+gzip", digest: damaged, size: 17 }],
    });
    await registry.putManifest("damaged", "1", "application/vnd.oci.image.manifest.v1+json", manifest);
    const operation = await failed(`${registry.host}/damaged:1`);
    expect(operation).toMatchObject({ status: "FAILED", error: { error: "validation_error" } });
    expect(String(operation.error["message"])).not.toBe("");
    const missing = await failed(`${registry.host}/again:no-such-tag`);
    expect(missing).toMatchObject({ status: "FAILED", error: { error: "not_found" } });
  });

  test.concurrent("a reference without a host, with another transport, a bad tag, timeout or credentials is 400", async () => {
    const reference = `${registry.host}/busybox:1`;
    const bodies: Body[] = [
      { registry: "busybox" },
      { registry: "library/busybox:1" },
      { registry: "oci:/etc" },
      { registry: "docker-archive:/etc/passwd" },
      { registry: `${registry.host}/UPPER:1` },
      { registry: `${registry.host}/a@sha256:123` },
      { registry: 7 },
      {},
      { registry: reference, tag: "-x" },
      { registry: reference, timeout: 0 },
      { registry: reference, timeout: 3601 },
      { registry: reference, timeout: 1.5 },
      { registry: reference, credentials: { username: "a" } },
      { registry: reference, credentials: "a:b" },
    ];
    for (const body of bodies) {
      const response = await appliance.post("/images/import", body);
      const answer = (await response.json()) as Body;
      expect([JSON.stringify(body), response.status, answer["error"]]).toEqual([
        JSON.stringify(body),
        400,
        "validation_error",
      ]);
    }
    const suggestion = await appliance.post("/images/import", { registry: "team/app:1" });
    expect(((await suggestion.json()) as Body)["message"]).toContain("/team/app:1");
  });

  test.concurrent("names, modes, owners, times, links, devices and attributes are as in the image", async () => {
    const mtime = 1_234_567_890;
    const entries: TarEntry[] = [
      { path: "owned", uid: 1_000_000, gid: 4_294_967_294, mode: 0o600, mtime, content: "o" },
      { path: "suid", mode: 0o4755, content: "s" },
      { path: "node", type: "char", mode: 0o666, device: [1, 3] },
      { path: "fifo", type: "fifo", mode: 0o640 },
      { path: "dangling", type: "symlink", target: "/no/where" },
      { path: Buffer.from([0x66, 0xff, 0xfe]), content: "bytes" },
      { path: "new\nline", content: "n" },
    ];
    const { image } = await imported(await pushImage(registry, "odd:1", { layers: [entries] }));
    const items = await list(appliance, image, "/");
    const item = (name: string) => items.find((entry) => entry["name"] === name);
    expect(item("owned")).toMatchObject({ uid: 1_000_000, gid: 4_294_967_294, mode: "0600", size: 1 });
    expect(Date.parse(String(item("owned")?.["modified_at"]))).toBe(mtime * 1000);
    expect(item("suid")).toMatchObject({ mode: "4755" });
    expect(item("node")).toMatchObject({ is_regular: false });
    expect(item("dangling")).toMatchObject({ is_symlink: true, symlink_to: "/no/where" });
    expect(item("new\nline")).toMatchObject({ is_regular: true });
    expect(item("f\ufffd\ufffd")).toMatchObject({ name_base64: Buffer.from([0x66, 0xff, 0xfe]).toString("base64") });
  });
});

test("these tests leave nothing behind, and no operation still runs", async () => {
  // The end of an operation is visible before its directory is removed.
  await until("no import directory is left", async () =>
    (await appliance.leftovers()).every((name) => name.startsWith("vms/")),
  );
  const open = await appliance.fetch("/operations?status=EXECUTING");
  expect(await open.json()).toEqual([]);
  expect(await operationOf(appliance, crypto.randomUUID())).toMatchObject({ error: "not_found" });
});
