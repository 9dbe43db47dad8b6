/** Bytes that a ClientHello and its records may have; larger ones are refused. */
export const HELLO_BYTES_MAX = 16_384;

const RECORD_HEADER_BYTES = 5;
/** Longest plain record (RFC 8446, 5.1). */
const RECORD_BYTES_MAX = 16_384;
/** Clients send one record, or a few. */
const RECORDS_COUNT_MAX = 256;
const TYPE = { handshake: 22, clientHello: 1, serverName: 0, hostName: 0 } as const;
const HANDSHAKE_HEADER_BYTES = 4;
/** legacy_version and random */
const FIXED_BYTES = 34;

/**
 * The meaning of a client's first bytes: the server name; `more` when the ClientHello is incomplete, `none` when it names no server, and
 * `malformed` when the bytes are something else or are too many.
 */
export type Hello = { readonly serverName: string } | "more" | "none" | "malformed";

/**
 * Reads the server name of a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3), which may be split over records and segments.
 * With an encrypted ClientHello this is the outer name, by which the connection is routed. It reads the
 * bytes again only when enough have arrived to complete the ClientHello, so that small pieces cost little.
 */
export class HelloReader {
  #buffer: Uint8Array | null = null;
  #heldBytes = 0;
  /** no ClientHello can be whole with fewer bytes */
  #neededBytes = 1;

  /** A copy of the bytes that were pushed while the result was `more`. */
  get held(): Uint8Array {
    return this.#buffer?.subarray(0, this.#heldBytes) ?? new Uint8Array(0);
  }

  /** Adds the next bytes of the client. Must not be called after another result than `more`. */
  push(bytes: Uint8Array): Hello {
    const count = this.#heldBytes + bytes.byteLength;
    if (count >= this.#neededBytes) {
      const start = this.#heldBytes === 0 ? bytes : Buffer.concat([this.held, bytes]);
      const result = readStart(start.subarray(0, HELLO_BYTES_MAX));
      if (typeof result !== "number") return result;
      this.#neededBytes = Math.min(HELLO_BYTES_MAX, result);
      if (count >= HELLO_BYTES_MAX) return "malformed";
    }
    this.#buffer ??= new Uint8Array(HELLO_BYTES_MAX);
    this.#buffer.set(bytes, this.#heldBytes);
    this.#heldBytes = count;
    return "more";
  }
}

/** The meaning of the bytes; when they are incomplete, the least number that is needed. */
function readStart(bytes: Uint8Array): Exclude<Hello, "more"> | number {
  const joined = joinRecords(bytes);
  if (joined === null) return "malformed";
  const { handshake, missingHeaderBytes } = joined;
  const [type, high = 0, middle = 0, low = 0] = handshake;
  if (type !== undefined && type !== TYPE.clientHello) return "malformed";
  const length = (high << 16) | (middle << 8) | low;
  const isLengthKnown = handshake.byteLength >= HANDSHAKE_HEADER_BYTES;
  if (isLengthKnown && length > HELLO_BYTES_MAX) return "malformed";
  const lackedBytes = HANDSHAKE_HEADER_BYTES + (isLengthKnown ? length : 0) - handshake.byteLength;
  // At best, the missing bytes are in one record.
  if (!isLengthKnown || lackedBytes > 0) return bytes.byteLength + missingHeaderBytes + Math.max(1, lackedBytes);
  const name = serverName(new Reader(handshake.subarray(HANDSHAKE_HEADER_BYTES, HANDSHAKE_HEADER_BYTES + length)));
  if (name === undefined) return "malformed";
  return name === null ? "none" : { serverName: name };
}

interface Joined {
  readonly handshake: Uint8Array;
  /** bytes of a record's header that come before the next byte of the handshake */
  readonly missingHeaderBytes: number;
}

/** The payloads of the handshake records at the start; null when there is another kind of record, or too many. */
function joinRecords(bytes: Uint8Array): Joined | null {
  const payloads: Uint8Array[] = [];
  let at = 0;
  while (at < bytes.byteLength) {
    const [type, major, , high = 0, low = 0] = bytes.subarray(at, at + RECORD_HEADER_BYTES);
    if (type !== TYPE.handshake || (major !== undefined && major !== 3)) {
      // Bytes after a whole ClientHello are ignored.
      return payloads.length > 0 && isComplete(payloads)
        ? { handshake: Buffer.concat(payloads), missingHeaderBytes: 0 }
        : null;
    }
    if (at + RECORD_HEADER_BYTES > bytes.byteLength) break;
    const length = (high << 8) | low;
    if (length === 0 || length > RECORD_BYTES_MAX || payloads.length === RECORDS_COUNT_MAX) return null;
    payloads.push(bytes.subarray(at + RECORD_HEADER_BYTES, at + RECORD_HEADER_BYTES + length));
    at += RECORD_HEADER_BYTES + length;
  }
  const isWithinRecord = at > bytes.byteLength;
  const missingHeaderBytes = isWithinRecord ? 0 : at + RECORD_HEADER_BYTES - bytes.byteLength;
  return { handshake: Buffer.concat(payloads), missingHeaderBytes };
}

function isComplete(payloads: readonly Uint8Array[]): boolean {
  const joined = Buffer.concat(payloads);
  return (
    joined.byteLength >= HANDSHAKE_HEADER_BYTES && joined.byteLength >= HANDSHAKE_HEADER_BYTES + joined.readUIntBE(1, 3)
  );
}

/** The name in lower case; null when the hello has none; undefined when it is malformed. */
function serverName(hello: Reader): string | null | undefined {
  hello.skip(FIXED_BYTES);
  hello.vector(1);
  hello.vector(2);
  hello.vector(1);
  // A client of TLS 1.2 may send no extensions.
  if (hello.isEmpty && !hello.isBroken) return null;
  const extensions = hello.vector(2);
  if (hello.isBroken || !hello.isEmpty) return undefined;
  let name: string | null | undefined = null;
  while (!extensions.isEmpty && !extensions.isBroken) {
    const type = extensions.number(2);
    const content = extensions.vector(2);
    if (type !== TYPE.serverName || extensions.isBroken) continue;
    // Two names could mean one for us and one for the server.
    if (name !== null) return undefined;
    name = nameOf(content);
    if (name === undefined) return undefined;
  }
  return extensions.isBroken ? undefined : name;
}

function nameOf(extension: Reader): string | undefined {
  const list = extension.vector(2);
  const type = list.number(1);
  const name = list.vector(2);
  const isWhole = !list.isBroken && list.isEmpty && !extension.isBroken && extension.isEmpty;
  if (!isWhole || type !== TYPE.hostName) return undefined;
  const text = Buffer.from(name.rest).toString("latin1");
  return /^[A-Za-z0-9._-]{1,253}$/.test(text) ? text.toLowerCase() : undefined;
}

/** Reads numbers and vectors. Reading beyond the end gives zeros and empty vectors, and marks the reader as broken. */
class Reader {
  #bytes: Uint8Array;
  isBroken = false;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  get isEmpty(): boolean {
    return this.#bytes.byteLength === 0;
  }

  get rest(): Uint8Array {
    return this.#bytes;
  }

  skip(count: number): void {
    this.#take(count);
  }

  number(width: number): number {
    return this.#take(width).reduce((value, byte) => value * 256 + byte, 0);
  }

  /** The bytes after a length of `width` bytes. */
  vector(width: number): Reader {
    const inner = new Reader(this.#take(this.number(width)));
    inner.isBroken = this.isBroken;
    return inner;
  }

  #take(count: number): Uint8Array {
    if (count > this.#bytes.byteLength) this.isBroken = true;
    const bytes = this.isBroken ? new Uint8Array(0) : this.#bytes.subarray(0, count);
    this.#bytes = this.#bytes.subarray(bytes.byteLength);
    return bytes;
  }
}
