/** A message that breaks the rules of HTTP/1.1, or exceeds a bound. */
export class MessageError extends Error {
  override readonly name = "MessageError";
  /** status of the answer when a client sent the message */
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

const LF = 10;
const NOTHING = new Uint8Array();
/** A text without control characters except the tab: no NUL, and no CR or LF alone. */
const lineExpression = /^[\t\x20-\x7e\x80-\xff]*$/;

/** Reads lines and pieces from the bytes of one direction of a connection. */
export class ByteReader {
  readonly #source: AsyncIterator<Uint8Array, unknown>;
  #rest: Uint8Array = NOTHING;

  constructor(source: AsyncIterator<Uint8Array, unknown>) {
    this.#source = source;
  }

  /** Whether the next read must wait. */
  get isEmpty(): boolean {
    return this.#rest.byteLength === 0;
  }

  /** Whether the next line is here already. */
  get hasLine(): boolean {
    return this.#rest.includes(LF);
  }

  /** Waits for a byte. Resolves to false at the end of the bytes. @throws as the source does */
  async hasMore(): Promise<boolean> {
    while (this.#rest.byteLength === 0) {
      const { done, value } = await this.#source.next();
      if (done === true) return false;
      this.#rest = value;
    }
    return true;
  }

  /** The next bytes, at least one and at most `bytesMax`; null at the end. @throws as the source does */
  async some(bytesMax = Number.POSITIVE_INFINITY): Promise<Uint8Array | null> {
    return (await this.hasMore()) ? this.#take(bytesMax) : null;
  }

  /**
   * The next line as Latin-1, without its CR and LF.
   * @param bytesMax largest length, with CR and LF
   * @throws MessageError for a longer line, a control character, or when the bytes end before the line; as the source does
   */
  async line(bytesMax: number): Promise<string> {
    const pieces: Uint8Array[] = [];
    for (let bytes = 0; ; ) {
      if (!(await this.hasMore())) throw new MessageError(400, "the message is incomplete");
      const at = this.#rest.indexOf(LF);
      const piece = this.#take(at < 0 ? Number.POSITIVE_INFINITY : at + 1);
      bytes += piece.byteLength;
      if (bytes > bytesMax) throw new MessageError(431, `a line has more than ${bytesMax} bytes`);
      pieces.push(piece);
      if (at >= 0) return lineOf(Buffer.concat(pieces).toString("latin1"));
    }
  }

  #take(bytesMax: number): Uint8Array {
    const piece = this.#rest.subarray(0, bytesMax);
    this.#rest = this.#rest.subarray(piece.byteLength);
    return piece;
  }
}

function lineOf(text: string): string {
  const line = text.slice(0, -2);
  if (text.at(-2) !== "\r" || !lineExpression.test(line)) {
    throw new MessageError(400, "a line has a control character, or does not end in CR and LF");
  }
  return line;
}
