import { afterAll, describe, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import fc from "fast-check";
import type { ByteString, GuestPath } from "../../../src/domain/tree/guest-path.ts";
import { mergeTools } from "../../../src/storage/tree/directory-merge.ts";
import { imageDiff } from "../../../src/storage/tree/image-diff.ts";
import { type LayerFiles, OpenLayers } from "../../../src/storage/tree/open-layers.ts";
import { DirectoryTouches, PathComparison } from "../../../src/storage/tree/path-change.ts";
import type { TestRecord } from "../../support/images/index-stream.ts";
import { makeLayer, testDirectory } from "../../support/images/layer-files.ts";

const directory = testDirectory("path-change");
const open = new OpenLayers(8);
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const NAMES = ["a", "b"];
const PATHS = NAMES.flatMap((x) => [x, ...NAMES.flatMap((y) => [`${x}/${y}`, ...NAMES.map((z) => `${x}/${y}/${z}`)])]);
const layer = fc.array(
  fc.record({
    path: fc.constantFrom(...PATHS),
    type: fc.constantFrom("f", "f", "d", "d", "d", "w"),
    opaque: fc.boolean(),
    mode: fc.constantFrom(0o700, 0o755),
  }),
  { maxLength: 10 },
);

/** Records of a layer, without those whose parents are not directories of the same layer. */
function recordsOf(candidates: readonly TestRecord[]): TestRecord[] {
  const byPath = new Map(candidates.map((record) => [record.path, record]));
  const kept = new Map<string, TestRecord>();
  for (const path of PATHS) {
    const record = byPath.get(path);
    const parent = path.slice(0, Math.max(0, path.lastIndexOf("/")));
    if (record === undefined || (parent !== "" && kept.get(parent)?.type !== "d")) continue;
    kept.set(path, { ...record, opaque: record.type === "d" && record.opaque === true, size: 0n });
  }
  return [...kept.values()];
}

const split = (path: string) => {
  const slash = path.lastIndexOf("/");
  return [path.slice(0, Math.max(1, slash)) as GuestPath, path.slice(slash + 1) as ByteString] as const;
};

describe("the change of a path between two states", () => {
  test("is what a comparison of both whole states finds there and below, and only where a layer touches the path", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(layer, { maxLength: 2 }), layer, async (below, top) => {
        const layers: LayerFiles[] = [];
        for (const records of [[], ...below, top]) {
          layers.push(await makeLayer(directory, [{ path: "", type: "d" }, ...recordsOf(records)]));
        }
        const [now, before] = [layers, layers.slice(0, -1)];
        const differences = new Map<string, string>();
        for await (const { path, change } of imageDiff({ now, before }, null, open)) differences.set(path, change);
        const comparison = new PathComparison({ now, before }, mergeTools(open, null));
        for (const path of ["/", ...PATHS.map((name) => `/${name}`)]) {
          const [parent, name] = split(path);
          const change = await comparison.at(path as GuestPath);
          const touches = new DirectoryTouches(open, parent).touches(
            layers.at(-1) as LayerFiles,
            name === "" ? null : name,
          );
          if (change !== null) expect({ path, touches }).toEqual({ path, touches: true });
          const own = differences.get(path);
          const prefix = path === "/" ? "/" : `${path}/`;
          const isBelow = [...differences.keys()].some((other) => other.startsWith(prefix) && other !== path);
          if (own === undefined && change?.kind !== "replaced") {
            expect({ path, change: change?.isBelow ?? false }).toEqual({ path, change: isBelow });
          } else if (own === "changed") {
            expect({ path, isBelow: change?.isBelow }).toEqual({ path, isBelow: false });
            expect(["modified", "replaced"]).toContain(change?.kind ?? "none");
          } else if (own !== undefined) expect({ path, change: change?.kind as string }).toEqual({ path, change: own });
          else expect(change?.now?.entry.type).toBe("d");
        }
      }),
      { numRuns: 150 },
    );
  }, 60_000);

  test("tells a new directory in the place of another from one that was only copied", async () => {
    const base = await makeLayer(directory, [
      { path: "", type: "d" },
      { path: "d", type: "d" },
    ]);
    const at = async (record: TestRecord) => {
      const top = await makeLayer(directory, [{ path: "", type: "d" }, record]);
      const comparison = new PathComparison({ now: [base, top], before: [base] }, mergeTools(open, null));
      return (await comparison.at("/d" as GuestPath))?.kind ?? null;
    };
    expect(await at({ path: "d", type: "d" })).toBe(null);
    expect(await at({ path: "d", type: "d", mode: 0o700 })).toBe("modified");
    expect(await at({ path: "d", type: "d", opaque: true })).toBe("replaced");
    expect(await at({ path: "d", type: "f", size: 0n })).toBe("replaced");
    expect(await at({ path: "d", type: "w" })).toBe("removed");
  });
});
