/** A string of an answer that is too long to be made into JSON in one piece. */
export class LongText {
  /** good for one reading */
  readonly pieces: AsyncIterable<string>;

  constructor(pieces: AsyncIterable<string>) {
    this.pieces = pieces;
  }
}

/**
 * The JSON of a value in pieces: of an object each member by itself, of an async iterable, which becomes an array, each
 * item. A `LongText` becomes a string. Everything else is made into JSON at once.
 */
export async function* jsonPieces(value: unknown): AsyncGenerator<string, void, undefined> {
  if (value instanceof LongText) yield* textPieces(value);
  else if (isAsyncIterable(value)) yield* arrayPieces(value);
  else if (isObject(value)) yield* objectPieces(value);
  else yield JSON.stringify(value);
}

/** What `map` makes of each item. */
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
