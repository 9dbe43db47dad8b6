/** The text of one row of a hex view. */
export interface HexRow {
  readonly hex: readonly string[];
  readonly characters: string;
}

/** @param bytes of the row */
export function hexRow(bytes: Uint8Array): HexRow {
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0"));
  const characters = Array.from(bytes, (byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·")).join(
    "",
  );
  return { hex, characters };
}

/** A typed offset: 4096, 0x1000 or 1000h; null for anything else. */
export function parseOffset(text: string): number | null {
  const plain = text.trim().replaceAll(/[ _,]/g, "");
  const hex = /^0x([0-9a-f]{1,13})$/i.exec(plain)?.[1] ?? /^([0-9a-f]{1,13})h$/i.exec(plain)?.[1];
  if (hex !== undefined) return Number.parseInt(hex, 16);
  return /^\d{1,15}$/.test(plain) ? Number(plain) : null;
}

/** Hexadecimal digits of an offset, as many as the last offset of the file needs, in groups of four. */
export function offsetText(offset: number, size: number): string {
  const digits = Math.max(8, Math.ceil(Math.max(0, size - 1).toString(16).length / 4) * 4);
  return offset
    .toString(16)
    .padStart(digits, "0")
    .replaceAll(/(?<=^(?:.{4})+)(?=.)/g, " ");
}

/**
 * A cache of parts of a file, of equal size. The least recently used part is dropped first.
 */
export class Parts {
  readonly #parts = new Map<number, Uint8Array>();
  readonly #countMax: number;

  constructor(countMax: number) {
    this.#countMax = countMax;
  }

  get(index: number): Uint8Array | undefined {
    const part = this.#parts.get(index);
    if (part === undefined) return undefined;
    this.#parts.delete(index);
    this.#parts.set(index, part);
    return part;
  }

  set(index: number, part: Uint8Array): void {
    this.#parts.delete(index);
    this.#parts.set(index, part);
    const oldest = this.#parts.keys().next().value;
    if (this.#parts.size > this.#countMax && oldest !== undefined) this.#parts.delete(oldest);
  }
}
