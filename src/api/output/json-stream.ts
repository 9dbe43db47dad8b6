import { ESCAPED_BYTES_MAX, escapeAscii } from "./json-escape.ts";

/** A part of a JSON text: a string, or its bytes, which are valid until the next part is requested. */
export type JsonPart = string | Uint8Array;

/** Items of an array are joined into pieces of this length, in `characters`: a piece costs more time than most items. */
const PIECE_CHARACTERS_MIN = 16_384;

/** Bytes that are too long to be encoded as one JSON string. */
export class LongText {
  /** can be read once; each is valid until the next one is requested */
  readonly pieces: AsyncIterable<Buffer>;
  readonly encoding: "ascii" | "base64";

  /** @param pieces for base64, all but the last of a multiple of three bytes */
  constructor(pieces: AsyncIterable<Buffer>, encoding: "ascii" | "base64") {
    this.pieces = pieces;
    this.encoding = encoding;
  }
}

/** Items that are made while they are encoded. */
type Items = AsyncIterable<unknown> | Iterable<unknown>;

/**
 * Encodes a value as JSON in pieces. The members of an object are encoded one by one, and so are the items of an iterable
 * other than an array, which becomes an array. A `LongText` becomes a string. Any other value is one piece.
 */
export async function* jsonPieces(value: unknown): AsyncGenerator<JsonPart, void, undefined> {
  if (value instanceof LongText) yield* textPieces(value);
  else if (isItems(value)) yield* arrayPieces(value);
  else if (isObject(value)) yield* objectPieces(value);
  else yield JSON.stringify(value);
}

/**
 * Encodes an object as lines: one for each item of the member that `jsonPieces` encodes item by item, then one with the type
 * `end` for the other members.
 */
export async function* linePieces(value: Readonly<Record<string, unknown>>): AsyncGenerator<string, void, undefined> {
  const end: Record<string, unknown> = { type: "end" };
  let piece = "";
  for (const [name, member] of Object.entries(value)) {
    if (!isItems(member)) {
      end[name] = member;
      continue;
    }
    for await (const item of member) {
      piece += `${JSON.stringify(item)}\n`;
      if (piece.length < PIECE_CHARACTERS_MIN) continue;
      yield piece;
      piece = "";
    }
  }
  yield `${piece}${JSON.stringify(end)}\n`;
}

/** Maps each item of an iterable. */
export async function* mapped<T, U>(
  items: AsyncIterable<T> | Iterable<T>,
  map: (item: T) => U,
): AsyncGenerator<U, void, undefined> {
  for await (const item of items) yield map(item);
}

/** The same without a wait for each item of an array. */
export function mappedItems<T, U>(
  items: AsyncIterable<T> | readonly T[],
  map: (item: T) => U,
): AsyncIterable<U> | Iterable<U> {
  return Symbol.asyncIterator in items ? mapped(items, map) : items.values().map(map);
}

async function* textPieces({ pieces, encoding }: LongText): AsyncGenerator<JsonPart, void, undefined> {
  let escaped = Buffer.allocUnsafeSlow(0);
  yield '"';
  for await (const piece of pieces) {
    if (encoding === "base64") {
      yield piece.toString("base64");
      continue;
    }
    const bytesMax = ESCAPED_BYTES_MAX * piece.byteLength;
    if (escaped.byteLength < bytesMax) escaped = Buffer.allocUnsafeSlow(bytesMax);
    yield escaped.subarray(0, escapeAscii(piece, escaped, 0));
  }
  yield '"';
}

async function* arrayPieces(items: Items): AsyncGenerator<string, void, undefined> {
  const iterator = Symbol.asyncIterator in items ? items[Symbol.asyncIterator]() : items[Symbol.iterator]();
  await using _end = { [Symbol.asyncDispose]: async () => void (await iterator.return?.()) };
  let piece = "[";
  let separator = "";
  for (;;) {
    const next = iterator.next();
    // A wait takes longer than most items.
    const step = next instanceof Promise ? await next : next;
    if (step.done === true) break;
    piece += separator + JSON.stringify(step.value);
    separator = ",";
    if (piece.length < PIECE_CHARACTERS_MIN) continue;
    yield piece;
    piece = "";
  }
  yield `${piece}]`;
}

async function* objectPieces(members: Record<string, unknown>): AsyncGenerator<JsonPart, void, undefined> {
  yield "{";
  let separator = "";
  for (const [name, member] of Object.entries(members)) {
    if (member === undefined) continue;
    yield `${separator}${JSON.stringify(name)}:`;
    yield* jsonPieces(member);
    separator = ",";
  }
  yield "}";
}

function isItems(value: unknown): value is Items {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  return Symbol.asyncIterator in value || Symbol.iterator in value;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype;
}
