import { ApiError } from "../../../domain/errors.ts";

/** Longest fields of a part, with the line of its boundary, in `bytes`. */
const HEAD_BYTES_MAX = 16_384;
/** Longest boundary that RFC 2046 allows, in `bytes`. */
const BOUNDARY_BYTES_MAX = 70;
const PARTS_COUNT_MAX = 4096;
const HEAD_END = "\r\n\r\n";
const CR = 0x0d;

/** A part of a form. */
export interface Part {
  /** name of its field; empty: none */
  readonly name: string;
  /** as the client wrote it, with all directories; null: none */
  readonly filename: string | null;
  /** its bytes, for one reader before the next part is requested. The rest of it is skipped. */
  readonly content: AsyncIterable<Uint8Array>;
}

/** The boundary of a Content-Type; null: it is not a form of parts. @throws ApiError `validation_error` */
export function boundaryOf(contentType: string): string | null {
  if (!/^multipart\/[\w-]+\s*(?:;|$)/i.test(contentType.trim())) return null;
  const boundary = parametersOf(contentType).get("boundary") ?? "";
  const isValid =
    boundary !== "" && boundary.length <= BOUNDARY_BYTES_MAX && /^[\x20-\x7e]*[\x21-\x7e]$/.test(boundary);
  if (!isValid) throw malformed("its Content-Type has no boundary");
  return boundary;
}

/**
 * The parts of a form, as they arrive. It keeps the fields of one part or a part of a boundary, and no content.
 * @param body its chunks, each of which is valid until the next one is requested
 * @throws ApiError `validation_error` for a malformed form, or one that ends early; as `body` does
 */
export async function* partsOf(
  body: AsyncIterable<Uint8Array>,
  boundary: string,
): AsyncGenerator<Part, void, undefined> {
  const chunks = body[Symbol.asyncIterator]();
  // Not awaited, because the response does not depend on it.
  using _left = { [Symbol.dispose]: () => void chunks.return?.().catch(() => undefined) };
  const form = new FormBytes(chunks, boundary);
  await form.skip();
  for (let count = 0; ; count++) {
    const head = await form.head();
    if (head === null) return;
    if (count === PARTS_COUNT_MAX) throw malformed(`it has more than ${PARTS_COUNT_MAX} parts`);
    const disposition = parametersOf(dispositionOf(head));
    const filename = extendedValue(disposition.get("filename*")) ?? disposition.get("filename") ?? null;
    yield { name: disposition.get("name") ?? "", filename, content: form.content() };
    await form.skip();
  }
}

/** The bytes of a form. */
class FormBytes {
  readonly #chunks: AsyncIterator<Uint8Array, unknown, undefined>;
  readonly #delimiter: Buffer;
  /** The first boundary needs no line before it. */
  #bytes: Buffer = Buffer.from("\r\n");
  /** whether the bytes are those of the content of a part, or come before the first one */
  #isInside = true;

  constructor(chunks: AsyncIterator<Uint8Array, unknown, undefined>, boundary: string) {
    this.#chunks = chunks;
    this.#delimiter = Buffer.from(`\r\n--${boundary}`, "latin1");
  }

  /** The content up to the next boundary. */
  async *content(): AsyncGenerator<Uint8Array, void, undefined> {
    while (this.#isInside) {
      const at = this.#bytes.indexOf(this.#delimiter);
      this.#isInside = at < 0;
      const end = at < 0 ? this.#safeEnd() : at;
      const piece = this.#bytes.subarray(0, end);
      this.#bytes = this.#bytes.subarray(at < 0 ? end : at + this.#delimiter.byteLength);
      if (piece.byteLength > 0) yield piece;
      if (at < 0) await this.#more();
    }
  }

  /** Skips the rest of the content. */
  async skip(): Promise<void> {
    for await (const _piece of this.content());
  }

  /** The fields of the part behind the boundary; null: it was the last boundary. */
  async head(): Promise<string | null> {
    while (this.#bytes.byteLength < 2) await this.#more();
    if (this.#bytes.toString("latin1", 0, 2) === "--") return null;
    for (;;) {
      const end = this.#bytes.indexOf(HEAD_END);
      if (Math.max(end, 0) > HEAD_BYTES_MAX || (end < 0 && this.#bytes.byteLength > HEAD_BYTES_MAX)) {
        throw malformed(`the fields of a part have more than ${HEAD_BYTES_MAX} bytes`);
      }
      if (end < 0) await this.#more();
      else {
        const head = this.#bytes.toString("utf8", 0, end);
        this.#bytes = this.#bytes.subarray(end + HEAD_END.length);
        this.#isInside = true;
        return head;
      }
    }
  }

  /** Where the bytes begin that may be a part of a boundary. */
  #safeEnd(): number {
    const from = Math.max(0, this.#bytes.byteLength - this.#delimiter.byteLength + 1);
    const at = this.#bytes.indexOf(CR, from);
    return at < 0 ? this.#bytes.byteLength : at;
  }

  /** Adds the next chunk. The others may be in the memory of the last one. */
  async #more(): Promise<void> {
    const rest = Buffer.from(this.#bytes);
    const step = await this.#chunks.next();
    if (step.done === true) throw malformed("it ends early");
    const { buffer, byteOffset, byteLength } = step.value;
    const chunk = Buffer.from(buffer, byteOffset, byteLength);
    this.#bytes = rest.byteLength === 0 ? chunk : Buffer.concat([rest, chunk]);
  }
}

/** The field that says what a part is. The first line is the rest of the one with the boundary. */
function dispositionOf(head: string): string {
  const [rest = "", ...lines] = head.split("\r\n");
  if (rest.trim() !== "") throw malformed("a boundary is not alone on its line");
  const field = lines.find((line) => /^content-disposition\s*:/i.test(line));
  return field === undefined ? "" : field.slice(field.indexOf(":") + 1);
}

const PARAMETER = /;\s*([\w!#$%&'*+.^`|~-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))/gs;

/** The parameters of a field, by their names in lower case. The first of a name counts. */
function parametersOf(field: string): ReadonlyMap<string, string> {
  const parameters = new Map<string, string>();
  for (const [, name = "", quoted, token = ""] of field.matchAll(PARAMETER)) {
    const key = name.toLowerCase();
    // Only these are quoted by a backslash: some clients send paths of Windows as they are.
    if (!parameters.has(key)) parameters.set(key, quoted?.replaceAll(/\\(["\\])/g, "$1") ?? token);
  }
  return parameters;
}

/** The text of an extended parameter, as RFC 8187 writes it in UTF-8; null: there is none, or it is something else. */
function extendedValue(value: string | undefined): string | null {
  const [, encoded] = /^utf-8'[^']*'(.*)$/i.exec(value ?? "") ?? [];
  try {
    return encoded === undefined ? null : decodeURIComponent(encoded);
  } catch (error) {
    if (error instanceof URIError) return null;
    throw error;
  }
}

function malformed(what: string): ApiError {
  return new ApiError("validation_error", `malformed form: ${what}`);
}
