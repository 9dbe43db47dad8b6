import { afterAll, afterEach, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import {
  indexOf,
  layer,
  layoutFiles,
  type RawEntry,
  type RawImage,
  rawImage,
} from "../../support/images/hostile-images.ts";
import { type Ended, HostileImports } from "../../support/images/hostile-imports.ts";
import { digestOf } from "../../support/images/registry.ts";
import { type TarEntry, tar } from "../../support/images/tar.ts";

setDefaultTimeout(240_000);

let hostile: HostileImports;
let tokens: Record<"owner" | "mallory" | "other", string>;

beforeAll(async () => {
  hostile = await HostileImports.start([]);
  const { appliance } = hostile;
  tokens = {
    owner: await appliance.createToken("owner"),
    mallory: await appliance.createToken("mallory"),
    other: await appliance.createToken("other"),
  };
});

afterAll(async () => await hostile[Symbol.asyncDispose]());
afterEach(async () => await hostile.expectNothingTouched());

type Who = keyof typeof tokens;
const pull = (who: Who, reference: string) => hostile.importingFrom(reference, undefined, tokens[who]);
const load = (who: Who, ...entries: TarEntry[]) => hostile.loading(Buffer.from(tar(entries)), undefined, tokens[who]);
const imageOf = ({ status, result, error }: Ended): string => {
  if (status !== "SUCCESS") throw new Error(JSON.stringify(error));
  return result?.image ?? "";
};
const marker = async (who: Who, ended: Ended): Promise<string> => {
  const path = `/inspect/${imageOf(ended)}/download?path=/marker`;
  return await (await hostile.appliance.fetch(path, { token: tokens[who] })).text();
};
const disks = async () => {
  const names = await readdir(join(hostile.appliance.dataDir, "layers"));
  return names.filter((name) => name.endsWith(".disk")).sort();
};
const images = async (who: Who) => {
  return (await (await hostile.appliance.fetch("/images", { token: tokens[who] })).json()) as unknown[];
};

const holding = (content: string): RawImage => rawImage([layer({ path: "marker", content }), layer({ path: "x" })]);
let count = 0;
/** A new image, and the name of its repository. */
const fresh = (): { readonly name: string; readonly image: RawImage; readonly digest: string } => {
  count += 1;
  const image = holding(`genuine ${count}`);
  return { name: `genuine-${count}`, image, digest: digestOf(image.manifest.bytes) };
};
const file = (path: string, content: string | Uint8Array): TarEntry => ({ path, content });
const blob = (content: Uint8Array, digest = digestOf(content)) => file(`blobs/${digest.replace(":", "/")}`, content);
const blobsOf = ({ manifest, blobs }: RawImage) => [blob(manifest.bytes), ...[...blobs.values()].map((it) => blob(it))];
/** A layout with an index as its only image, and these blobs. */
const indexed = (index: RawImage["manifest"], ...blobs: TarEntry[]): TarEntry[] => {
  const entry = { mediaType: index.type, digest: digestOf(index.bytes), size: index.bytes.length };
  const top = { schemaVersion: 2, manifests: [entry] };
  const layout = file("oci-layout", JSON.stringify({ imageLayoutVersion: "1.0.0" }));
  return [layout, file("index.json", JSON.stringify(top)), blob(index.bytes), ...blobs];
};
/** The parts of an image that an attacker may have, and those that they do not have. */
const partsOf = ({ manifest, blobs }: RawImage) => {
  const [config = Buffer.alloc(0), ...layers] = [...blobs.values()];
  return { manifest: blob(manifest.bytes), config: blob(config), layers: layers.map((it) => blob(it)), blobs };
};

describe("another account's image", () => {
  test("is not returned for a digest in an archive without all of the image", async () => {
    const { image, name } = fresh();
    imageOf(await pull("owner", hostile.registry.add(name, image)));
    const { manifest, config, layers, blobs } = partsOf(image);
    const index = indexOf(image.manifest);
    const [lowest = manifest, topmost = manifest] = layers;
    const [, lowestDigest = ""] = [...blobs.keys()];
    const forged = blob(layer(file("marker", "forged")).blob ?? Buffer.alloc(0), lowestDigest);
    const attempts: Record<string, TarEntry[]> = {
      "its digest": indexed(index),
      "its manifest": indexed(index, manifest),
      "its manifest and config": indexed(index, manifest, config),
      "all but one layer": indexed(index, manifest, config, topmost),
      "all but the config": indexed(index, manifest, ...layers),
      "another layer in the place of its own": indexed(index, manifest, config, forged, topmost),
      "a link in the place of its layer": indexed(index, manifest, config, topmost, {
        path: lowest.path,
        type: "symlink",
        target: String(topmost.path).split("/").at(-1) ?? "",
      }),
      "its manifest alone, in a plain layout": layoutFiles({ ...image, blobs: new Map() }),
    };
    for (const [what, entries] of Object.entries(attempts)) {
      const { status, error } = await load("mallory", ...entries);
      expect([what, status, error?.error]).toEqual([what, "FAILED", "validation_error"]);
    }
    expect(await images("mallory")).toEqual([]);
    // With all of it, the account has the image itself; the disk stores it once.
    const before = await disks();
    expect(await marker("mallory", await load("mallory", ...indexed(index, manifest, config, ...layers)))).toStartWith(
      "genuine",
    );
    expect(await disks()).toEqual(before);
  });

  test("is not returned for a config and sizes of layers, from which Docker's format makes a manifest", async () => {
    const archive = tar([file("marker", "docker's")]);
    const rootfs = { type: "layers", diff_ids: [digestOf(archive)] };
    const config = file("config.json", JSON.stringify({ os: "linux", architecture: "amd64", rootfs }));
    const list = file("manifest.json", JSON.stringify([{ Config: "config.json", Layers: ["layer.tar"] }]));
    expect(await marker("owner", await load("owner", list, config, file("layer.tar", archive)))).toBe("docker's");
    const forged = tar([file("marker", "forgery!")]);
    expect(forged.length).toBe(archive.length);
    const { status, error } = await load("mallory", list, config, file("layer.tar", forged));
    expect([status, error?.error]).toEqual(["FAILED", "validation_error"]);
    const before = await disks();
    expect(await marker("other", await load("other", list, config, file("layer.tar", archive)))).toBe("docker's");
    expect(await disks()).toEqual(before);
  });

  test("is not returned for a digest in a registry's index", async () => {
    const { image, name, digest } = fresh();
    const { registry } = hostile;
    imageOf(await pull("owner", registry.add(name, image)));
    const planted = holding("planted");
    const lie = { ...planted.manifest, claimedDigest: digest };
    for (const [repository, document] of Object.entries({ nothing: null, other: planted.manifest, lying: lie })) {
      registry.addDocument(repository, "1", indexOf(image.manifest));
      if (document !== null) registry.setDocument(repository, digest, document);
      const { status } = await pull("mallory", `${registry.host}/${repository}:1`);
      expect([repository, status]).toEqual([repository, "FAILED"]);
    }
    // This account has manifest and config, but no layer.
    registry.addDocument("known", "1", image.manifest);
    const [, lowest = ""] = [...image.blobs.keys()];
    const content = image.blobs.get(lowest) ?? Buffer.alloc(0);
    registry.setBlob(lowest, () => new Response("gone", { status: 404 }));
    expect((await pull("mallory", `${registry.host}/known:1`)).status).toBe("FAILED");
    registry.setBlob(lowest, layer(file("marker", "forged")).blob ?? Buffer.alloc(0));
    expect((await pull("mallory", `${registry.host}/known:1`)).status).toBe("FAILED");
    expect((await images("mallory")).length).toBe(1);
    registry.setBlob(lowest, content);
  });

  test("is shared with an account that has all of it, which then needs only the digest", async () => {
    const { image, name } = fresh();
    const { registry } = hostile;
    const reference = registry.add(name, image);
    imageOf(await pull("owner", reference));
    const before = await disks();
    const fetched = () => registry.requests.splice(0).filter((path) => path.includes("/blobs/")).length;
    fetched();
    const theirs = await pull("other", reference);
    expect(fetched()).toBe(image.blobs.size);
    expect(await marker("other", theirs)).toBe(await marker("owner", await pull("owner", reference)));
    imageOf(await pull("other", reference));
    expect(fetched()).toBe(0);
    expect(await disks()).toEqual(before);
    // The proof is removed with the base, not with an image.
    const path = `/images/${imageOf(theirs)}`;
    expect((await hostile.appliance.fetch(path, { method: "DELETE", token: tokens.other })).status).toBe(204);
    imageOf(await pull("other", reference));
    expect(fetched()).toBe(0);
  });
});

describe("a genuine image", () => {
  const planted = holding("planted");
  const orders = (entry: RawEntry): Record<string, RawEntry[]> => ({
    "with none and an empty variant": [{ ...planted.manifest, variant: "" }, entry],
    "the other way round": [entry, { ...planted.manifest, variant: "" }],
    "with an empty variant and none": [planted.manifest, { ...entry, variant: "" }],
    "with variants": [
      { ...planted.manifest, variant: "v1" },
      { ...entry, variant: "" },
    ],
    "with the same platform twice": [planted.manifest, entry],
  });

  test("has the content of its digest, after an archive's index named it together with a planted one", async () => {
    for (const order of Object.keys(orders(planted.manifest))) {
      const { image, name } = fresh();
      const blobs = [...blobsOf(image), ...blobsOf(planted)];
      await load("mallory", ...indexed(indexOf(...(orders(image.manifest)[order] ?? [])), ...blobs));
      const mine = await marker("owner", await pull("owner", hostile.registry.add(name, image)));
      expect([order, mine]).toEqual([order, `genuine ${count}`]);
    }
  });

  test("has the content of its digest, after a registry's index named it together with a planted one", async () => {
    const { registry } = hostile;
    for (const order of Object.keys(orders(planted.manifest))) {
      const { image, name } = fresh();
      const reference = registry.add(name, image);
      registry.add("planted", planted);
      for (const it of [image, planted]) registry.addDocument(`poison-${count}`, "any", it.manifest);
      registry.addDocument(`poison-${count}`, "1", indexOf(...(orders(image.manifest)[order] ?? [])));
      imageOf(await pull("mallory", `${registry.host}/poison-${count}:1`));
      const mine = await marker("owner", await pull("owner", reference));
      expect([order, mine]).toEqual([order, `genuine ${count}`]);
    }
  });

  test("has the content of its digest, after ambiguous indexes", async () => {
    for (const twist of [
      // Some parsers take the last of equal names; some ignore case.
      (index: string, wrong: string) => index.replace('"digest":', `"digest":"${wrong}","digest":`),
      (index: string, wrong: string) => index.replace('"platform":', `"Digest":"${wrong}","platform":`),
      (index: string, wrong: string) =>
        index.replace('"manifests":', `"Manifests":[{"digest":"${wrong}"}],"manifests":`),
    ]) {
      const { image, name } = fresh();
      const text = twist(indexOf(image.manifest).bytes.toString(), digestOf(planted.manifest.bytes));
      const index = { type: indexOf().type, bytes: Buffer.from(text) };
      await load("mallory", ...indexed(index, ...blobsOf(image), ...blobsOf(planted)));
      expect(await marker("owner", await pull("owner", hostile.registry.add(name, image)))).toBe(`genuine ${count}`);
    }
  });

  test("has the content of its digest, after a registry gave different answers or wrong blobs", async () => {
    const { registry } = hostile;
    const { image, name, digest } = fresh();
    registry.add("planted", planted);
    for (const claimedDigest of [digest, digestOf(planted.manifest.bytes)]) {
      registry.addDocument("two-faced", "1", image.manifest);
      registry.setDocument("two-faced", digest, { ...planted.manifest, claimedDigest });
      expect((await pull("mallory", `${registry.host}/two-faced:1`)).status).toBe("FAILED");
      registry.addDocument("two-faced", "2", indexOf(image.manifest));
      registry.setDocument("two-faced", digest, { ...planted.manifest, claimedDigest });
      expect((await pull("mallory", `${registry.host}/two-faced:2`)).status).toBe("FAILED");
    }
    const reference = registry.add(name, image);
    const [, lowest = ""] = [...image.blobs.keys()];
    const [, plantedLayer = ""] = [...planted.blobs.keys()];
    registry.setBlob(lowest, planted.blobs.get(plantedLayer) ?? Buffer.alloc(0));
    expect((await pull("mallory", reference)).status).toBe("FAILED");
    registry.add(name, image);
    expect(await marker("owner", await pull("owner", reference))).toBe(`genuine ${count}`);
  });

  test("is refused when a layer does not unpack to the content that its config names", async () => {
    const archive = tar([file("marker", "a")]);
    const diffId = digestOf(tar([file("marker", "b")]));
    for (const content of [Bun.gzipSync(new Uint8Array(archive)), Bun.zstdCompressSync(archive), archive]) {
      const { status, error } = await hostile.importing(rawImage([{ blob: content, diffId }]));
      expect([status, error?.error]).toEqual(["FAILED", "validation_error"]);
      expect(error?.message).toContain("mismatch");
    }
  });

  test("has the files of its layers, whatever media types it claims", async () => {
    const archive = tar([file("marker", "typed")]);
    const packed = { gzip: Bun.gzipSync(new Uint8Array(archive)), zstd: Bun.zstdCompressSync(archive), none: archive };
    for (const [form, content] of Object.entries(packed)) {
      for (const suffix of ["", "+gzip", "+zstd"]) {
        const mediaType = `application/vnd.oci.image.layer.v1.tar${suffix}`;
        const typed = rawImage([{ blob: content, diffId: digestOf(archive), mediaType }]);
        const ended = await pull("owner", hostile.registry.add(`typed-${form}-${suffix.slice(1)}x`, typed));
        expect([form, suffix, await marker("owner", ended)]).toEqual([form, suffix, "typed"]);
      }
    }
  });
});
