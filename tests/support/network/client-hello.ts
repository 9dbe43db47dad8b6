/** Parts of TLS messages, as bytes. */
export const u8 = (value: number): Buffer => Buffer.of(value);
export const u16 = (value: number): Buffer => Buffer.of(value >> 8, value & 0xff);
export const u24 = (value: number): Buffer => Buffer.of(value >> 16, (value >> 8) & 0xff, value & 0xff);
export const v8 = (content: Buffer): Buffer => Buffer.concat([u8(content.byteLength), content]);
export const v16 = (content: Buffer): Buffer => Buffer.concat([u16(content.byteLength), content]);
export const extension = (type: number, content: Buffer): Buffer => Buffer.concat([u16(type), v16(content)]);

/** A value that clients send to keep servers tolerant (RFC 8701). */
export const GREASE = 0x2a2a;
const SERVER_NAME = 0;
const RECORD_BYTES_MAX = 16_384;

/** The extension with the server's name. */
export const named = (name: string, type = 0): Buffer =>
  extension(SERVER_NAME, v16(Buffer.concat([u8(type), v16(Buffer.from(name))])));

/** A ClientHello; null omits the extensions. */
export function clientHello(extensions: readonly Buffer[] | null): Buffer {
  const body = Buffer.concat([
    ...[u16(0x0303), Buffer.alloc(32, 7), v8(Buffer.alloc(32, 9)), v16(Buffer.concat([u16(GREASE), u16(0x1301)]))],
    ...[v8(Buffer.of(0)), ...(extensions === null ? [] : [v16(Buffer.concat(extensions))])],
  ]);
  return Buffer.concat([u8(1), u24(body.byteLength), body]);
}

/** A message in records of at most `size` bytes. */
export function records(message: Buffer, size = RECORD_BYTES_MAX): Buffer {
  const pieces: Buffer[] = [];
  for (let at = 0; at < message.byteLength; at += size) {
    pieces.push(u8(22), u16(0x0301), v16(message.subarray(at, at + size)));
  }
  return Buffer.concat(pieces);
}

/** The first message of a client to a server of that name. */
export function helloTo(name: string): Buffer {
  const others = [extension(GREASE, Buffer.of(0)), extension(16, Buffer.from("h2"))];
  return records(clientHello([...others, named(name), extension(GREASE + 1, u8(1))]));
}
