import { describe, expect, test } from "bun:test";
import type { ListingItem } from "../../../../src/client/types.ts";
import { Slicer } from "../../../../src/web/data/slicer.ts";
import { orderOf, type SortKey } from "../../../../src/web/image/files/listing.ts";
import { modeText } from "../../../../src/web/image/files/mode.ts";
import { throwing } from "../../../support/failures.ts";

function item(name: string, fields: Partial<ListingItem> = {}): ListingItem {
  const type = fields.type ?? "file";
  return {
    ...{ name, size: 0, mode: "0644", type, uid: 0, gid: 0, modified_at: "2026-01-01T00:00:00Z" },
    ...{ is_regular: type === "file", is_dir: type === "directory", is_symlink: type === "symlink" },
    ...fields,
  };
}

const ITEMS = [
  item("B", { size: 3, uid: 5, modified_at: "2026-03-01T00:00:00Z" }),
  item("a", { size: 9, mode: "4755" }),
  item("c", { type: "directory", size: 4096 }),
  item("d", { size: 3, gid: 2 }),
  item("e", { type: "directory", modified_at: "2026-02-01T00:00:00Z" }),
];
const noPause = async () => undefined;
const order = async (key: SortKey, isDescending = false, filter = "") => {
  const slicer = new Slicer({ pause: noPause });
  return [...(await orderOf(ITEMS, { key, isDescending }, filter, slicer))].map((index) => ITEMS[index]?.name);
};

describe("the order of a directory", () => {
  test("has directories first, and is otherwise that of the API", async () => {
    expect(await order("name")).toEqual(["c", "e", "B", "a", "d"]);
    expect(await order("name", true)).toEqual(["e", "c", "d", "a", "B"]);
  });

  test("is by the given key, then by name", async () => {
    expect(await order("size")).toEqual(["e", "c", "B", "d", "a"]);
    expect(await order("size", true)).toEqual(["c", "e", "a", "B", "d"]);
    expect(await order("modified", true)).toEqual(["e", "c", "B", "a", "d"]);
    expect(await order("mode", true)).toEqual(["c", "e", "a", "B", "d"]);
    expect(await order("owner")).toEqual(["c", "e", "a", "d", "B"]);
  });

  test("includes the names that contain the filter, in upper or lower case", async () => {
    expect(await order("name", false, " b")).toEqual(["B"]);
    expect(await order("name", false, "zz")).toEqual([]);
  });

  test("of 100,000 entries equals a plain sort, with breaks between its parts", async () => {
    const many = Array.from({ length: 100_000 }, (_, index) => item(`${index}`, { size: (index * 7919) % 10_007 }));
    let pauses = 0;
    const slicer = new Slicer({
      pause: async () => {
        pauses += 1;
      },
    });
    const sorted = await orderOf(many, { key: "size", isDescending: false }, "", slicer);
    const plain = many.map((_, index) => index).sort((a, b) => (many[a]?.size ?? 0) - (many[b]?.size ?? 0) || a - b);
    expect([...sorted]).toEqual(plain);
    expect(pauses).toBeGreaterThan(1);
  });

  test("is abandoned when no view waits for it", async () => {
    const leaving = new AbortController();
    leaving.abort();
    const many = Array.from({ length: 100_000 }, (_, index) => item(`${index}`, { size: index }));
    const ordering = orderOf(
      many,
      { key: "size", isDescending: true },
      "",
      new Slicer({ signal: leaving.signal, pause: noPause }),
    );
    expect(await throwing(ordering)).toThrow();
  });
});

test("modes are written as ls writes them", () => {
  expect(modeText("directory", "0755")).toBe("drwxr-xr-x");
  expect(modeText("file", "4755")).toBe("-rwsr-xr-x");
  expect(modeText("file", "6640")).toBe("-rwSr-S---");
  expect(modeText("directory", "1777")).toBe("drwxrwxrwt");
  expect(modeText("symlink", "0777")).toBe("lrwxrwxrwx");
});
