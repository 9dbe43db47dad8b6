import { afterAll, afterEach, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { basename, join } from "node:path";
import { layer, layerOf, type RawImage, type RawLayer, rawImage, zeros } from "../../support/images/hostile-images.ts";
import { type Cases, HostileImports } from "../../support/images/hostile-imports.ts";
import { busyboxImage } from "../../support/images/images.ts";
import { digestOf } from "../../support/images/registry.ts";
import { paxRecords, special, type TarEntry, tar } from "../../support/images/tar.ts";
import { download, execute, list, names } from "../../support/runs.ts";

setDefaultTimeout(240_000);

const MIB = 1_048_576;
const GIB = 1024 * MIB;

let hostile: HostileImports;
let busybox: RawLayer;

beforeAll(async () => {
  const limits = ["--limits-image-bytes-max", "64MiB", "--limits-image-entries-max", "5000"];
  hostile = await HostileImports.start(limits);
  busybox = layer(...((await busyboxImage()).layers[0] ?? []));
});

afterAll(async () => await hostile[Symbol.asyncDispose]());
afterEach(async () => await hostile.expectNothingTouched());

const file = (path: string | Buffer, content = "evil"): TarEntry => ({ path, content });
const link = (path: string, target: string): TarEntry => ({ path, type: "symlink", target });
const hardLink = (path: string, target: string): TarEntry => ({ path, type: "hardlink", target });
const directory = (path: string, more: Partial<TarEntry> = {}): TarEntry => ({ path, type: "directory", ...more });
const root = [directory("./"), directory("etc/"), file("etc/passwd", "of the image")];
const range = (length: number) => Array.from({ length }, (_, index) => index);
/** A path that leads to the root from anywhere. */
const UP = "../".repeat(30);

const layers = (...parts: readonly RawLayer[]) => rawImage(parts);
const one = (entry: TarEntry) => layers(layer(...root, entry));
const raw = (archive: Uint8Array) => layers(layerOf(archive));
const allFail = async (cases: Cases<RawImage>) =>
  await hostile.expectAllFail(cases, async (image) => await hostile.importing(image));

describe("an image cannot exceed its limits", () => {
  test("with its bytes, its files or its names", async () => {
    const map = { "GNU.sparse.size": String(1024 * GIB), "GNU.sparse.numblocks": "1", "GNU.sparse.map": "0,3" };
    const comment = special("x", "x", paxRecords({ comment: Buffer.alloc(100 * MIB, "a") }));
    await allFail({
      "20 GiB of zeros in a file": [layers(zeros("bomb", 1, 20 * GIB)), /payload_too_large: the image unpacks to/],
      "20 GiB of zeros in 640 files": [layers(zeros("bomb", 640, 32 * MIB)), /payload_too_large: .* 67108864 bytes/],
      "a sparse file of a tebibyte": [one({ ...file("sparse", "abc"), pax: map }), /payload_too_large/],
      "60,000 files": [
        layers(layer(...range(60_000).map((index) => file(`many/${index}`, "")))),
        /payload_too_large: .* 5000 files/,
      ],
      "6,000 names of one file": [
        layers(layer(file("one"), ...range(6000).map((index) => hardLink(`name-${index}`, "one")))),
        /payload_too_large: .* 5000 files/,
      ],
      "a record of 100 MiB in a header": [
        raw(Buffer.concat([...comment, tar(root)])),
        /validation_error: .* header field too long/,
      ],
      "10,000 layers": [layers(...Array<RawLayer>(10_000).fill(layer(file("same")))), /validation_error: .* layers/],
    });
  });
});

describe("an invalid layer", () => {
  test("is refused", async () => {
    const endless = { "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": String(2n ** 63n - 1n) };
    await allFail({
      "cut off in a file": [raw(tar([...root, file("big", "x".repeat(5000))]).subarray(0, 4000)), /validation_error/],
      "cut off in a header": [raw(tar(root).subarray(0, 700)), /validation_error/],
      "a negative size": [one({ path: "size", claimedBytes: -5 }), /validation_error: .* invalid tar header/],
      "a size of 2^53 in base 256": [one({ path: "size", claimedBytes: 2 ** 53 }), /validation_error/],
      "a negative size in a record": [one({ ...file("size"), pax: { size: "-1" } }), /validation_error/],
      "a size beyond the end": [one({ ...file("size"), pax: { size: "999999999999" } }), /validation_error/],
      "a name with NUL": [one({ ...file("name"), pax: { path: "a\0b" } }), /validation_error: .* invalid tar header/],
      "a name of 256 bytes": [one(file("x".repeat(256))), /validation_error: .* too long/],
      "a path of 6,000 bytes": [one(file(Array(30).fill("y".repeat(200)).join("/"))), /validation_error: .* too long/],
      "a sparse file without a map": [one({ ...file("s"), pax: endless }), /validation_error/],
      "an unknown type": [
        raw(Buffer.concat([...special("Z", "odd", Buffer.from("x")), tar(root)])),
        /validation_error: .* unknown typeflag/,
      ],
      "a root that is a link": [layers(layer(link("./", "/etc"), file("x"))), /validation_error: .* root directory/],
      "a root that is a file": [layers(layer(file("./"))), /validation_error: .* root directory/],
      "a bad capability": [one({ ...file("x"), xattrs: { "security.capability": "bad" } }), /validation_error/],
      "70,000 bytes of an attribute": [
        one({ ...file("x"), xattrs: { "user.x": "x".repeat(70_000) } }),
        /validation_error/,
      ],
      "no archive": [raw(Buffer.from("no archive")), /validation_error/],
      "not compressed": [layers({ blob: Buffer.from("plain"), diffId: digestOf("plain") }), /validation_error/],
      "of another content than its id": [
        layers(layerOf(tar(root), { diffId: digestOf("another") })),
        /validation_error: .* diffid mismatch/,
      ],
    });
  });

  test("cannot have hard links to files outside of it", async () => {
    const target = join(hostile.canary, "file");
    await allFail({
      absolute: [one(hardLink("x", target)), /validation_error: .* no such file/],
      climbing: [one(hardLink("x", `${UP}${target.slice(1)}`)), /validation_error: .* no such file/],
      "through a link": [
        layers(layer(...root, link("out", hostile.canary), hardLink("x", "out/file"), file("x"))),
        /validation_error: .* no such file/,
      ],
      "to itself": [one(hardLink("x", "x")), /validation_error: .* no such file/],
      "to what comes later": [
        layers(layer(hardLink("x", "later"), file("later"))),
        /validation_error: .* no such file/,
      ],
    });
  });

  test("cannot have whiteouts without a name, of its own directory, or of the one above", async () => {
    const paths = [
      ...[".wh.", ".wh..", ".wh...", "etc/.wh.", "etc/.wh..", "etc/.wh...", "./etc/.wh...", "/etc/.wh..."],
      ...["a/b/.wh.", "a/b/.wh..", "a/b/.wh...", `${"long/".repeat(60)}.wh...`, "etc/.wh.../", "etc/.wh.../."],
    ];
    const failure = /validation_error: .* cannot be unpacked: its whiteout \S*\.wh\.[./]* is for no file/;
    const whiteout = (entry: TarEntry) => layers(layer(...root, file("a/b/c")), layer(entry));
    const named = tar([...root, { ...file("plain"), pax: { path: "a/.wh..." } }]);
    const zstd = { blob: Bun.zstdCompressSync(named), diffId: digestOf(named) };
    await allFail({
      ...Object.fromEntries(paths.map((path) => [path, [whiteout(file(path)), failure] as const])),
      "a directory": [whiteout(directory("a/b/.wh.../")), failure],
      "a link": [whiteout(link("a/b/.wh...", "c")), failure],
      "in a record": [raw(named), failure],
      "not compressed": [layers({ blob: named, diffId: digestOf(named) }), failure],
      "compressed with zstd": [layers(zstd), failure],
      "after an archive of its own": [layers(layerOf(Buffer.concat([tar(root).subarray(0, -1024), named]))), failure],
    });
  });
});

describe("a hostile image that is accepted", () => {
  test("keeps paths inside that climb, are absolute, or go through a link", async () => {
    const { appliance, canary } = hostile;
    const inside = canary.slice(1);
    const image = await hostile.imported(
      layers(
        layer(
          ...root,
          ...[file("../../climbed"), file("a/../../../climbed-too"), file("/absolute"), file(`${canary}/by-name`)],
          ...[link("out", canary), file("out/by-link"), link("up", `${UP}${inside}`), file("up/by-climbing-link")],
          ...[link("over", join(canary, "file")), file("over", "replaced")],
          ...[directory("turned"), link("turned", canary), file("turned/by-turned-link")],
          ...[file("proc/self/x"), file("sys/x"), file("dev/x")],
          ...[file("twice", "one"), directory("twice"), file("twice/x"), link("twice", "etc"), file("twice", "last")],
        ),
        layer(file("out/by-upper-layer")),
      ),
    );
    expect(await names(appliance, image, "/")).toEqual([
      ...["absolute", "climbed", "climbed-too", "dev", "etc", "out", "over", "proc", "root", "sys", "tmp"],
      ...["turned", "twice", "up"],
    ]);
    const landed = ["by-climbing-link", "by-link", "by-name", "by-turned-link", "by-upper-layer"];
    expect(await names(appliance, image, canary)).toEqual(landed);
    expect(await (await download(appliance, image, "/over")).text()).toBe("replaced");
    expect(await (await download(appliance, image, "/twice")).text()).toBe("last");
  });

  test("keeps devices, privileges and odd names, without overlayfs' own marks", async () => {
    const { appliance } = hostile;
    const marks = { "trusted.overlay.opaque": "y", "trusted.overlay.redirect": "/etc", "trusted.overlay.metacopy": "" };
    const capability = Buffer.from("0100000200200000000000000000000000000000", "hex");
    const odd = ["new\nline", "\x1b[31m", "n".repeat(254), ".wh"];
    const image = await hostile.imported(
      layers(
        busybox,
        layer(
          { path: "dev/disk", type: "block", mode: 0o666, device: [8, 0] },
          ...[file("dev/overwritten"), { path: "dev/mem", type: "char", device: [1, 1] } as const],
          { path: "dev/overwritten", type: "char", device: [1, 5] },
          { path: "device-zero", type: "char", device: [0, 0] },
          { ...file("privileged"), mode: 0o6777, xattrs: { "security.capability": capability } },
          { ...file("marked", "content"), xattrs: { ...marks, "user.kept": "v", nonsense: "1" } },
          directory("opaque", { xattrs: marks }),
          { ...file("opaque/below", "below"), uid: 4_294_967_294, gid: 4_294_967_294 },
          ...[
            { ...file("old"), mtime: -(2 ** 40) },
            { ...file("late"), mtime: 2 ** 60 },
          ],
          ...[...odd, Buffer.from([0xff, 0xfe])].map((name) => file(name)),
        ),
      ),
    );
    const types = Object.fromEntries(
      (await list(appliance, image, "/dev")).map(({ name, type }) => [String(name), type]),
    );
    expect(types).toEqual({ disk: "block", mem: "char", overwritten: "char" });
    expect(await names(appliance, image, "/")).toEqual(expect.arrayContaining(odd));
    const command = "cat /marked /opaque/below; stat -c %a /privileged; ls /dev/disk /dev/mem; ls -d /old /late";
    const { out, err } = await execute(appliance, { image, command, shell: true });
    expect(out).toBe("contentbelow6777\n/late\n/old\n");
    expect(err).toContain("/dev/disk: No such file");
  });

  test("can remove only files of its lower layers", async () => {
    const { appliance, canary } = hostile;
    const lower = layer(...root, file("gone"), file("kept/old"), file("kept/deep/old"), link("out", canary));
    const [removing, emptied] = await Promise.all([
      hostile.imported(
        layers(
          lower,
          layer(
            ...[file(".wh.gone"), file("../.wh.x"), file(`../../.wh.${basename(canary)}`), file("/../../.wh.etc.")],
            ...[file("out/.wh.file"), file("out/.wh.directory"), file("out/.wh..wh..opq")],
            ...[file("kept/.wh..wh..opq"), file("kept/new"), file("etc/.wh.passwd"), file("etc/.wh.missing")],
          ),
        ),
      ),
      hostile.imported(layers(lower, layer(file(".wh..wh..opq"), file("after")))),
    ]);
    expect(await names(appliance, removing, "/")).toEqual(["dev", "etc", "kept", "out", "proc", "root", "sys", "tmp"]);
    expect(await names(appliance, removing, "/kept")).toEqual(["new"]);
    expect(await names(appliance, removing, "/etc")).toEqual([]);
    expect(await names(appliance, emptied, "/")).toEqual(["after", "dev", "proc", "root", "sys", "tmp"]);
  });

  test("after all of them, another image runs", async () => {
    const image = await hostile.imported(layers(busybox, layer(file("good", "fine"))));
    expect((await execute(hostile.appliance, { image, command: "cat /good", shell: true })).out).toBe("fine");
  });
});
