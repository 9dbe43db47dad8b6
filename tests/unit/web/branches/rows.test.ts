import { describe, expect, test } from "bun:test";
import type { BranchRow } from "../../../../src/client/types.ts";
import { Branches, type Drawing } from "../../../../src/web/branches/model/branches.ts";
import { type Row, rowOf } from "../../../../src/web/branches/model/rows.ts";
import { branchLines, image, uuidOf } from "../../../support/page/branches.ts";
import { until } from "../../../support/waiting.ts";

const rowsOf = (lines: string): Row[] =>
  lines
    .trimEnd()
    .split("\n")
    .map((line) => rowOf(JSON.parse(line) as BranchRow))
    .filter((row): row is Row => row !== null);
const END: Row = { is: "end", hasOlder: false };

/** Branches, and the list of their drawings. */
function watched(): { branches: Branches; drawings: Drawing[] } {
  const drawings: Drawing[] = [];
  return { branches: new Branches((drawing) => drawings.push(drawing)), drawings };
}

/** The current drawing, as soon as the condition holds for it. */
const settled = async (drawings: Drawing[], isSo: (drawing: Drawing) => boolean): Promise<Drawing> => {
  const current = (): Drawing | undefined => drawings.at(-1);
  await until("it is drawn", () => drawings.length > 0 && isSo(current() as Drawing));
  return current() as Drawing;
};

describe("branches", () => {
  test("read 10,000 rows, draw before all have arrived, and report when they have", async () => {
    const { branches, drawings } = watched();
    const rows = rowsOf(branchLines(10_000));
    branches.take(rows.slice(0, 500));
    const first = await settled(drawings, ({ isThere }) => isThere);
    expect(first.isComplete).toBe(false);
    branches.take(rows.slice(500));
    const whole = await settled(drawings, ({ isComplete }) => isComplete);
    expect(whole.forest.images.size).toBe(10_000);
    branches.filter = { ...branches.filter, query: "step-4321" };
    const drawing = await settled(drawings, ({ search }) => search !== null);
    expect(drawing.hits).toBe(1);
    expect(drawing.layout.byKey.has(uuidOf(4_321))).toBe(true);
  });

  test("keep the drawing until all rows of a new answer have arrived", async () => {
    const { branches, drawings } = watched();
    const rows = rowsOf(branchLines(20));
    branches.take(rows);
    await settled(drawings, ({ isComplete }) => isComplete);
    branches.beginAnew();
    branches.take(rows.slice(0, 3));
    branches.take([...rows.slice(3, 9), END]);
    await settled(drawings, ({ forest }) => forest.images.size === 9);
    expect(drawings.every(({ isComplete, forest }) => isComplete && [9, 20].includes(forest.images.size))).toBe(true);
  });

  test("keep the places of bases when everything is loaded again", async () => {
    const { branches, drawings } = watched();
    const [older, newer] = [image("older", null, 1), image("newer", null, 2)];
    const grown = image("grown", "older", 3);
    const row = (image: typeof older): Row => ({ is: "image", image });
    const first = (drawing: Drawing): string | undefined => drawing.layout.items[0]?.key;
    branches.take([row(older), row(newer), END]);
    expect(first(await settled(drawings, ({ isComplete }) => isComplete))).toBe("newer");
    branches.beginAnew();
    branches.take([row(older), row(newer), row(grown), END]);
    expect(first(await settled(drawings, ({ forest }) => forest.images.size === 3))).toBe("newer");
  });

  test("bring an image out of its folds", async () => {
    const { branches, drawings } = watched();
    branches.take(rowsOf(branchLines(10_000)));
    const whole = await settled(drawings, ({ isComplete }) => isComplete);
    const far = uuidOf(300);
    expect(whole.layout.byKey.has(far)).toBe(false);
    branches.reveal(far);
    await settled(drawings, ({ layout }) => layout.byKey.has(far));
  });

  test("show a run, and replace it by its image", async () => {
    const { branches, drawings } = watched();
    branches.take(rowsOf(branchLines(5)));
    const operation = {
      ...({ type: "operation", uuid: uuidOf(900), kind: "instance", image: uuidOf(0), about: "make" } as const),
      created_at: "2026-01-01T00:00:00.000Z",
    };
    const rows = (branch: BranchRow): Row[] => [rowOf(branch)].filter((row): row is Row => row !== null);
    branches.take(rows({ ...operation, status: "EXECUTING" }));
    await settled(drawings, ({ layout }) => layout.byKey.has(uuidOf(900)));
    branches.take(rows({ ...operation, status: "SUCCESS", result: uuidOf(901) }));
    branches.take(
      rows({
        ...({ type: "image", uuid: uuidOf(901), parent: uuidOf(0), kind: "instance", operation: uuidOf(900) } as const),
        ...{ created_at: "2026-01-01T00:00:01.000Z", size_bytes: 4096 },
      }),
    );
    const drawing = await settled(drawings, ({ layout }) => layout.byKey.has(uuidOf(901)));
    expect(drawing.layout.byKey.has(uuidOf(900))).toBe(false);
    // A row that was read before the end may arrive after it.
    branches.take(rows({ ...operation, status: "EXECUTING" }));
    // An operation that ended before the page was opened is not shown.
    branches.take(rows({ ...operation, uuid: uuidOf(902), status: "FAILED" }));
    branches.take([{ is: "deleted", id: uuidOf(901) }]);
    const last = await settled(drawings, ({ layout }) => !layout.byKey.has(uuidOf(901)));
    expect(last.layout.byKey.has(uuidOf(902))).toBe(false);
    expect(last.layout.byKey.has(uuidOf(900))).toBe(false);
  });
});
