import { afterAll, afterEach, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { gunzipSync, gzipSync } from "node:zlib";
import {
  indexOf,
  layer,
  layoutFiles,
  type RawImage,
  type RawImageOptions,
  type RawLayer,
  rawImage,
  zeros,
} from "../../support/images/hostile-images.ts";
import { HostileImports } from "../../support/images/hostile-imports.ts";
import { busyboxImage } from "../../support/images/images.ts";
import { digestOf } from "../../support/images/registry.ts";
import { type TarEntry, tar } from "../../support/images/tar.ts";
import { execute } from "../../support/runs.ts";

setDefaultTimeout(240_000);

const MIB = 1_048_576;
const GIB = 1024 * MIB;

let hostile: HostileImports;

beforeAll(async () => {
  hostile = await HostileImports.start(["--limits-image-bytes-max", "64MiB", "--limits-image-entries-max", "5000"]);
});

afterAll(async () => await hostile[Symbol.asyncDispose]());
afterEach(async () => await hostile.expectNothingTouched());

const file = (path: string, content: string | Uint8Array): TarEntry => ({ path, content });
const link = (path: string, target: string): TarEntry => ({ path, type: "symlink", target });
const good = layer({ path: "./", type: "directory" }, file("good", "fine"));
const other = layer(file("other", "x"));
const digest = (content: Uint8Array | null): string => digestOf(content ?? "");
const image = (options: RawImageOptions) => rawImage([good], options);
const config = (fields: object) => image({ config: Buffer.from(JSON.stringify(fields)) });

describe("an image in a registry that contradicts its manifest", () => {
  test("is refused, and no other host is contacted", async () => {
    const cases = {
      "a blob of another content": [
        rawImage([{ ...good, digest: digest(other.blob) }]),
        /unavailable: .* damaged data/,
      ],
      "a blob that is missing": [rawImage([{ ...good, blob: null, digest: digestOf("missing") }]), /not_found/],
      "a config that is none": [config([]), /validation_error/],
      "a config for another platform": [
        config({ os: "windows", architecture: "amd64" }),
        /validation_error: .* windows/,
      ],
      "fewer ids than layers": [
        config({ os: "linux", architecture: "amd64", rootfs: { type: "layers", diff_ids: [] } }),
        /validation_error/,
      ],
      "a config of 32 MiB": [
        config({ os: "linux", junk: "x".repeat(32 * MIB) }),
        /FAILED (validation_error|unavailable)/,
      ],
      "a manifest of 5 MiB": [
        image({ manifest: { annotations: { junk: "x".repeat(5 * MIB) } } }),
        /FAILED (validation_error|unavailable)/,
      ],
      "a smaller size of a layer": [rawImage([{ ...good, size: 1 }]), /validation_error: .* mismatch/],
      "a larger size of a layer": [rawImage([{ ...good, size: 1024 * GIB }]), /validation_error: .* mismatch/],
      "a config of an unknown type": [image({ configMediaType: "application/x-artifact" }), /validation_error/],
      "a layer of an unknown type": [rawImage([{ ...good, mediaType: "text/html" }]), /validation_error/],
      "a manifest of an unknown type": [image({ manifestType: "application/json" }), /FAILED/],
      "no layers where they belong": [image({ manifest: { layers: "all" } }), /validation_error/],
      "a digest that climbs": [
        image({ manifest: { layers: [{ mediaType: "x", digest: "sha256:../../etc/passwd", size: 1 }] } }),
        /validation_error/,
      ],
    } as const;
    await hostile.expectAllFail(cases, async (what: RawImage) => await hostile.importing(what));
  });

  test("cannot direct the import to another host", async () => {
    const { registry } = hostile;
    const urls = [`http://${hostile.elsewhere.host}/v2/x/blobs/${digest(other.blob)}`];
    const away = { ...other, blob: null, digest: digest(other.blob), urls };
    const foreign = rawImage([{ ...away, mediaType: "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip" }]);
    registry.add("usual", rawImage([away]));
    registry.add("foreign", foreign);
    // The manifest is requested by its digest, from the repository of the index.
    registry.add("indexed", foreign);
    registry.addDocument("indexed", "1", indexOf(foreign.manifest));
    const refused = /validation_error: .* elsewhere/;
    await hostile.expectAllFail(
      { usual: ["usual", refused], foreign: ["foreign", refused], indexed: ["indexed", refused] },
      async (name: string) => await hostile.importingFrom(`${registry.host}/${name}:1`),
    );
  });

  test("an index of indexes, one that names itself, and an endless blob are refused", async () => {
    const { registry } = hostile;
    const index = indexOf(rawImage([good]).manifest);
    registry.addDocument("nested", "inner", index);
    registry.addDocument("nested", "1", indexOf(index));
    const self = indexOf({ ...index, bytes: Buffer.from("itself") });
    registry.addDocument("self", "1", self);
    registry.setDocument("self", digestOf("itself"), self);
    const endless = digestOf("endless");
    registry.add("endless", rawImage([{ ...good, digest: endless }]));
    const noise = crypto.getRandomValues(Buffer.alloc(65_536));
    const stream = () =>
      new ReadableStream({
        start: (controller) => controller.enqueue(gzipSync(noise).subarray(0, 10)),
        pull: async (controller) => controller.enqueue(Buffer.from(noise)),
      });
    registry.setBlob(endless, () => new Response(stream()));
    await hostile.expectAllFail(
      { nested: ["nested", /FAILED/], self: ["self", /FAILED/], endless: ["endless", /FAILED payload_too_large/] },
      async (name: string) => await hostile.importingFrom(`${registry.host}/${name}:1`),
    );
  });
});

test("an import leaves nothing behind when the service is killed", async () => {
  const { appliance, registry } = hostile;
  const waiting = digestOf("waiting");
  const asked = Promise.withResolvers<void>();
  const reference = registry.add("waiting", rawImage([{ ...good, digest: waiting }]));
  registry.setBlob(waiting, () => {
    asked.resolve();
    return new Response(new ReadableStream({ start: (controller) => controller.enqueue(Buffer.from("begun")) }));
  });
  expect((await appliance.post("/images/import", { registry: reference })).status).toBe(202);
  await asked.promise;
  expect((await appliance.leftovers()).filter((name) => name.startsWith("tmp/import-"))).toHaveLength(1);
  await appliance.down("SIGKILL");
  await appliance.up();
});

describe("a malformed archive", () => {
  const layout = layoutFiles(rawImage([good]));
  /** The layout with some files replaced. */
  const replaced = (...entries: TarEntry[]) =>
    tar([...layout.filter(({ path }) => !entries.some((entry) => entry.path === path)), ...entries]);
  const blob = `blobs/${digest(good.blob).replace(":", "/")}`;
  const docker = (manifest: object, ...entries: TarEntry[]) =>
    tar([file("manifest.json", JSON.stringify([manifest])), ...entries]);

  test("is refused", async () => {
    const { canary } = hostile;
    const passwd = "../".repeat(30).concat("etc/passwd");
    const text = JSON.stringify({
      os: "linux",
      architecture: "amd64",
      rootfs: { type: "layers", diff_ids: [good.diffId] },
    });
    const parts = [file("config.json", text), file("layer.tar", tar([file("x", "y")]))];
    const cases = {
      "a blob that is a link out": [replaced(link(blob, `${canary}/file`)), /validation_error/],
      "an index that is a link out": [replaced(link("index.json", "/etc/passwd")), /validation_error/],
      "a directory that is a link out": [
        tar([link("blobs", canary), ...layout, file("blobs/escaped", "evil")]),
        /validation_error/,
      ],
      "files that climb": [replaced(file("../escaped", "x"), file(`${canary}/escaped`, "x")), /validation_error/],
      "a hard link out": [replaced({ path: blob, type: "hardlink", target: `${canary}/file` }), /validation_error/],
      "a device": [replaced({ path: blob, type: "char", device: [1, 5] }), /validation_error/],
      "no blobs": [tar(layout.filter(({ path }) => !String(path).startsWith("blobs"))), /validation_error/],
      "layers that climb": [docker({ Config: "config.json", Layers: [passwd] }, ...parts), /validation_error/],
      "a config that climbs": [docker({ Config: passwd, Layers: ["layer.tar"] }, ...parts), /validation_error/],
      "a layer that is a link out": [
        docker({ Config: "config.json", Layers: ["out.tar"] }, ...parts, link("out.tar", `${canary}/file`)),
        /validation_error/,
      ],
      "a manifest that is a link out": [tar([link("manifest.json", "/etc/passwd"), ...parts]), /validation_error/],
      "links in a circle": [
        docker({ Config: "a", Layers: ["layer.tar"] }, ...parts, link("a", "b"), link("b", "a")),
        /validation_error/,
      ],
      "a bomb in the place of an archive": [zeros("bomb", 1, 20 * GIB).blob ?? Buffer.alloc(0), /FAILED/],
    } as const;
    await hostile.expectAllFail(cases, async (archive: Uint8Array) => await hostile.loading(Buffer.from(archive)));
  });

  test("is refused for its layers, as an image from a registry", async () => {
    const out: TarEntry = { path: "x", type: "hardlink", target: `${hostile.canary}/file` };
    const inDocker = (...entries: TarEntry[]) => {
      const archive = tar(entries);
      const rootfs = { type: "layers", diff_ids: [digestOf(archive)] };
      const text = JSON.stringify({ os: "linux", architecture: "amd64", rootfs });
      return docker({ Config: "c.json", Layers: ["l.tar"] }, file("c.json", text), file("l.tar", archive));
    };
    const bomb = zeros("bomb", 8, 32 * MIB);
    // Its digests are right, so that it is refused for its size alone.
    const honest = { ...bomb, diffId: digestOf(gunzipSync(bomb.blob ?? Buffer.alloc(0))) };
    const cases = {
      "a bomb": [tar(layoutFiles(rawImage([honest]))), /payload_too_large/],
      "a whiteout of what is above it": [
        tar(layoutFiles(rawImage([good, layer(file(".wh...", ""))]))),
        /validation_error/,
      ],
      "a hard link out": [tar(layoutFiles(rawImage([layer(out)]))), /validation_error: .* no such file/],
      "a hard link out, in docker's form": [inDocker(out), /validation_error: .* no such file/],
      "6,000 files, in docker's form": [
        inDocker(...Array.from({ length: 6000 }, (_, index) => file(`f/${index}`, ""))),
        /payload_too_large: .* 5000 files/,
      ],
      "10,000 layers": [
        tar(layoutFiles(rawImage(Array<RawLayer>(10_000).fill(good)))),
        /validation_error: .* more than 4096 layers/,
      ],
    } as const;
    await hostile.expectAllFail(cases, async (archive: Uint8Array) => await hostile.loading(Buffer.from(archive)));
  });

  test("ends when its time is up, although reading one of its files blocks", async () => {
    const { status, error } = await hostile.loading(Buffer.from(replaced({ path: blob, type: "fifo" })), 5);
    expect([status, error?.message]).toEqual(["FAILED", "import timed out after 5 s"]);
  });

  test("after all of them, another archive is loaded and runs, with extra files that are ignored", async () => {
    const busybox = layer(...((await busyboxImage()).layers[0] ?? []));
    const [, ...files] = layoutFiles(rawImage([busybox, good]));
    const archive = tar([link("oci-layout", `${hostile.canary}/file`), link("more", "/etc"), ...files]);
    const { status, result } = await hostile.loading(Buffer.from(archive));
    expect(status).toBe("SUCCESS");
    const run = await execute(hostile.appliance, { image: result?.image, command: "cat /good", shell: true });
    expect(run.out).toBe("fine");
  });
});
