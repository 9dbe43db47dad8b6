/** Cases that random operations reach too rarely or on too small a scale, compared with the same views. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { allocatedBytes } from "../../../src/system/sparse.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { Inspector } from "../../support/capture/inspect.ts";
import type { Operation } from "../../support/capture/model.ts";
import { runProgram, uploadProgram } from "../../support/capture/program.ts";
import { CaptureSteps, type KnownImage } from "../../support/capture/step.ts";
import { differences, type View } from "../../support/capture/view.ts";
import { awkwardImage, pushImage } from "../../support/images/images.ts";
import type { Registry } from "../../support/images/registry.ts";

const MIB = 2 ** 20;
const GIB = 2 ** 30;
/** Largest file of ext4 with blocks of 4 KiB. */
const FILE_BYTES_MAX = 2 ** 44 - 4096;
const FILES_COUNT = 100_000;
const LAYERS_COUNT = 20;
const DEPTH_COUNT = 100;
const DIRECTORY = "/t";

const owned = new AsyncDisposableStack();
let registry: Registry;
let appliance: Appliance;
let inspector: Inspector;
let capture: CaptureSteps;
let first: KnownImage;

beforeAll(async () => {
  const setup = owned.use(await BusyboxAppliance.start());
  ({ registry, appliance } = setup);
  inspector = owned.use(new Inspector(appliance));
  capture = new CaptureSteps({ appliance, inspector }, DIRECTORY);
  first = await capture.first(setup.image);
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

/** Runs the steps in order, and walks the last image in a new machine. */
async function chain(...steps: readonly (readonly Operation[])[]): Promise<KnownImage> {
  let image = first;
  for (const operations of steps) image = await capture.step(image, operations);
  await capture.walk(image);
  return image;
}

/** Compares a walk of the whole image with its inspection, without the machine's mounts. */
async function expectWholeImage(image: string): Promise<View> {
  const { before } = await runProgram(appliance, image, { directory: "/", request: { disposable: true } });
  const entries = await inspector.view(image, "/");
  const mounted = /^\/(proc|sys|dev)(\/|$)/;
  const view = new Map([...entries].filter(([path]) => !mounted.test(path)));
  expect(differences(before, view)).toEqual([]);
  expect(before.size).toBeGreaterThan(20);
  return before;
}

describe("an image", () => {
  test("shows the same in all views, the attributes of its root included", async () => {
    const change: Operation[] = [
      ["chmod", "/", 0o1711],
      ["chown", "/", 4_294_967_294, 12],
      ["set", "/", "user.of.the.root", "\x00\xff"],
      ["times", "/", -5, 123_456_789],
    ];
    const changed = await runProgram(appliance, first.id, { directory: DIRECTORY, operations: change });
    const later = await runProgram(appliance, changed.image, {
      directory: DIRECTORY,
      operations: [["create", "/etc/new", 0o600]],
    });
    for (const image of [changed.image, later.image]) {
      const root = (await expectWholeImage(image)).get("/");
      expect(root).toMatchObject({ mode: 0o1711, uid: 4_294_967_294, gid: 12, mtime: -5_000_000_000n + 123_456_789n });
      expect(root?.xattrs.get("user.of.the.root")).toBe("\x00\xff");
    }
  }, 60_000);

  test("uses no space for files that its run deleted, wherever on the disk they were", async () => {
    const layers = join(appliance.dataDir, "layers");
    const before = new Set(await readdir(layers));
    // Each of the large files takes more than one group of blocks of the disk.
    const file = (name: string, mib: number) => `dd if=/dev/zero of=/${name} bs=1048576 count=${mib}`;
    const { status } = await appliance.run(
      first.id,
      `${file("a", 200)} && ${file("kept", 8)} && ${file("b", 200)} && sync && rm /a /b`,
    );
    expect(status).toBe("SUCCESS");
    const added = (await readdir(layers)).filter((name) => !before.has(name));
    const bytes = await Promise.all(added.map((name) => allocatedBytes(join(layers, name))));
    const sum = bytes.reduce((a, b) => a + b, 0);
    expect(sum).toBeGreaterThan(8 * MIB);
    expect(sum).toBeLessThan(16 * MIB);
  }, 60_000);

  test.each([
    ["with names that erofs takes", false],
    ["with a name that only ext4 takes", true],
  ])(
    "of a registry %s shows the same in all views",
    async (_name, long) => {
      const reference = await pushImage(registry, `awkward:${long}`, awkwardImage({ long }));
      const base = await appliance.importImage(reference);
      const files = await uploadProgram(appliance);
      const operations: Operation[] = [
        ["mkdir", "/t", 0o700],
        ["rename", "/\xff\xfeA", "/new\nname"],
        ["link", "/attributes", "/t/linked"],
        ["remove", "/kept"],
        ["mkdir", "/kept", 0o755],
        ["create", "/kept/other", 0o644],
        ["chmod", "/bin/suid", 0o6755],
      ];
      const run = await runProgram(appliance, base, { directory: DIRECTORY, operations, request: { files } });
      expect(run.results).toEqual(operations.map(() => 0));
      const view = await expectWholeImage(run.image);
      expect(view.get("/owned")).toMatchObject({ uid: 1_000_000, gid: 4_294_967_294, mode: 0o600 });
      expect(view.has(`/${"l".repeat(255)}`)).toBe(long);
      // Both names were one file in the import; the change of one of them broke the link.
      expect([view.get("/bin/suid")?.mode, view.get("/bin/link")?.mode]).toEqual([0o6755, 0o4755]);
    },
    60_000,
  );

  test(`of one run can have ${FILES_COUNT} small files`, async () => {
    const operations: Operation[] = [
      ["mkdir", "/many", 0o755],
      ["many", "/many", FILES_COUNT],
    ];
    const options = { directory: "/absent", operations, request: { timeout: 300 }, limitMs: 500_000 };
    const run = await runProgram(appliance, first.id, options);
    expect(run.results).toEqual([0, 0]);
    const [layer] = inspector.layersOf(run.image).slice(-1);
    const indexBytes = (await stat(layer?.index ?? "")).size;
    process.stderr.write(`capture: index of ${FILES_COUNT} files: ${indexBytes} bytes\n`);
    const { before } = await runProgram(appliance, run.image, { directory: "/many/7", request: { disposable: true } });
    expect(before.size).toBe(FILES_COUNT / 100 + 1);
    expect(differences(before, await inspector.view(run.image, "/many/7"))).toEqual([]);
    let count = 0;
    for (let number = 0; number < 100; number++) count += (await inspector.list(run.image, `/many/${number}`)).size;
    expect(count).toBe(FILES_COUNT);
  }, 600_000);

  test("can have sparse files of more than 4 GiB, and of 16 TiB", async () => {
    const { id } = await chain(
      [
        ["create", "/t/sparse", 0o644],
        ["write", "/t/sparse", 2 ** 32 - 5000, 10_000, 1],
        ["write", "/t/sparse", 9 * GIB + 1, 4097, 2],
        ["create", "/t/largest", 0o644],
        ["truncate", "/t/largest", FILE_BYTES_MAX],
        ["write", "/t/largest", FILE_BYTES_MAX - 10, 10, 3],
        ["create", "/t/allocated", 0o644],
        ["allocate", "/t/allocated", 0, 3 * GIB, 1_048_576],
        ["allocate", "/t/allocated", 1, 5 * GIB, 65_536],
      ],
      [
        ["allocate", "/t/sparse", 3, 2 ** 32 - 4096, 8192],
        ["write", "/t/sparse", 5 * GIB, 1, 4],
        ["write", "/t/allocated", 3 * GIB + 4096, 100, 5],
        ["chmod", "/t/largest", 0o600],
      ],
    );
    const bytes = await inspector.download(id, "/t/largest", { start: FILE_BYTES_MAX - 20, end: FILE_BYTES_MAX });
    expect(bytes.subarray(0, 10)).toEqual(Buffer.alloc(10));
    expect(bytes.subarray(10)).not.toEqual(Buffer.alloc(10));
  }, 60_000);

  test("has one inode for a new hard link to a file of an older layer", async () => {
    const files = ["/t/file", "/t/other", "/t/several"];
    await chain(
      files.map((path): Operation => ["create", path, 0o644]),
      [
        ["symlink", "/t/link", "nowhere"],
        ["link", "/t/several", "/t/second"],
        ["link", "/t/second", "/t/third"],
      ],
      [
        ["link", "/t/file", "/t/file-new"],
        ["link", "/t/link", "/t/link-new"],
        ["link", "/t/third", "/t/fourth"],
        // Both are the same file: nothing to do.
        ["rename", "/t/file", "/t/file-new"],
        ["rename", "/t/link", "/t/link-new"],
        ["exchange", "/t/third", "/t/fourth"],
        ["link", "/t/other", "/t/other-new"],
        ["chmod", "/t/other", 0o2675],
        ["chown", "/t/other-new", 1000, 1000],
        ["write", "/t/other-new", 0, 5000, 1],
      ],
    );
  }, 60_000);

  test(`can have ${DEPTH_COUNT} nested directories`, async () => {
    const paths = Array.from({ length: DEPTH_COUNT }, (_, depth) => `/t${"/deep".repeat(depth + 1)}`);
    const bottom = paths.at(-1) ?? "";
    await chain(
      [...paths.map((path): Operation => ["mkdir", path, 0o755]), ["create", `${bottom}/file`, 0o644]],
      [
        ["write", `${bottom}/file`, 0, 100, 1],
        ["create", `${paths[50]}/sibling`, 0o644],
        ["rename", paths[98] ?? "", `${paths[50]}/elsewhere`],
      ],
      [
        ["remove", paths[60] ?? ""],
        ["mkdir", paths[60] ?? "", 0o700],
        ["symlink", `${paths[60]}/deep`, "file"],
      ],
    );
  }, 60_000);

  test(`shows the last state of names that each of ${LAYERS_COUNT} layers removed and created again`, async () => {
    const names = Array.from({ length: 12 }, (_, at) => `/t/name-${at}`);
    const creation = (path: string, kind: number): Operation[] => {
      switch (kind) {
        case 0:
          return [
            ["mkdir", path, 0o755],
            ["mkdir", `${path}/in`, 0o755],
            ["create", `${path}/in/${kind}`, 0o644],
          ];
        case 1:
          return [
            ["create", path, 0o644],
            ["write", path, 0, 5000, 1 + path.length],
          ];
        case 2:
          return [["symlink", path, "name-0"]];
        case 3:
          return [["node", path, "p", 0o600, 0, 0]];
        default:
          return [];
      }
    };
    const layers = Array.from({ length: LAYERS_COUNT }, (_, layer) =>
      names.flatMap((path, at): Operation[] => [
        ["remove", path],
        ...creation(path, (layer * 7 + at * (layer % 3)) % 5),
      ]),
    );
    await chain(...layers);
  }, 120_000);
});
