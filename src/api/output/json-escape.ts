/** Largest number of characters of a byte in JSON: `\u001b`. */
export const ESCAPED_BYTES_MAX = 6;

const BACKSLASH = 0x5c;
const CONTROLS_COUNT = 0x20;
/** The long escapes of JSON of all control characters, one after another. */
const LONG_ESCAPES = Buffer.from(
  Array.from({ length: CONTROLS_COUNT }, (_, byte) => `\\u${byte.toString(16).padStart(4, "0")}`).join(""),
);
/** Second character of the short escapes of JSON, by byte; 0: none. */
const SHORT_ESCAPES = new Uint8Array(256);
for (const [byte, letter] of ["\bb", "\tt", "\nn", "\ff", "\rr", '""', "\\\\"].map((pair) => Buffer.from(pair))) {
  SHORT_ESCAPES[byte ?? 0] = letter ?? 0;
}

/**
 * Writes ASCII to `target` at `offset` as `JSON.stringify` does, without the quotes, and returns the offset of its end.
 * Strings would be several copies of a long text. The target must have `ESCAPED_BYTES_MAX` bytes of room for each byte.
 */
export function escapeAscii(ascii: Uint8Array, target: Buffer, offset: number): number {
  let at = offset;
  for (let from = 0; from < ascii.length; from++) {
    const byte = ascii[from] ?? 0;
    const letter = SHORT_ESCAPES[byte] ?? 0;
    if (letter !== 0) {
      target[at++] = BACKSLASH;
      target[at++] = letter;
    } else if (byte < CONTROLS_COUNT) {
      for (let place = 0; place < ESCAPED_BYTES_MAX; place++) {
        target[at++] = LONG_ESCAPES[ESCAPED_BYTES_MAX * byte + place] ?? 0;
      }
    } else target[at++] = byte;
  }
  return at;
}
