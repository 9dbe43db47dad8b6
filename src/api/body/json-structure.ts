import { ApiError } from "../../domain/errors.ts";

/** Limit of the values in a JSON body: the items of its arrays and the fields of its objects, at any depth. */
export const JSON_VALUES_COUNT_MAX = 131_072;
/** Limit of the values with names, because the parser is slow with many names. */
export const JSON_NAMES_COUNT_MAX = 16_384;
export const JSON_DEPTH_MAX = 64;

/** Memory of a value, and of a name, whatever its length, in `bytes`. */
const VALUE_BYTES = 64;

/** Meanings of a byte of JSON outside of strings; most bytes have none. */
const Meaning = { none: 0, quote: 1, comma: 2, colon: 3, opening: 4, closing: 5 } as const;
const MEANINGS = new Uint8Array(256);
for (const [characters, meaning] of [
  ['"', Meaning.quote],
  [",", Meaning.comma],
  [":", Meaning.colon],
  ["[{", Meaning.opening],
  ["]}", Meaning.closing],
] as const) {
  for (const character of characters) MEANINGS[character.charCodeAt(0)] = meaning;
}
const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/**
 * Counts the values of a JSON text while it arrives, before it is parsed: parsing many values blocks the event loop and
 * needs many times the memory of the text. Malformed JSON is counted in the same way.
 */
export class JsonStructure {
  #values = 0;
  #names = 0;
  #depth = 0;
  #isString = false;
  /** in a string, after a backslash: the next byte is literal */
  #isEscaped = false;

  /** Estimated memory of the values, without the text itself, in `bytes`. */
  get memoryBytes(): number {
    return (this.#values + this.#names) * VALUE_BYTES;
  }

  /** Reads the next bytes of the text. @throws ApiError `validation_error` when a limit is passed */
  take(bytes: Uint8Array): void {
    for (let at = 0; at < bytes.length; ) at = this.#isString ? this.#string(bytes, at) : this.#between(bytes, at);
  }

  /** Skips the rest of a string, and returns the index after it. */
  #string(bytes: Uint8Array, start: number): number {
    let at = this.#isEscaped ? start + 1 : start;
    for (; at < bytes.length && bytes[at] !== QUOTE; at++) if (bytes[at] === BACKSLASH) at += 1;
    // The last byte was a backslash.
    this.#isEscaped = at > bytes.length;
    this.#isString = at >= bytes.length;
    return at + 1;
  }

  /** Counts the values up to the next string, and returns the index of its first byte. */
  #between(bytes: Uint8Array, start: number): number {
    let at = start;
    while (at < bytes.length && MEANINGS[bytes[at] ?? 0] === Meaning.none) at += 1;
    if (at < bytes.length) this.#count(MEANINGS[bytes[at] ?? 0]);
    return at + 1;
  }

  #count(meaning: number | undefined): void {
    switch (meaning) {
      case Meaning.quote:
        this.#isString = true;
        return;
      case Meaning.closing:
        this.#depth -= 1;
        return;
      case Meaning.colon:
        this.#names += 1;
        if (this.#names > JSON_NAMES_COUNT_MAX) throw over("have more named values than", JSON_NAMES_COUNT_MAX);
        return;
      case Meaning.opening:
        this.#depth += 1;
        if (this.#depth > JSON_DEPTH_MAX) throw over("be nested deeper than", JSON_DEPTH_MAX);
        break;
      default:
    }
    this.#values += 1;
    if (this.#values > JSON_VALUES_COUNT_MAX) throw over("have more values than", JSON_VALUES_COUNT_MAX);
  }
}

function over(what: string, limit: number): ApiError {
  return new ApiError("validation_error", `the body must not ${what} ${limit}`, { field: "", limit });
}
