import { describe, expect, test } from "bun:test";
import { ApiError } from "../../../src/domain/errors.ts";
import { digestOf, parseConfig, parseManifest, selectManifest } from "../../../src/oci/manifest.ts";

const digest = (letter: string) => `sha256:${letter.repeat(64)}`;
const OCI = "application/vnd.oci.image";
const blob = (letter: string, mediaType: string, more: object = {}) => ({
  mediaType: `${OCI}.${mediaType}`,
  digest: digest(letter),
  size: 1,
  ...more,
});
const config = blob("c", "config.v1+json");
const layer = blob("a", "layer.v1.tar+gzip");
const image = { schemaVersion: 2, config, layers: [layer] };
const bytes = (document: unknown) => Buffer.from(JSON.stringify(document));
const code = (attempt: () => unknown): string => {
  try {
    attempt();
    return "accepted";
  } catch (error) {
    return error instanceof ApiError ? error.code : String(error);
  }
};

describe("the manifest for this platform", () => {
  const entry = (letter: string, os: string, architecture: string, variant?: string) => ({
    digest: digest(letter),
    platform: { os, architecture, ...(variant === undefined ? {} : { variant }) },
  });
  const index = (...manifests: object[]) => ({ schemaVersion: 2, manifests });
  const select = (...manifests: object[]) => selectManifest(bytes(index(...manifests)));

  test("is the document itself or the best entry of an index", () => {
    const own = { digest: digestOf(bytes(image)), isEntry: false, variant: "", layers: image.layers };
    expect(selectManifest(bytes(image))).toEqual(own);
    const selected = (letter: string, variant = "") => ({
      digest: digest(letter),
      isEntry: true,
      variant,
      layers: null,
    });
    expect(select(entry("1", "linux", "arm64"), entry("2", "linux", "amd64"))).toEqual(selected("2"));
    expect(select(entry("1", "linux", "amd64", "v3"), entry("2", "linux", "amd64", "v2"))).toEqual(selected("2", "v2"));
    expect(
      select(entry("1", "windows", "amd64"), entry("2", "linux", "amd64"), entry("3", "unknown", "unknown")),
    ).toEqual(selected("2"));
    expect(select({ digest: digest("4") })).toEqual(selected("4"));
    expect(code(() => select(entry("1", "windows", "amd64")))).toBe("not_found");
    expect(code(() => select())).toBe("not_found");
  });

  test("is the first of entries that image tools cannot distinguish", () => {
    const [none, empty] = [entry("1", "linux", "amd64"), entry("2", "linux", "amd64", "")];
    expect(select(none, empty).digest).toBe(digest("1"));
    expect(select(empty, none).digest).toBe(digest("2"));
    expect(select(entry("3", "linux", "amd64", "v2"), empty).digest).toBe(digest("2"));
  });

  test("is refused when it does not describe an image", () => {
    for (const document of [
      {},
      [],
      null,
      "text",
      { schemaVersion: 1, fsLayers: [] },
      { ...image, config: { ...config, digest: "sha256:../../x" } },
      index({ digest: "x", platform: { os: "linux", architecture: "amd64" } }),
      { ...image, ...index(entry("1", "linux", "amd64")) },
      { ...index(entry("1", "linux", "amd64")), config },
    ]) {
      expect([JSON.stringify(document), code(() => selectManifest(bytes(document)))]).toEqual([
        JSON.stringify(document),
        "validation_error",
      ]);
    }
    expect(code(() => selectManifest(Buffer.from("<html>")))).toBe("validation_error");
  });
});

describe("a manifest", () => {
  test("is read with the media types of OCI and of Docker", () => {
    for (const mediaType of [
      `${OCI}.layer.v1.tar`,
      `${OCI}.layer.v1.tar+gzip`,
      `${OCI}.layer.v1.tar+zstd`,
      `${OCI}.layer.nondistributable.v1.tar+gzip`,
      "application/vnd.docker.image.rootfs.diff.tar",
      "application/vnd.docker.image.rootfs.diff.tar.gzip",
      "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
    ]) {
      expect(parseManifest(bytes({ ...image, layers: [{ ...layer, mediaType, urls: [] }] })).layers).toHaveLength(1);
    }
  });

  test("is refused for digests that are not lower-case SHA-256, for impossible sizes, unknown types and foreign URLs", () => {
    const hex = "ab".repeat(32);
    const layers: object[] = [
      { ...layer, digest: `sha256:${hex.toUpperCase()}` },
      { ...layer, digest: `SHA256:${hex}` },
      { ...layer, digest: `sha512:${hex}${hex}` },
      { ...layer, digest: `sha256:${hex}0` },
      { ...layer, digest: hex },
      { ...layer, size: -1 },
      { ...layer, size: 1.5 },
      { ...layer, size: "1" },
      { mediaType: layer.mediaType, digest: layer.digest },
      { ...layer, mediaType: "text/html" },
      { ...layer, mediaType: `${OCI}.layer.v1.tar+gzip+encrypted` },
      { ...layer, urls: ["https://elsewhere.example/blob"] },
    ];
    for (const bad of layers) {
      expect([bad, code(() => parseManifest(bytes({ ...image, layers: [bad] })))]).toEqual([bad, "validation_error"]);
      const { digest: of, size, mediaType } = bad as typeof layer;
      if (of === layer.digest && size === 1 && mediaType === layer.mediaType) continue;
      expect(code(() => parseManifest(bytes({ ...image, config: bad })))).toBe("validation_error");
    }
    expect(code(() => parseManifest(bytes({ schemaVersion: 2, manifests: [] })))).toBe("validation_error");
    expect(code(() => parseManifest(bytes({ ...image, layers: Array(4097).fill(layer) })))).toBe("validation_error");
  });

  test("is refused when parsing it would block the event loop", () => {
    const much = (unit: string) => Array(60_000).fill(unit).join();
    const long = [
      `[${much("1")}]`,
      `{"a":[${much("[]")}]}`,
      "[".repeat(60_000),
      `{${much('"a":1')}}`,
      `{"a":"\\"",${much('"":""')}}`,
    ];
    for (const text of long) expect(() => selectManifest(Buffer.from(text))).toThrow("too many entries");
    const labels = { os: "linux", config: { Labels: { json: JSON.stringify(Array(60_000).fill({})), "\\": '\\",' } } };
    expect(code(() => parseConfig(bytes(labels)))).toBe("accepted");
    expect(() => parseManifest(bytes({ ...image, layers: Array(10_000).fill(layer) }))).toThrow(
      "more than 4096 layers",
    );
    expect(code(() => selectManifest(bytes({ schemaVersion: 2, manifests: Array(4097).fill(layer) })))).toBe(
      "validation_error",
    );
    const longest = { ...image, layers: Array(4096).fill(layer) };
    expect(parseManifest(bytes(longest)).layers).toHaveLength(4096);
    const history = Array(4096).fill({ created: "2026-01-01T00:00:00Z", created_by: "x" });
    const rootfs = { type: "layers", diff_ids: Array(4096).fill(digest("a")) };
    expect(code(() => parseConfig(bytes({ os: "linux", architecture: "amd64", rootfs, history })))).toBe("accepted");
  });

  test("must be for this platform, if its config names one", () => {
    for (const fields of [{}, { os: "linux" }, { os: "linux", architecture: "amd64" }, { os: "" }]) {
      expect(code(() => parseConfig(bytes(fields)))).toBe("accepted");
    }
    for (const fields of [{ os: "windows" }, { architecture: "arm64" }, [], null, { os: 1 }]) {
      expect([fields, code(() => parseConfig(bytes(fields)))]).toEqual([fields, "validation_error"]);
    }
  });
});
