/** A string that is too long to be encoded as JSON in one piece. */
export class LongText {
  /** can be read once */
  readonly pieces: AsyncIterable<string>;

  constructor(pieces: AsyncIterable<string>) {
    this.pieces = pieces;
  }
}

/**
 * Encodes a value as JSON in pieces. The members of an object are encoded one by one, and so are the items of an async
 * iterable, which becomes an array. A `LongText` becomes a string. Any other value is one piece.
 */
export async function* jsonPieces(value: unknown): AsyncGenerator<string, void, undefined> {
  if (value instanceof LongText) yield* textPieces(value);
  else if (isAsyncIterable(value)) yield* arrayPieces(value);
  else if (isObject(value)) yield* objectPieces(value);
  else yield JSON.stringify(value);
}

/** Maps each item of an iterable. */
export async function* mapped<T, U>(
  items: AsyncIterable<T> | Iterable<T>,
  map: (item: T) => U,
): AsyncGenerator<U, void, undefined> {
  for await (const item of items) yield map(item);
}

async function* textPieces({ pieces }: LongText): AsyncGenerator<string, void, undefined> {
  yield '"';
  for await (const piece of pieces) yield JSON.stringify(piece).slice(1, -1);
  yield '"';
}

async function* arrayPieces(items: AsyncIterable<unknown>): AsyncGenerator<string, void, undefined> {
  yield "[";
  let separator = "";
  for await (const item of items) {
    yield separator + JSON.stringify(item);
    separator = ",";
  }
  yield "]";
}

async function* objectPieces(members: Record<string, unknown>): AsyncGenerator<string, void, undefined> {
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

function isAsyncIterable(value: unknown): value is AsyncIterable<unknown> {
  return typeof value === "object" && value !== null && Symbol.asyncIterator in value;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype;
}
