import { describe, expect, test } from "bun:test";
import { bodyOf, type Framing } from "../../../src/ingress/http/body.ts";
import { readRequestHead } from "../../../src/ingress/http/head.ts";
import { ByteReader, MessageError } from "../../../src/ingress/http/reader.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { turns } from "../../support/waiting.ts";

const CHUNKED: Framing = { kind: "chunked" };

/** A reader of these pieces, which counts how often it had to wait for one. */
function readerOf(pieces: Iterable<string | Uint8Array>) {
  const counts = { waits: 0 };
  async function* source() {
    for (const piece of pieces) {
      counts.waits++;
      yield typeof piece === "string" ? Buffer.from(piece, "latin1") : piece;
    }
  }
  return { reader: new ByteReader(source()), counts };
}

async function textOf(body: AsyncIterable<Uint8Array>): Promise<string> {
  const pieces: Uint8Array[] = [];
  for await (const piece of body) pieces.push(piece);
  return Buffer.concat(pieces).toString("latin1");
}

describe("a message", () => {
  const head = "POST /a?b HTTP/1.1\r\nHost: a.test\r\nX-Empty:\r\nX-Blank: \t x y \t\r\n\r\n";
  const body = "5;ext=1\r\nhello\r\n1\r\n,\r\n6\r\n world\r\n0\r\nX: y\r\n\r\n";

  test("means the same however its bytes are divided", async () => {
    const bytes = `${head}${body}rest`;
    for (let at = 1; at < bytes.length; at++) {
      const { reader } = readerOf([bytes.slice(0, at), bytes.slice(at)]);
      const { method, target, version, fields } = await readRequestHead(reader);
      expect({ method, target, version }).toEqual({ method: "POST", target: "/a?b", version: 1 });
      expect(fields).toEqual([
        ["Host", "a.test"],
        ["X-Empty", ""],
        ["X-Blank", "x y"],
      ]);
      expect(await textOf(bodyOf(reader, CHUNKED))).toBe("hello, world");
      expect(await textOf(bodyOf(reader, { kind: "close" }))).toBe("rest");
    }
    const { reader } = readerOf(bytes);
    await readRequestHead(reader);
    expect(await textOf(bodyOf(reader, CHUNKED))).toBe("hello, world");
  });

  test("may have values of blanks, in any number: each costs time by its length alone", async () => {
    const blanks = " \t".repeat(8000);
    const { reader } = readerOf([
      `${head.slice(0, -2)}X: a${blanks}b${blanks.slice(0, 99)}\r\nX:${blanks}\r\n\r\n`.repeat(500),
    ]);
    // With time by the square of the length, these would take minutes.
    for (let count = 0; count < 500; count++) {
      await turns(1);
      const { fields } = await readRequestHead(reader);
      expect(fields.slice(-2)).toEqual([
        ["X", `a${blanks}b`],
        ["X", ""],
      ]);
    }
  });

  test("that ends early is an error at every place", async () => {
    const bytes = `${head}${body}`;
    for (let at = 1; at < bytes.length; at++) {
      const { reader } = readerOf([bytes.slice(0, at)]);
      const text = readRequestHead(reader).then(() => textOf(bodyOf(reader, CHUNKED)));
      expect(await failureOf(text)).toBeInstanceOf(MessageError);
    }
  });
});

describe("a body in chunks", () => {
  test("is passed in few pieces, however small its chunks are", async () => {
    const count = 20_000;
    const { reader } = readerOf([`${"1\r\nx\r\n".repeat(count)}0\r\n\r\n`]);
    const sizes: number[] = [];
    for await (const piece of bodyOf(reader, CHUNKED)) sizes.push(piece.byteLength);
    expect(sizes.reduce((sum, size) => sum + size)).toBe(count);
    expect(sizes.length).toBeLessThan(5);
  });

  test("holds nothing back while it waits for more", async () => {
    const ends = ["5\r\nhello", "5\r\nhello\r", "5\r\nhello\r\n", "5\r\nhello\r\n5", "5\r\nhello\r\n5\r\n"];
    for (const bytes of ends) {
      const { reader, counts } = readerOf([bytes, "never"]);
      const { value } = await bodyOf(reader, CHUNKED).next();
      expect(Buffer.from(value ?? []).toString()).toBe("hello");
      expect(counts.waits).toBe(1);
    }
  });

  test("has sizes as they are written, and no others", async () => {
    const { reader } = readerOf([`0000A\r\n0123456789\r\n0;${"e".repeat(100)}\r\n\r\n`]);
    expect(await textOf(bodyOf(reader, CHUNKED))).toBe("0123456789");
    for (const line of ["-1", "0x1", "1 ", "", "g", "1\r", "1;\0", "1234567890123"]) {
      const { reader: bad } = readerOf([`${line}\r\nx\r\n0\r\n\r\n`]);
      expect(await throwing(textOf(bodyOf(bad, CHUNKED)))).toThrow(/chunk|control/);
    }
  });
});

describe("a line", () => {
  test("is not awaited beyond its bound", async () => {
    const { reader, counts } = readerOf(Array<string>(100).fill("a"));
    expect(await throwing(reader.line(10))).toThrow("more than 10 bytes");
    expect(counts.waits).toBe(11);
  });
});
