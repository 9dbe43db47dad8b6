/** Methods of newer runtimes, which are much faster. */
interface Native {
  readonly fromBase64?: (text: string) => Uint8Array<ArrayBuffer>;
  readonly prototype: { readonly toBase64?: (this: Uint8Array) => string };
}
const NATIVE = Uint8Array as unknown as Native;
/** Bytes in one call of `String.fromCharCode`, whose arguments are on the stack. */
const PIECE_BYTES = 8192;

/** The bytes of standard base64. @throws an error of the runtime for any other text */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  if (NATIVE.fromBase64 !== undefined) return NATIVE.fromBase64(text);
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Standard base64 of bytes. */
export function toBase64(bytes: Uint8Array): string {
  const { toBase64: native } = NATIVE.prototype;
  if (native !== undefined) return native.call(bytes);
  const pieces: string[] = [];
  for (let at = 0; at < bytes.byteLength; at += PIECE_BYTES) {
    pieces.push(String.fromCharCode(...bytes.subarray(at, at + PIECE_BYTES)));
  }
  return btoa(pieces.join(""));
}
