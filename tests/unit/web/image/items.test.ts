import { describe, expect, test } from "bun:test";
import { itemsOf } from "../../../../src/web/image/items.ts";
import { failureOf } from "../../../support/failures.ts";

/** Reads an answer in pieces of that many bytes. */
async function read(text: string, size: number): Promise<{ items: unknown[]; end: unknown }> {
  const bytes = new TextEncoder().encode(text);
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
      controller.close();
    },
  });
  const items: unknown[] = [];
  let last: unknown = null;
  for await (const { items: more, end } of itemsOf(new Response(body), AbortSignal.any([]))) {
    items.push(...more);
    last = end;
  }
  return { items, end: last };
}

const ITEMS = [{ name: 'br{ack]et "quoted\\', type: "file" }, { name: "é🌳", nested: [{}] }, {}];
const END = { type: "end", truncated_by: ["limit"] };
const TEXT = [...ITEMS, END].map((row) => `${JSON.stringify(row)}\n`).join("");

describe("items of an arriving answer", () => {
  test("are the same in pieces of any size, and so is the end", async () => {
    for (const size of [1, 2, 3, 7, 64, 10_000]) expect(await read(TEXT, size)).toEqual({ items: ITEMS, end: END });
  });

  test("may be few or many", async () => {
    expect(await read('{"type":"end","path":"/"}\n', 4)).toEqual({ items: [], end: { type: "end", path: "/" } });
    expect((await read(`{"a":1}\n`.repeat(1000) + TEXT, 100_000)).items).toHaveLength(1003);
  });

  test("of an answer that broke off are an error", async () => {
    for (const text of [TEXT.slice(0, -1), TEXT.slice(0, -20), '{"a":1}\n', ""]) {
      expect(await failureOf(read(text, 8))).toMatchObject({ name: "Problem", code: "unreachable" });
    }
  });
});
