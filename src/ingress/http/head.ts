import { type ByteReader, MessageError } from "./reader.ts";

/** A field of a head: its name as it was sent, and its value without blanks around it. */
export type Field = readonly [name: string, value: string];
export type Fields = readonly Field[];

export interface RequestHead {
  readonly method: string;
  /** in origin form, or `*` */
  readonly target: string;
  /** minor version of HTTP/1 */
  readonly version: 0 | 1;
  readonly fields: Fields;
}

export interface ResponseHead {
  readonly status: number;
  readonly reason: string;
  readonly version: 0 | 1;
  readonly fields: Fields;
}

/** Largest line of a head, in `bytes`. */
const LINE_BYTES_MAX = 16_384;
/** Largest head of a request or a response, in `bytes`. */
export const HEAD_BYTES_MAX = 32_768;
const FIELDS_COUNT_MAX = 100;

const TOKEN = "[!#$%&'*+.^_`|~0-9A-Za-z-]+";
const fieldExpression = new RegExp(`^(${TOKEN}):(.*)$`);
/** The target has no blank, no control character, nothing beyond ASCII and no fragment. */
const requestExpression = new RegExp(`^(${TOKEN}) ([\\x21\\x22\\x24-\\x7e]+) HTTP/(\\d)\\.(\\d)$`);
const statusExpression = /^HTTP\/1\.([01]) ([1-5]\d\d)(?: (.*))?$/;
const absoluteExpression = /^https?:\/\/([^/?]+)(\/?.*)$/i;

/** All values of a field, by its name in lower case. */
export function valuesOf(fields: Fields, name: string): string[] {
  return fields.filter(([other]) => other.toLowerCase() === name).map(([, value]) => value);
}

/** The members of a field that is a list, in lower case. */
export function membersOf(fields: Fields, name: string): string[] {
  return valuesOf(fields, name)
    .flatMap((value) => value.split(","))
    .map((member) => withoutBlanks(member).toLowerCase())
    .filter((member) => member !== "");
}

/** Reads the head of a request. @throws MessageError; as the source does */
export async function readRequestHead(reader: ByteReader): Promise<RequestHead> {
  const { start, fields } = await readHead(reader);
  const [, method = "", target = "", major, minor] = requestExpression.exec(start) ?? [];
  if (method === "") throw new MessageError(400, "the request line is malformed");
  if (major !== "1" || (minor !== "0" && minor !== "1")) throw new MessageError(505, "the version must be HTTP/1.1");
  if (method === "CONNECT" || method === "TRACE") throw new MessageError(405, `${method} is not supported`);
  const hosts = valuesOf(fields, "host");
  if (hosts.length !== 1) throw new MessageError(400, "a request has one Host");
  const version = minor === "0" ? 0 : 1;
  return { method, target: originForm(method, target, hosts[0] ?? ""), version, fields };
}

/** Reads the head of a response. @throws MessageError; as the source does */
export async function readResponseHead(reader: ByteReader): Promise<ResponseHead> {
  const { start, fields } = await readHead(reader);
  const [, minor, status, reason = ""] = statusExpression.exec(start) ?? [];
  if (status === undefined) throw new MessageError(400, "the status line is malformed");
  return { status: Number(status), reason, version: minor === "0" ? 0 : 1, fields };
}

/** The bytes of a head: its first line, its fields, and the empty line. */
export function headBytes(start: string, fields: Fields): Buffer {
  const lines = [start, ...fields.map(([name, value]) => `${name}: ${value}`), "", ""];
  return Buffer.from(lines.join("\r\n"), "latin1");
}

/**
 * Reads fields up to the empty line.
 * @param bytesMax size of all lines, in `bytes`
 * @throws MessageError; as the source does
 */
export async function readFields(reader: ByteReader, bytesMax: number): Promise<Fields> {
  const fields: Field[] = [];
  for (let leftBytes = bytesMax; ; ) {
    const line = await reader.line(Math.min(LINE_BYTES_MAX, leftBytes));
    if (line === "") return fields;
    leftBytes -= line.length + 2;
    if (fields.length === FIELDS_COUNT_MAX)
      throw new MessageError(431, `there are more than ${FIELDS_COUNT_MAX} fields`);
    // A line that continues the one before begins with a blank, which no name does.
    const [, name, value = ""] = fieldExpression.exec(line) ?? [];
    if (name === undefined) throw new MessageError(400, "a field is malformed");
    fields.push([name, withoutBlanks(value)]);
  }
}

async function readHead(reader: ByteReader): Promise<{ readonly start: string; readonly fields: Fields }> {
  const start = await reader.line(LINE_BYTES_MAX);
  return { start, fields: await readFields(reader, HEAD_BYTES_MAX - start.length) };
}

/** Without the blanks of HTTP around it, in linear time, which expressions for a text's end do not take. */
function withoutBlanks(text: string): string {
  const isBlank = (at: number) => text[at] === " " || text[at] === "\t";
  let [from, to] = [0, text.length];
  while (from < to && isBlank(from)) from++;
  while (to > from && isBlank(to - 1)) to--;
  return text.slice(from, to);
}

function originForm(method: string, target: string, host: string): string {
  if (target.startsWith("/") || (target === "*" && method === "OPTIONS")) return target;
  const [, authority, path = ""] = absoluteExpression.exec(target) ?? [];
  if (authority?.toLowerCase() !== host.toLowerCase()) throw new MessageError(400, "the target is not of this host");
  return path.startsWith("/") ? path : `/${path}`;
}
