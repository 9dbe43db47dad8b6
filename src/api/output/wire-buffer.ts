import { ESCAPED_BYTES_MAX, escapeAscii } from "./json-escape.ts";

const BUFFER_BYTES_MIN = 131_072;

/**
 * A reusable buffer in which events are encoded for the wire. Strings would be several copies of the text, of which some
 * runs write a lot.
 */
export class WireBuffer {
  #bytes = Buffer.allocUnsafeSlow(BUFFER_BYTES_MIN);
  #used = 0;

  /** Forgets what was written. */
  clear(): void {
    this.#used = 0;
  }

  get isEmpty(): boolean {
    return this.#used === 0;
  }

  /** Makes room for `headBytes` and a payload, whichever way it is written. To be called before both are written. */
  reserve(headBytes: number, payload: Uint8Array): void {
    const wantedBytes = this.#used + headBytes + ESCAPED_BYTES_MAX * payload.byteLength;
    if (wantedBytes <= this.#bytes.byteLength) return;
    const larger = Buffer.allocUnsafeSlow(Math.max(wantedBytes, 2 * this.#bytes.byteLength));
    this.#bytes.copy(larger, 0, 0, this.#used);
    this.#bytes = larger;
  }

  write(ascii: string): void {
    this.#used += this.#bytes.write(ascii, this.#used, "latin1");
  }

  /** Writes bytes as they are. */
  copy(bytes: Uint8Array): void {
    this.#bytes.set(bytes, this.#used);
    this.#used += bytes.byteLength;
  }

  /** Writes ASCII as the inside of a JSON string. */
  escape(ascii: Uint8Array): void {
    this.#used = escapeAscii(ascii, this.#bytes, this.#used);
  }

  /** Writes bytes in base64. */
  base64(bytes: Uint8Array): void {
    this.write(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64"));
  }

  /** A copy of what was written. */
  bytes(): Uint8Array<ArrayBuffer> {
    return new Uint8Array(this.#bytes.subarray(0, this.#used));
  }

  /** The written bytes, as UTF-8 text. */
  text(): string {
    return this.#bytes.toString("utf8", 0, this.#used);
  }
}
