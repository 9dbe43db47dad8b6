const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;
const BRACE_OPEN = 0x7b;
const BRACE_CLOSE = 0x7d;
const BRACKET_OPEN = 0x5b;
const BRACKET_CLOSE = 0x5d;

/** Objects in an array in an object: what is an item begins at this depth. */
const ITEM_DEPTH = 3;
/** Largest item, and largest object without its items, in `bytes`. */
const BYTES_MAX = 1_048_576;

/**
 * Reads the items of an array in an object, such as `{"path": "/", "items": [{…}, {…}]}`, while the JSON arrives. Items are
 * objects; the rest of the object is known at the end.
 */
export class JsonItems<Item> {
  /** bytes of an item that has not ended */
  #rest: Uint8Array = new Uint8Array(0);
  /** the object without the items */
  readonly #frame: Uint8Array[] = [];
  #frameBytes = 0;
  #depth = 0;
  #isText = false;
  #isAfterItem = false;
  #isEscaped = false;

  /**
   * The items that end in a piece, which is kept as it is.
   * @throws SyntaxError where it is no JSON; RangeError for an item over 1 MiB
   */
  read(piece: Uint8Array): Item[] {
    const items: Item[] = [];
    const bytes = joined(this.#rest, piece);
    const isInside = this.#depth >= ITEM_DEPTH;
    let itemAt = 0;
    let frameAt = isInside ? bytes.byteLength : 0;
    for (let at = this.#rest.byteLength; at < bytes.byteLength; at += 1) {
      const step = this.#step(bytes[at] ?? 0);
      if (step === 1 && this.#depth === ITEM_DEPTH) {
        this.#keep(bytes.subarray(frameAt, at));
        itemAt = at;
      } else if (step === -1 && this.#depth === ITEM_DEPTH - 1) {
        items.push(JSON.parse(new TextDecoder().decode(bytes.subarray(itemAt, at + 1))) as Item);
        frameAt = at + 1;
        this.#isAfterItem = true;
      }
    }
    const goesOn = this.#depth >= ITEM_DEPTH;
    if (!goesOn) this.#keep(bytes.subarray(frameAt));
    this.#rest = goesOn ? bytes.slice(itemAt) : new Uint8Array(0);
    if (Math.max(this.#rest.byteLength, this.#frameBytes) > BYTES_MAX)
      throw new RangeError("an item of the answer is too long");
    return items;
  }

  /** The object without the items of its array. @throws SyntaxError where the answer broke off */
  end(): Readonly<Record<string, unknown>> {
    const whole = this.#frame.reduce<Uint8Array>(joined, new Uint8Array(0));
    return JSON.parse(new TextDecoder().decode(whole)) as Readonly<Record<string, unknown>>;
  }

  /** Whether a byte opens (1) or closes (-1) an object or array. */
  #step(byte: number): -1 | 0 | 1 {
    if (this.#isText) {
      if (this.#isEscaped) this.#isEscaped = false;
      else if (byte === BACKSLASH) this.#isEscaped = true;
      else if (byte === QUOTE) this.#isText = false;
      return 0;
    }
    if (byte === QUOTE) this.#isText = true;
    if (byte === BRACE_OPEN || byte === BRACKET_OPEN) {
      this.#depth += 1;
      return 1;
    }
    if (byte !== BRACE_CLOSE && byte !== BRACKET_CLOSE) return 0;
    this.#depth -= 1;
    return -1;
  }

  /** Keeps what is not an item, but for the comma behind one. */
  #keep(bytes: Uint8Array): void {
    if (bytes.byteLength === 0) return;
    const rest = this.#isAfterItem && bytes[0] === COMMA ? bytes.slice(1) : bytes.slice();
    this.#isAfterItem = false;
    this.#frame.push(rest);
    this.#frameBytes += rest.byteLength;
  }
}

function joined(a: Uint8Array, b: Uint8Array): Uint8Array {
  if (a.byteLength === 0) return b;
  const both = new Uint8Array(a.byteLength + b.byteLength);
  both.set(a);
  both.set(b, a.byteLength);
  return both;
}
