import { expect, test } from "bun:test";
import fc from "fast-check";
import {
  JSON_DEPTH_MAX,
  JSON_NAMES_COUNT_MAX,
  JSON_VALUES_COUNT_MAX,
  JsonStructure,
} from "../../../src/api/body/json-structure.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import { seedOfTests } from "../../support/random.ts";

/** The error of a text that arrives in pieces of that many bytes; null without an error. */
function refusal(text: string, pieceBytes = 65_536): string | null {
  const bytes = Buffer.from(text, "utf8");
  const structure = new JsonStructure();
  try {
    for (let at = 0; at < bytes.length; at += pieceBytes) structure.take(bytes.subarray(at, at + pieceBytes));
    return null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return `${error.code}: ${error.message}`;
  }
}

const NAMES = `validation_error: the body must not have more named values than ${JSON_NAMES_COUNT_MAX}`;
const VALUES = `validation_error: the body must not have more values than ${JSON_VALUES_COUNT_MAX}`;
const DEPTH = `validation_error: the body must not be nested deeper than ${JSON_DEPTH_MAX}`;

const objectOf = (count: number) => JSON.stringify(Object.fromEntries(Array.from({ length: count }, (_, n) => [n, 0])));
const arrayOf = (count: number) => JSON.stringify(Array.from({ length: count }, () => 0));
const nested = (depth: number) => `${'[{"a":'.repeat(depth / 2)}1${"}]".repeat(depth / 2)}`;

test("accepts values, names and levels up to the limit, and refuses one more", () => {
  expect(refusal(objectOf(JSON_NAMES_COUNT_MAX))).toBeNull();
  expect(refusal(objectOf(JSON_NAMES_COUNT_MAX + 1))).toBe(NAMES);
  expect(refusal(arrayOf(JSON_VALUES_COUNT_MAX))).toBeNull();
  expect(refusal(arrayOf(JSON_VALUES_COUNT_MAX + 1))).toBe(VALUES);
  expect(refusal(nested(JSON_DEPTH_MAX))).toBeNull();
  expect(refusal(nested(JSON_DEPTH_MAX + 2))).toBe(DEPTH);
});

test("refuses text that is not JSON before it is complete", () => {
  expect(refusal("[".repeat(JSON_DEPTH_MAX + 1))).toBe(DEPTH);
  expect(refusal(",".repeat(JSON_VALUES_COUNT_MAX + 1))).toBe(VALUES);
  expect(refusal("[],".repeat(JSON_VALUES_COUNT_MAX))).toBe(VALUES);
});

test("does not count the content of strings as structure, wherever pieces end", () => {
  const text = JSON.stringify({ a: `${'[{:,"\\'.repeat(JSON_VALUES_COUNT_MAX)}\\`, 'b"': "é" });
  for (const pieceBytes of [1, 2, 3, 7, 65_536]) expect(refusal(text, pieceBytes)).toBeNull();
});

/** Memory that is counted for a text, in `bytes`. */
function memoryOf(text: string, pieceBytes: number): number {
  const bytes = Buffer.from(text, "utf8");
  const structure = new JsonStructure();
  for (let at = 0; at < bytes.length; at += pieceBytes) structure.take(bytes.subarray(at, at + pieceBytes));
  return structure.memoryBytes;
}

/** The number of values and names in a value; an empty array or object counts as one with an item. */
function countOf(value: unknown): number {
  if (typeof value !== "object" || value === null) return 0;
  const items = Array.isArray(value) ? value : Object.values(value);
  const names = Array.isArray(value) ? 0 : items.length;
  return Math.max(items.length, 1) + names + items.reduce<number>((sum, item) => sum + countOf(item), 0);
}

test(`counts the values and names of any JSON (seed ${seedOfTests()})`, async () => {
  await fc.assert(
    fc.property(fc.jsonValue(), fc.integer({ min: 1, max: 9 }), (value, pieceBytes) => {
      expect(memoryOf(JSON.stringify(value), pieceBytes)).toBe(64 * countOf(value));
    }),
    { seed: seedOfTests() },
  );
});
