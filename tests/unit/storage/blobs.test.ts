import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createHash, randomBytes } from "node:crypto";
import { existsSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { ApiError } from "../../../src/domain/errors.ts";
import type { LayerId } from "../../../src/domain/ids.ts";
import { blobPath, blobStream, listBlobs, receiveBlob, removeBlob } from "../../../src/storage/blobs.ts";
import { indexPath, layerPath, publishLayer, removeLayer } from "../../../src/storage/layers/layers.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { listLayers, testDirectory } from "../../support/images/layer-files.ts";

const directory = testDirectory("blobs");
const layout = dataLayout(join(directory, "data"));
beforeAll(() => layout.ensure());
afterAll(() => rmSync(directory, { recursive: true, force: true }));

async function* chunks(...parts: Uint8Array[]): AsyncGenerator<Uint8Array> {
  yield* parts;
}

const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");
const failureOf = (promise: Promise<unknown>) =>
  promise.then(
    () => null,
    (error: unknown) => error,
  );

describe("the data directory", () => {
  test("is accessible to its owner only, and can be created twice", async () => {
    await layout.ensure();
    for (const path of [layout.root, layout.layers, layout.blobs, layout.tmp, layout.keys, layout.vms, layout.events]) {
      expect(statSync(path).mode & 0o777).toBe(0o700);
    }
  });
});

describe("an upload", () => {
  test("is stored once under the hash of its content", async () => {
    const content = randomBytes(3_000_000);
    const parts = [content.subarray(0, 1), content.subarray(1, 2_000_000), content.subarray(2_000_000)];
    const first = await receiveBlob(layout, chunks(...parts), 3_000_000);
    expect(first).toEqual({ sha256: sha256(content), sizeBytes: 3_000_000 });
    const inode = statSync(blobPath(layout, first.sha256)).ino;
    expect(await receiveBlob(layout, chunks(content), 3_000_000)).toEqual(first);
    expect(statSync(blobPath(layout, first.sha256)).ino).toBe(inode);
    expect(Buffer.from(await Bun.file(blobPath(layout, first.sha256)).bytes()).equals(content)).toBe(true);
    const streamed: Uint8Array[] = [];
    for await (const chunk of blobStream(layout, first.sha256)) streamed.push(chunk);
    expect(Buffer.concat(streamed).equals(content)).toBe(true);
    expect(readdirSync(layout.tmp)).toEqual([]);
  });

  test("may be empty", async () => {
    const empty = await receiveBlob(layout, chunks(), 0);
    expect(empty).toEqual({ sha256: sha256(new Uint8Array(0)), sizeBytes: 0 });
    expect(statSync(blobPath(layout, empty.sha256)).size).toBe(0);
  });

  test("beyond the limit is refused before all of it is read, and leaves nothing behind", async () => {
    let sent = 0;
    async function* endless(): AsyncGenerator<Uint8Array> {
      for (;;) {
        sent++;
        yield Buffer.alloc(1000, sent);
      }
    }
    const error = await failureOf(receiveBlob(layout, endless(), 9999));
    expect((error as ApiError).code).toBe("payload_too_large");
    expect(sent).toBe(10);
    expect(readdirSync(layout.tmp)).toEqual([]);
    expect((await receiveBlob(layout, chunks(Buffer.alloc(9999)), 9999)).sizeBytes).toBe(9999);
  });

  test("that is aborted leaves nothing behind", async () => {
    async function* aborted(): AsyncGenerator<Uint8Array> {
      yield Buffer.from("partial content");
      throw new Error("the client left");
    }
    expect(await failureOf(receiveBlob(layout, aborted(), 1000))).toMatchObject({ message: "the client left" });
    expect(readdirSync(layout.tmp)).toEqual([]);
    expect(existsSync(blobPath(layout, sha256(Buffer.from("partial content"))))).toBe(false);
  });

  test("of the same content at the same time is stored once", async () => {
    const content = randomBytes(100_000);
    const all = await Promise.all(Array.from({ length: 8 }, () => receiveBlob(layout, chunks(content), 100_000)));
    expect(new Set(all.map((blob) => blob.sha256)).size).toBe(1);
    expect(readdirSync(layout.tmp)).toEqual([]);
  });

  test("replaces damaged content of the same name", async () => {
    const content = randomBytes(5000);
    const { sha256: name } = await receiveBlob(layout, chunks(content), 5000);
    writeFileSync(blobPath(layout, name), "short");
    await receiveBlob(layout, chunks(content), 5000);
    expect(statSync(blobPath(layout, name)).size).toBe(5000);
  });

  test("a name that is not a hash never becomes a path", () => {
    for (const name of ["", "../../etc/passwd", "A".repeat(64), `${"a".repeat(63)}/`]) {
      expect(() => blobPath(layout, name)).toThrow("not a lower-case SHA-256");
    }
  });

  test("is removed, once or twice", async () => {
    const { sha256: name } = await receiveBlob(layout, chunks(Buffer.from("gone")), 10);
    expect(await listBlobs(layout)).toContain(name);
    await removeBlob(layout, name, () => false);
    await removeBlob(layout, name, () => false);
    expect(await listBlobs(layout)).not.toContain(name);
    expect(existsSync(blobPath(layout, name))).toBe(false);
  });
});

describe("a layer", () => {
  test("is published read-only, listed and removed", async () => {
    const id = Bun.randomUUIDv7() as LayerId;
    const temporaryDisk = join(layout.tmp, "disk");
    const temporaryIndex = join(layout.tmp, "index");
    writeFileSync(temporaryDisk, "disk", { mode: 0o600 });
    writeFileSync(temporaryIndex, "index", { mode: 0o600 });
    await publishLayer(layout, { id, temporaryDisk, temporaryIndex });
    for (const path of [layerPath(layout, id), indexPath(layout, id)]) {
      expect(statSync(path)).toMatchObject({ uid: process.getuid?.() ?? 0 });
      expect(statSync(path).mode & 0o7777).toBe(0o444);
    }
    expect(readdirSync(layout.tmp)).toEqual([]);
    const half = Bun.randomUUIDv7() as LayerId;
    writeFileSync(layerPath(layout, half), "");
    writeFileSync(join(layout.layers, "something.else"), "");
    expect(await listLayers(layout)).toEqual(new Set([id, half]));
    await removeLayer(layout, id);
    await removeLayer(layout, id);
    await removeLayer(layout, half);
    expect(await listLayers(layout)).toEqual(new Set());
  });
});
